-- Views of losses: along runs, at their ends, by position, and how stable they were.

-- Every surviving validation of the study's cells. `val_loss` is in nats per token; `bits_per_byte`
-- is the same loss per UTF-8 byte, by the mean over all validation text, so that tokenizers can be
-- compared. It is NULL of runs whose shards have no sidecar, which counts the bytes.
CREATE VIEW validation AS
-- bits_per_byte: The same validation loss in bits per UTF-8 byte of the text, by which tokenizers
--   can be compared; null where the shards have no sidecar.
-- flops: FLOPs spent until here, counted: tokens x flops_per_token.
-- hours: Hours of productive time.
-- update: Updates done.
SELECT
    run, s.name, s.attention, s.size, s.context, s.seed, s.lr_scale, s.lr, s.params, s.status,
    v.update, v.tokens, v.train_seconds / 3600 AS hours, v.tokens * s.flops_per_token AS flops,
    v.val_loss, v.val_loss / ln(2) / s.bytes_per_token AS bits_per_byte
FROM validations v JOIN status s USING (run)
WHERE v.surviving AND v.val_loss IS NOT NULL;

-- Every surviving update of the study's cells.
CREATE VIEW training AS
-- flops: FLOPs spent until here, counted: tokens x flops_per_token.
-- hours: Hours of productive time.
SELECT
    run, s.name, s.attention, s.size, s.context, s.seed, s.lr_scale, s.lr, s.params, s.status,
    u.update, u.tokens, u.train_seconds / 3600 AS hours, u.tokens * s.flops_per_token AS flops,
    u.train_loss
FROM updates u JOIN status s USING (run)
WHERE u.surviving AND u.train_loss IS NOT NULL;

-- The last validation of each cell.
CREATE VIEW last_validation AS
SELECT * FROM validation
QUALIFY row_number() OVER (PARTITION BY run ORDER BY update DESC) = 1;

-- What became of every run that has begun: `failed` if it diverged or exploded, `ok` if it spent its
-- budget or its text, else `unfinished`. The loss of a failed run counts as infinite, so that medians
-- and ranks over seeds stay defined; that of an unfinished one is NULL. `n_ok` of `n_started` runs of
-- the same cell, which differ in their seed only.
CREATE VIEW outcomes AS
-- loss: Last loss, nats per token: infinite of a failed run, so that medians and ranks count it;
--   null of an unfinished one.
-- n_ok: Those of them that have ended and have not failed.
-- n_started: Runs of the cell that have begun; they differ in their seed only.
-- outcome: failed if the run diverged or exploded, ok if it spent its budget or its text, else
--   unfinished.
WITH ends AS (
    SELECT run, arg_max(val_loss, "update") AS val_loss
    FROM validations WHERE surviving AND val_loss IS NOT NULL GROUP BY run
),
begun AS (
    SELECT
        source, run, name, trunk, branch, attention, baseline, size, params, context, seed, lr_scale,
        status, message, rise, most_rise,
        CASE
            WHEN status IN ('diverged', 'exploded') THEN 'failed'
            WHEN status IN ('done', 'out_of_tokens') THEN 'ok'
            ELSE 'unfinished'
        END AS outcome,
        CASE outcome
            WHEN 'failed' THEN 'infinity'::DOUBLE WHEN 'ok' THEN coalesce(final_train_loss, val_loss)
        END AS loss
    FROM known LEFT JOIN ends USING (run)
    WHERE status NOT IN ('skipped', 'pending', 'no_trunk')
)
SELECT
    *,
    count(*) OVER cell AS n_started, count(*) FILTER (outcome = 'ok') OVER cell AS n_ok
FROM begun
WINDOW cell AS (PARTITION BY source, attention, size, context, lr_scale, branch);

