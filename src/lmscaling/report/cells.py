"""Tables of what was run: models, attentions, cells, decayed branches, and damaged logs."""

import duckdb

from lmscaling.config import code
from lmscaling.formatting import bytes_of
from lmscaling.report.table import (
    Row,
    Table,
    format_context,
    of_query,
    query_rows,
)

SIZES = """
    SELECT
        size, source, max(n_layer) AS layers, max(d_model) AS width,
        max(params) AS "N (parameters)",
        min(context) AS "shortest context (tokens)", max(context) AS "longest context (tokens)",
        count(DISTINCT context) AS contexts, count(DISTINCT seed) AS seeds,
        count(DISTINCT lr_scale) AS "learning rates", count(*) AS runs
    FROM known
    WHERE branch IS NULL AND skipped IS NULL
    GROUP BY source, size
    ORDER BY source, layers, width, size
"""

MORE = """
    CASE WHEN abs({0} - 1) >= 5e-5 THEN format(' ({{:+.1f}} %)', 100 * ({0} - 1)) ELSE '' END
""".strip()
"""The difference of a share from 1, in percent."""

ATTENTIONS = f"""
    WITH longest AS (
        SELECT * FROM status WHERE params IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY attention, size ORDER BY context DESC, place) = 1
    ),
    tried AS (
        SELECT attention, size, max(rates) AS rates
        FROM (
            SELECT attention, size, context, count(DISTINCT lr_scale) AS rates
            FROM last_validation WHERE status = 'done' GROUP BY ALL
        )
        GROUP BY ALL
    )
    SELECT
        l.attention || CASE WHEN l.attention = l.baseline THEN ' (baseline)' ELSE '' END
            AS attention,
        l.size, l.context AS "context (tokens)",
        format('{{:,}}', l.params)
            || {MORE.format("l.params / b.params")} AS parameters,
        format('{{:.3g}}', l.flops_per_token::DOUBLE)
            || {MORE.format("l.flops_per_token / b.flops_per_token")}
            AS "training compute (FLOPs per token)",
        l.state_bytes AS state,
        CASE WHEN rates >= 3 THEN format('{{}} rates', rates) ELSE 'never tuned' END
            AS "learning rate",
        replace(l.remarks, '; ', '. ') AS remarks
    FROM longest l
    LEFT JOIN longest b ON b.attention = l.baseline AND b.size = l.size AND b.context = l.context
    LEFT JOIN tried t ON t.attention = l.attention AND t.size = l.size
    ORDER BY min(l.place) OVER (PARTITION BY l.attention), l.params, l.size
"""
"""One row for each attention and size that has begun to train, at its longest context; with fewer
than three rates no optimum can be bracketed."""

ON_ATTENTIONS = (
    "Parameters are those without embeddings, compute is counted FLOPs of a forward and a backward "
    "pass, and both are compared with the baseline of the same size and context. The state is what "
    "sampling keeps of one sequence after as many tokens as the context has. A rate that was never "
    "tuned is that of the size times lr_scale: where only some rates were tuned, a lower loss may "
    "be that of a better rate. axes.lr_scale tunes it: one line, such as lr_scale: [0.5, 1, 2]."
)

CELLS = f"""
    SELECT
        s.name AS cell, replace(s.status, '_', ' ') AS status, s.params AS N, s.updates,
        s.tokens::DOUBLE AS tokens, s.train_seconds / 3600 AS hours,
        v.val_loss AS "validation loss (nats per token)", v.bits_per_byte AS "bits per byte",
        nullif(s.attempts, 1) AS attempts,
        CASE WHEN sum(c.spikes) OVER () > 0 THEN c.spikes_per_10000_updates END
            AS "spikes per 10,000 updates",
        c.highest_spike AS "highest spike (nats)",
        nullif(c.median_recovery, 'inf'::DOUBLE) AS "median recovery (updates)",
        concat_ws(
            '; ', nullif(coalesce(s.skipped, s.message), ''),
            CASE WHEN s.is_stale THEN '{code.STALE}' END,
            CASE WHEN isinf(c.median_recovery) THEN 'no recovery' END
        ) AS note
    FROM status s
    LEFT JOIN last_validation v USING (run)
    LEFT JOIN stability c USING (run)
    ORDER BY s.place
"""

FOUND = """
    SELECT
        (SELECT coalesce(max(val_tokens), 0) FROM validations JOIN known USING (run)) AS val_tokens,
        count(v.bits_per_byte) AS bits, count(*) FILTER (s.status = 'held') AS held,
        count(*) FILTER (s.status IN ('diverged', 'exploded')) AS failed, sum(c.spikes) AS spikes,
        count(*) FILTER (compared_share > 0) AS compared, count(compared_share) AS runs
    FROM status s
    LEFT JOIN last_validation v USING (run)
    LEFT JOIN stability c USING (run)
"""
"""What the note on the cells has to explain."""

