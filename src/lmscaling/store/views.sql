-- What figures and the report read: views over the tables of the store.

-- One row per trunk and per branch of the study, whatever became of it, and per published run.
CREATE VIEW known AS
SELECT
    c.*, params, params_total, flops_per_token, updates, tokens, train_seconds, final_train_loss,
    attempts, message,
    CASE WHEN c.skipped IS NOT NULL THEN 'skipped' ELSE coalesce(r.status, 'pending') END AS status
FROM cells c LEFT JOIN runs r USING (run);

-- Those of the study. Here and below, where published runs are not named, all is about ours.
CREATE VIEW planned AS
SELECT * EXCLUDE (final_train_loss) FROM known WHERE source = 'measured';

-- One row per cell. Here and below, where branches are not named, all is about trunks.
CREATE VIEW status AS
SELECT * FROM planned WHERE branch IS NULL;

-- Every surviving validation of the study's cells.
CREATE VIEW validation AS
SELECT
    s.* EXCLUDE (updates, tokens, train_seconds),
    v.update, v.tokens, v.train_seconds / 3600 AS hours, v.tokens * flops_per_token AS flops, v.val_loss
FROM validations v JOIN status s USING (run)
WHERE v.surviving AND v.val_loss IS NOT NULL;

-- Every surviving update of the study's cells.
CREATE VIEW training AS
SELECT
    s.* EXCLUDE (updates, tokens, train_seconds),
    u.update, u.tokens, u.train_seconds / 3600 AS hours, u.tokens * flops_per_token AS flops, u.train_loss
FROM updates u JOIN status s USING (run)
WHERE u.surviving AND u.train_loss IS NOT NULL;

-- The last validation of each cell.
CREATE VIEW last_validation AS
SELECT * FROM validation
QUALIFY row_number() OVER (PARTITION BY run ORDER BY update DESC) = 1;

-- The last loss of each cell, where several learning rates were tried that of the best, and of each
-- published run. `split` says what `loss` was measured on: ours on validation tokens, that of
-- published runs on training tokens of their last updates; their `val_loss` is NULL.
CREATE VIEW final AS
SELECT *, 'validation' AS split, val_loss AS loss FROM last_validation
QUALIFY row_number() OVER (PARTITION BY attention, size, context, seed ORDER BY val_loss, run) = 1
UNION ALL BY NAME
SELECT
    * EXCLUDE (updates, train_seconds, final_train_loss),
    updates AS "update", train_seconds / 3600 AS hours, 'train' AS split, final_train_loss AS loss
FROM known WHERE source = 'published' AND final_train_loss IS NOT NULL;

-- Training loss along each run of `final` and each published run: ours as means over 60 intervals of
-- equal ratio of updates; a published point is a mean already and is shown as it is.
CREATE VIEW curves AS
WITH binned AS (
    SELECT *, floor(60 * ln(update) / ln(max(update) OVER (PARTITION BY run) + 1)) AS bin
    FROM training WHERE run IN (SELECT run FROM final)
)
SELECT
    source, context, attention, size, params, seed, run, max(status) AS status,
    exp(avg(ln(update))) AS updates, exp(avg(ln(tokens))) AS tokens, avg(hours) AS hours,
    exp(avg(ln(flops))) AS flops, avg(train_loss) AS loss
FROM binned
GROUP BY source, context, attention, size, params, seed, run, bin
UNION ALL
SELECT
    k.source, context, attention, size, params, seed, run, status,
    u.tokens / update_tokens, u.tokens, u.train_seconds / 3600, u.tokens * flops_per_token,
    u.train_loss
FROM updates u JOIN known k USING (run)
WHERE k.source = 'published' AND u.train_loss IS NOT NULL;

-- Loss of the final weights by position, one row per bin. `context` is the trained one and
-- `eval_context` the length of the windows here; `position` is the middle of the bin on a log
-- scale, in tokens that the model was given, of the window or of the document.
CREATE VIEW by_position AS
SELECT
    s.* EXCLUDE (dataset, updates, tokens, train_seconds),
    e.dataset, e.context AS eval_context, e.axis, e."start", e.stop,
    sqrt((e."start" + 1) * e.stop) AS position, e.tokens, e.loss, e.loss_se
FROM evaluations e JOIN status s USING (run);

-- Share of the tokens of a dataset with at least so many tokens of their own document `before` them,
-- at powers of two up to the first that none has. It is counted on the text of the evaluation with
-- most targets; for C4 without one, it is that of a sample of so many `documents`.
CREATE VIEW own_context AS
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
SELECT dataset, 3000, before, share
FROM (VALUES ('c4', 1024, 0.21), ('c4', 2048, 0.10), ('c4', 4096, 0.029), ('c4', 8192, 0.006), ('c4', 16384, 0))
    AS sample (dataset, before, share)
WHERE dataset IN (SELECT dataset FROM cells WHERE encoding = 'gpt2')
    AND dataset NOT IN (SELECT dataset FROM counted);

-- One row per branch that ended decayed: the trunk's axes, what its whole trajectory spent, trunk
-- part included, and for comparison the validation of the trunk that is nearest in time.
CREATE VIEW endpoints AS
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