-- Of each cell and seed the run at the best learning rate; a failed run only where all rates failed.
-- It is a table for the same reason as `every`.
CREATE TABLE chosen AS
-- has_failed: Whether the run diverged or exploded.
SELECT run, s.status IN ('diverged', 'exploded') AS has_failed
FROM status s LEFT JOIN (SELECT run, val_loss FROM last_validation) USING (run)
WHERE has_failed OR val_loss IS NOT NULL
QUALIFY row_number() OVER (
    PARTITION BY attention, size, context, seed ORDER BY has_failed, val_loss, run
) = 1;

-- The last loss of each cell, where several learning rates were tried that of the best, and of each
-- published run. Failed runs have none: `outcomes` counts them.
CREATE VIEW final AS
-- loss: Mean cross-entropy, nats per token; see split where there is one.
-- split: Tokens that the loss was measured on: validation, or train for published runs.
-- update: Updates done.
SELECT 'measured' AS source, *, 'validation' AS split, val_loss AS loss FROM last_validation
WHERE run IN (SELECT run FROM chosen WHERE NOT has_failed)
UNION ALL BY NAME
SELECT
    source, run, name, attention, size, context, seed, lr_scale, lr, params, status,
    updates AS "update", tokens, train_seconds / 3600 AS hours, tokens * flops_per_token AS flops,
    'train' AS split, final_train_loss AS loss
FROM known WHERE source = 'published' AND final_train_loss IS NOT NULL;

-- The floors, and how many cells of the study are above each with the mean final loss of their seeds.
CREATE VIEW floor_counts AS
-- above: Cells whose loss is above that of the floor.
-- cells: Cells (attention, size and context) with a final loss on the text of the floor.
WITH ends AS (
    SELECT c.dataset, c.context, avg(f.loss) AS loss
    FROM final f JOIN cells c USING (run)
    WHERE f.source = 'measured' AND f.status IN ('done', 'out_of_tokens')
    GROUP BY c.dataset, c.attention, c.size, c.context
)
SELECT
    f.dataset, f.name, f.context, f.loss, f.validation_tokens, f.train_tokens,
    count(e.loss) AS cells, count(*) FILTER (e.loss > f.loss) AS above
FROM floors f LEFT JOIN ends e
    ON e.dataset = f.dataset AND e.context = coalesce(f.context, e.context)
GROUP BY ALL;

-- Training loss along each run of `chosen` and each published run, without spikes: ours as means over
-- 60 intervals of equal ratio of updates. A published point is already a mean; it is a spike, in whose
-- place the median of the five points around it is shown, if it lies 0.05 nats above that and above the
-- points before, and those after it do not. `spike` is the highest loss of a spike in the interval.
CREATE VIEW curves AS
-- loss: Mean training loss without spikes, nats per token.
-- spike: Nats of the highest spike in the interval, or of a published point that is one; null
--   without one.
-- updates: Updates done; of a mean over several, their geometric mean.
WITH binned AS (
    SELECT
        t.*, s.update IS NOT NULL AS is_spike,
        floor(60 * ln(t.update) / ln(max(t.update) OVER (PARTITION BY run) + 1)) AS bin
    FROM training t LEFT JOIN (SELECT run, update FROM spikes) s USING (run, update)
    WHERE run IN (SELECT run FROM chosen)
),
published AS (
    SELECT
        k.source, context, attention, size, params, seed, run, status, u.tokens / update_tokens AS updates,
        u.tokens, u.train_seconds / 3600 AS hours, u.tokens * flops_per_token AS flops, u.train_loss,
        median(u.train_loss) OVER (around ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING) AS middle,
        min(u.train_loss) OVER (around ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING) AS before,
        min(u.train_loss) OVER (around ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING) AS after,
        coalesce(
            u.train_loss > greatest(middle, before) + 0.05 AND coalesce(after, before) <= before + 0.05, false
        ) AS is_spike
    FROM updates u JOIN known k USING (run)
    WHERE k.source = 'published' AND u.train_loss IS NOT NULL
    WINDOW around AS (PARTITION BY run ORDER BY u.train_seconds)
)
SELECT
    'measured' AS source, context, attention, size, params, seed, run, max(status) AS status,
    exp(avg(ln(update))) AS updates, exp(avg(ln(tokens))) AS tokens, avg(hours) AS hours,
    exp(avg(ln(flops))) AS flops,
    coalesce(avg(train_loss) FILTER (NOT is_spike), avg(train_loss)) AS loss,
    max(train_loss) FILTER (is_spike) AS spike