BITS = (
    "Bits per byte are the validation loss / ln 2 / the UTF-8 bytes per token of the validation "
    "text; with them studies with different tokenizers can be compared. The bytes are those of "
    "all validation documents, the tokens those of the same documents with the end-of-text token "
    "before each, which has no byte."
)

FAILED = (
    "A run has failed if it diverged, which is an infinite or NaN loss, or exploded: the median "
    "training loss and the median validation loss of its last twentieth both lie above the lowest "
    "such medians by more than 0.1 nats and by more than six standard deviations of seeds. The "
    "rule was fixed before the losses were seen. A failed run has no final loss, enters no law, "
    "and is an arrow at the upper edge of a figure."
)

HELD = (
    "The last attempt of a held run failed and is no result. The next snakemake continues it from "
    "its checkpoint, after repeated failures once lmscaling reset --go-on --status held "
    "has been typed."
)

SPIKE = (
    "A spike is an update whose training loss exceeds the median of the preceding 128 updates by "
    "more than 7 robust standard deviations and more than 0.05 nats; its height is measured from "
    "that median. {judged} The loss has recovered at the first of 8 consecutive updates that do "
    "not exceed the median before the spike; recovery is the number of updates until then. Spikes "
    "are counted, never clipped."
)

JUDGED = (
    "For {compared} of {runs} runs the same is asked of the difference of their losses from those "
    "of at least three other runs on the same text at the same update, because text that is hard "
    "for every run is no spike of one; the other runs have too few others."
)

ENDPOINTS = """
    SELECT
        e.name AS branch, e.params AS N, e.update AS updates, e.tokens::DOUBLE AS tokens, e.hours,
        e.flops::DOUBLE AS "FLOPs", e.val_loss AS "validation loss (nats per token)",
        e.trunk_val_loss AS "loss of trunk (nats per token)",
        e.trunk_val_loss - e.val_loss AS "gain (nats per token)"
    FROM endpoints e JOIN cells c ON c.run = e.trunk
    ORDER BY c.place, e.share
"""

BROKEN = """
    FROM (
        SELECT 'non-finite training losses' AS finding,
            sum(nonfinite_losses)::BIGINT AS count, count(*) FILTER (nonfinite_losses > 0) AS runs
        FROM stability JOIN status USING (run)
        UNION ALL
        SELECT 'damaged log lines, excluded', sum(damaged_lines)::BIGINT,
            count(*) FILTER (damaged_lines > 0)
        FROM runs
        UNION ALL
        SELECT 'updates repeated by a later attempt, excluded',
            sum(superseded_rows)::BIGINT, count(*) FILTER (superseded_rows > 0)
        FROM runs
    )
    WHERE count > 0
"""


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Models, attentions, cells, decayed branches, and damaged logs."""
    four = "{:.4f}".format
    return [
        of_query(
            db, "sizes", "question", "Models", query=SIZES,
            note="N counts parameters without embeddings; it is known once a run of the size has "
            "started. Runs are the planned or published ones.",
        ),
        of_query(
            db, "attentions", "question", "Attentions", query=ATTENTIONS, note=ON_ATTENTIONS,
            context=format_context, parameters=str, training=str, state=bytes_of,
        ),
        of_query(
            db, "cells", "grid", "Cells", query=CELLS, note=_note(query_rows(db, FOUND)[0]),
            validation=four, bits=four, highest="{:.2f}".format, median="{:,.0f}".format,
        ),
        of_query(
            db, "endpoints", "learning", "Decayed branches", query=ENDPOINTS,
            note="A branch starts from a checkpoint of its trunk, decays the learning rate to zero "
            "and ends at the share of the budget given after b in its name. Updates, tokens, hours "
            "and FLOPs include the trunk up to the branch point. The loss of the trunk is its "
            "validation loss nearest in time to the end of the branch; the gain is the difference.",
            validation=four, loss=four, gain=four,
        ),
        of_query(
            db, "broken", "audit", "Damaged logs and non-finite losses", query=BROKEN,
            note="Counts over all runs whose logs are in the results folder.",
        ),
    ]  # fmt: skip


def _note(found: Row) -> str:
    """What is seen in the table of cells."""
    judged = JUDGED.format(**found) if found["compared"] else ""
    notes = {
        "N counts parameters without embeddings; updates and tokens are those of training; hours "
        f"are productive time; the loss is measured on {found['val_tokens']:,} validation "
        "tokens.": True,
        BITS: found["bits"],
        FAILED: found["failed"],
        HELD: found["held"],
        SPIKE.format(judged=judged).replace("  ", " "): found["spikes"],
    }
    return " ".join(note for note, holds in notes.items() if holds)