-- What a run of a law learned on its way: every loss of the cells in `final` that did not diverge,
-- and of published runs. `spent` counts what the budget counts: hours, else updates. A published
-- spike, 0.05 nats above the median of the five points around it, is replaced by that median.
CREATE VIEW law_curves AS
WITH points AS (
    SELECT run, "update" AS updates, tokens, hours, val_loss AS loss
    FROM validation WHERE run IN (SELECT run FROM final)
    UNION ALL
    SELECT run, updates, tokens, hours, if(loss > middle + 0.05, middle, loss)
    FROM (
        SELECT *, median(loss) OVER (
            PARTITION BY run ORDER BY hours ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING
        ) AS middle
        FROM curves WHERE source = 'published'
    )
),
budgets AS (
    SELECT
        * EXCLUDE (updates, tokens, train_seconds, budget),
        if(source = 'published', 'train', 'validation') AS split,
        if(positions = 'learned', context * d_model, 0) AS params_positions,
        split_part(budget, ' ', 1)::DOUBLE * CASE
            WHEN budget LIKE '%hour%' THEN 1 WHEN budget LIKE '%minute%' THEN 1 / 60
            WHEN budget LIKE '%second%' THEN 1 / 3600
        END AS budget_hours,
        if(budget_hours IS NULL, 'updates', 'hours') AS unit
    FROM known WHERE status <> 'diverged'
)
SELECT
    b.* EXCLUDE (budget_hours),
    p.* EXCLUDE (run), p.tokens * flops_per_token AS flops,
    if(unit = 'hours', p.hours, p.updates) AS spent,
    coalesce(budget_hours, max(p.updates) OVER (PARTITION BY source)) AS budget
FROM points p JOIN budgets b USING (run);

-- Means of these curves over the seeds of a cell, at updates that all of them know. Only losses at a
-- constant rate are comparable before the end of the budget.
CREATE VIEW law_means AS
SELECT
    source, split, size, params, context, attention, count(*) AS seeds,
    updates, avg(tokens) AS tokens, avg(hours) AS hours, avg(flops) AS flops, avg(loss) AS loss
FROM law_curves WHERE schedule = 'constant'
GROUP BY source, split, size, params, context, attention, updates
QUALIFY seeds = max(seeds) OVER (PARTITION BY source, size, context, attention);

-- What laws of loss are fitted to, one row per run and share of the budget. `schedule` is `decayed`
-- at the ends of branches, which are worth most, and of runs whose schedule decays the rate; it is
-- `constant` where a trunk passes a share, between its losses on a straight line in ln spent. A run that is done but spent less than its
-- budget ends at share 1, too; `spent` tells.
CREATE VIEW law_points AS
WITH steps AS (
    SELECT
        *, lag(loss) OVER way AS loss_before, lag(spent) OVER way AS spent_before,
        lag(updates) OVER way AS updates_before, lag(hours) OVER way AS hours_before,
        lead(run) OVER way IS NULL AS is_last
    FROM law_curves
    WINDOW way AS (PARTITION BY run ORDER BY spent, updates)
),
passed AS (
    SELECT
        * EXCLUDE (budget, updates, tokens, hours, flops, spent, loss),
        share * steps.budget AS budget, share * steps.budget AS spent,
        ln(share * steps.budget / spent_before) / ln(steps.spent / spent_before) AS part,
        updates_before * (updates / updates_before) ** part AS updates,
        tokens / steps.updates * updates_before * (steps.updates / updates_before) ** part AS tokens,
        hours_before * (hours / hours_before) ** part AS hours,
        loss_before + part * (loss - loss_before) AS loss
    FROM steps, (FROM (VALUES (1 / 16), (1 / 8), (1 / 4), (1 / 2), (1)) AS shares (share))
    WHERE share * steps.budget > spent_before AND share * steps.budget <= steps.spent
),
ended AS (
    SELECT
        * REPLACE (coalesce(final_train_loss, loss) AS loss), 1 AS share
    FROM steps WHERE is_last AND status = 'done' AND (spent < budget OR schedule <> 'constant')
),
decayed AS (
    SELECT
        t.*, e.run, e.share, e."update" AS updates, e.tokens, e.hours, e.val_loss AS loss,
        if(unit = 'hours', e.hours, e."update") AS spent
    FROM endpoints e JOIN (
        SELECT DISTINCT ON (run) * EXCLUDE (run, updates, tokens, hours, flops, loss, spent)
        FROM law_curves
    ) t USING (trunk)
)
SELECT
    source, schedule, split, attention, size, context, seed, trunk, params, params_total,
    params_positions, unit, share, budget, updates, tokens, hours, spent,
    tokens * flops_per_token AS flops, loss
FROM (
    FROM passed WHERE schedule = 'constant'
    UNION ALL BY NAME
    SELECT * REPLACE (if(schedule = 'constant', schedule, 'decayed') AS schedule) FROM ended
    UNION ALL BY NAME
    SELECT * REPLACE (share * budget AS budget, 'decayed' AS schedule) FROM decayed
);