FROM binned
GROUP BY context, attention, size, params, seed, run, bin
UNION ALL
SELECT
    source, context, attention, size, params, seed, run, status, updates, tokens, hours, flops,
    CASE WHEN is_spike THEN middle ELSE train_loss END, CASE WHEN is_spike THEN train_loss END
FROM published;

-- Loss of the final weights by position, one row per bin.
CREATE VIEW by_position AS
-- dataset: Row under datasets: whose validation text was used.
-- eval_context: Tokens of the windows into which the text was cut.
-- position: Middle of the bin on a logarithmic scale, in tokens that the model was given.
-- tokens: Targets in the bin; their sum over the bins of an axis is the same at every context.
SELECT
    run, s.name, s.attention, s.size, s.context, s.seed, s.params, s.status,
    e.dataset, e.context AS eval_context, e.axis, e."start", e.stop,
    sqrt((e."start" + 1) * e.stop) AS position, e.tokens, e.loss, e.loss_se
FROM evaluations e JOIN status s USING (run);

-- The same counted in a sample of a text, own_context.csv.
CREATE TABLE own_context_samples AS
-- before: Tokens of its own document before a token.
-- dataset: Row under datasets: whose validation text was used.
-- documents: Documents of the sample; null if counted on the text of an evaluation.
-- share: Share of the tokens with at least so many before them, 0 to 1.
FROM read_csv(getvariable('own_context_samples'));

-- Share of the tokens of a dataset with at least so many tokens of their own document `before` them,
-- at powers of two up to the first that none has. It is counted on the text of the evaluation with
-- most targets; for C4 without one, it is that of a sample of so many `documents`.
CREATE VIEW own_context AS
-- dataset: Row under datasets: whose validation text was used.
WITH bins AS (
    SELECT dataset, run, context, "start", stop, sum(tokens) AS tokens
    FROM evaluations WHERE axis = 'document' GROUP BY ALL
),
texts AS (
    SELECT *, sum(tokens) OVER (PARTITION BY dataset, run, context) AS targets FROM bins
),
counted AS (
    FROM texts
    QUALIFY rank() OVER (PARTITION BY dataset ORDER BY targets DESC, run, context) = 1
)
SELECT
    dataset, NULL::BIGINT AS documents, "start" AS before,
    sum(tokens) OVER (PARTITION BY dataset ORDER BY "start" DESC) / targets AS share
FROM counted
UNION ALL
SELECT dataset, NULL, max(stop), 0 FROM counted GROUP BY dataset
UNION ALL
SELECT dataset, documents, before, share FROM own_context_samples
WHERE dataset IN (SELECT dataset FROM cells WHERE encoding = 'gpt2')
    AND dataset NOT IN (SELECT dataset FROM counted);

-- One row per branch that ended decayed, or run of a smaller budget of an axis, its own trunk: the trunk's axes, what its complete trajectory spent, the
-- part of the trunk included, and for comparison the validation of the trunk that is nearest in time.
CREATE VIEW endpoints AS
-- share: Share of the budget at which the row ends, 0 to 1.
-- trunk: Run that the branch starts from.
-- trunk_hours: Hours at which the trunk had that loss.
-- trunk_val_loss: Validation loss of the trunk nearest in time, nats per token.
WITH ends AS (
    SELECT
        b.* EXCLUDE (updates, tokens, train_seconds),
        v.update, v.tokens, v.train_seconds / 3600 AS hours, v.val_loss
    FROM planned b JOIN validations v USING (run)
    WHERE b.branch IS NOT NULL AND b.status = 'done' AND v.surviving AND v.val_loss IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY run ORDER BY v.update DESC) = 1
)
SELECT
    e.run, e.trunk, e.name, e.place, e.attention, e.size, e.context, e.seed, e.lr_scale, e.params,
    e.branch AS share, e.update, e.tokens, e.hours, e.tokens * e.flops_per_token AS flops,
    e.val_loss, t.val_loss AS trunk_val_loss, t.hours AS trunk_hours