-- How calmly each run with updates went: its spikes (spikes.py) and its losses that are no number.
-- `median_recovery` is in updates, of two in the middle the lower one.
CREATE VIEW stability AS
SELECT
    run, coalesce(spikes, 0) AS spikes,
    10000 * coalesce(spikes, 0) / updates AS spikes_per_10000_updates,
    highest_spike, median_recovery, nonfinite_losses
FROM (
    SELECT run, count(*) AS updates, count(*) - count(train_loss) AS nonfinite_losses
    FROM updates JOIN runs USING (run) WHERE surviving AND source = 'measured' GROUP BY run
)
LEFT JOIN (
    SELECT
        run, count(*) AS spikes, max(height) AS highest_spike,
        quantile_disc(recovery, 0.5) AS median_recovery
    FROM spikes GROUP BY run
) USING (run);

-- The spikes of each run of `final` and of each published run. Those of ours are single updates,
-- published ones means over 100 updates, so rates of the two sources are not comparable.
CREATE VIEW spike_rates AS
SELECT
    k.source, run, k.attention, k.size, k.params, k.context, k.seed, k.updates,
    coalesce(r.spikes, s.spikes) AS spikes,
    10000 * coalesce(r.spikes, s.spikes) / k.updates AS spikes_per_10000_updates,
    coalesce(r.highest_spike, s.highest_spike) AS highest_spike
FROM known k JOIN runs r USING (run) LEFT JOIN stability s USING (run)
WHERE k.updates > 0
    AND (r.spikes IS NOT NULL OR s.run IS NOT NULL AND run IN (SELECT run FROM final));

-- One row per point of the speed study. `method` is how attention was computed, for people;
-- `seconds` is the median, of one step, of one sampled token of all sequences, or of one pass; `mfu`
-- is the share of the device's peak that a step of a model makes use of, by counted FLOPs, 0 to 1.
CREATE VIEW speeds AS
SELECT
    *,
    concat_ws(' ', attention, nullif(implementation, '')) AS method,
    median_seconds AS seconds,
    flops_per_token * batch * context / seconds / peak_flops AS mfu
FROM measurements;

-- Where the faster of two ways changes as contexts grow, one row per pair, size, batch and setup:
-- what was measured elsewhere is never compared. `least_ratio` and `most_ratio` are the extremes of
-- baseline over challenger at common contexts. `context` is where both take the same time in the last
-- change, on straight lines in logarithms between its neighbours `low` and `high`. A tie is not
-- faster. Status of the challenger: faster `always`, `never`, `from` or `until` the one change, or
-- `several` changes.
CREATE VIEW crossings AS
WITH pairs AS (
    FROM (VALUES
        ('time_step', 'linear state_parallel', 'softmax flash'),
        ('time_step', 'linear state_parallel', 'softmax no_flash'),
        ('time_step', 'linear state_parallel', 'linear attention_parallel'),
        ('time_step', 'linear state', 'linear attention'),
        ('time_step', 'linear chunked', 'softmax flash'),
        ('time_step', 'linear chunked', 'linear attention_parallel'),
        ('time_step', 'linear chunked', 'linear state_parallel'),
        ('time_decode', 'linear', 'softmax')
    ) AS pairs (kind, challenger, baseline)
),
compared AS (
    SELECT
        kind, a.sweep, a.size, a.params, a.batch, a.source, a.setup, challenger, baseline, a.context,
        b.seconds / a.seconds AS ratio,
        ratio > 1 AS faster,
        lag(a.context) OVER series AS context_before,
        lag(ratio) OVER series AS ratio_before,
        coalesce(faster <> lag(faster) OVER series, false) AS changes
    FROM pairs
    JOIN speeds a USING (kind)
    JOIN speeds b USING (kind, sweep, size, batch, source, setup, context)
    WHERE a.method = challenger AND b.method = baseline
        AND a.seconds IS NOT NULL AND b.seconds IS NOT NULL
    WINDOW series AS (
        PARTITION BY kind, a.sweep, a.size, a.batch, a.source, a.setup, challenger, baseline
        ORDER BY a.context
    )
)
SELECT
    * EXCLUDE (n_changes, last_faster),
    CASE
        WHEN n_changes > 1 THEN 'several'
        WHEN n_changes = 1 THEN if(last_faster, 'from', 'until')
        ELSE if(last_faster, 'always', 'never')
    END AS status
FROM (
    SELECT
        kind, sweep, size, max(params) AS params, batch, source, setup, challenger, baseline,
        max_by(
            exp(
                ln(context_before)
                + ln(context / context_before) * ln(ratio_before) / (ln(ratio_before) - ln(ratio))
            ),
            context
        ) FILTER (changes) AS context,
        max_by(context_before, compared.context) FILTER (changes) AS low,
        max(compared.context) FILTER (changes) AS high,
        min(compared.context) AS shortest, max(compared.context) AS longest,
        min(ratio) AS least_ratio, max(ratio) AS most_ratio,
        count(*) FILTER (changes) AS n_changes,
        max_by(faster, compared.context) AS last_faster
    FROM compared
    GROUP BY kind, sweep, size, batch, source, setup, challenger, baseline
);