FROM ends e LEFT JOIN validation t ON t.run = e.trunk
QUALIFY row_number() OVER (PARTITION BY e.run ORDER BY abs(t.hours - e.hours), t.update) = 1;

-- What figures show along the runs of `chosen` and the published runs, by `split`: train (`curves`),
-- validation, and decayed, the ends of branches.
CREATE VIEW learning_curves AS
-- loss: Mean cross-entropy, nats per token; see split.
-- split: train (means over 60 logarithmic intervals without spikes), validation, or decayed, the
--   end of a branch.
SELECT 'train' AS split, source, context, attention, size, params, seed, run, status,
    updates, tokens, hours, flops, loss, spike
FROM curves
UNION ALL
SELECT 'validation', 'measured', context, attention, size, params, seed, run, status,
    update, tokens, hours, flops, val_loss, NULL
FROM validation
WHERE run IN (SELECT run FROM chosen)
UNION ALL
SELECT 'decayed', 'measured', context, attention, size, params, seed, run, 'done',
    update, tokens, hours, flops, val_loss, NULL
FROM endpoints
WHERE trunk IN (SELECT run FROM chosen);

-- How stable each run with updates was: its spikes (spikes.py) and its losses that are not finite.
CREATE VIEW stability AS
-- compared_share: Share of the updates whose spikes were judged by the difference from at least
--   three other runs of the same text at the same update; the others were judged by the losses of
--   the run itself.
-- highest_spike: Nats of the highest spike; null without one.
-- median_recovery: Updates until an upset was over; of two in the middle the lower.
-- nonfinite_losses: Training losses that are infinite or NaN.
-- spikes: Number of spikes of the training loss.
-- spikes_per_10000_updates: Spikes in 10,000 updates.
SELECT
    run, coalesce(spikes, 0) AS spikes,
    10000 * coalesce(spikes, 0) / updates AS spikes_per_10000_updates,
    highest_spike, median_recovery, nonfinite_losses, compared_updates / updates AS compared_share
FROM (
    SELECT
        run, count(*) AS updates, count(*) - count(train_loss) AS nonfinite_losses,
        any_value(compared_updates) AS compared_updates
    FROM updates JOIN runs USING (run) WHERE surviving AND source = 'measured' GROUP BY run
)
LEFT JOIN (
    SELECT
        run, count(*) AS spikes, max(height) AS highest_spike,
        quantile_disc(recovery, 0.5) AS median_recovery
    FROM spikes GROUP BY run
) USING (run);

-- The spikes of each run of `chosen` and of each published run. Those of ours are single updates,
-- published ones means over 100 updates, so rates of the two sources are not comparable.
CREATE VIEW spike_rates AS
-- highest_spike: Nats of the highest spike; null without one.
-- spikes: Number of spikes of the training loss.
-- updates: Updates done; of a mean over several, their geometric mean.
SELECT
    k.source, run, k.attention, k.size, k.params, k.context, k.seed, k.updates,
    coalesce(r.spikes, s.spikes) AS spikes,
    10000 * coalesce(r.spikes, s.spikes) / k.updates AS spikes_per_10000_updates,
    coalesce(r.highest_spike, s.highest_spike) AS highest_spike
FROM known k JOIN runs r USING (run) LEFT JOIN stability s USING (run)
WHERE k.updates > 0
    AND (r.spikes IS NOT NULL OR s.run IS NOT NULL AND run IN (SELECT run FROM chosen));
