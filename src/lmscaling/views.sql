-- What figures and the report read: views over the tables of the store.

-- One row per trunk and per branch of the study, whatever became of it.
CREATE VIEW planned AS
SELECT
    c.*, params, params_total, flops_per_token, updates, tokens, train_seconds, attempts, message,
    CASE WHEN c.skipped IS NOT NULL THEN 'skipped' ELSE coalesce(r.status, 'pending') END AS status
FROM cells c LEFT JOIN runs r USING (run);

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

-- The same, where several learning rates were tried that of the best.
CREATE VIEW final AS
SELECT * FROM last_validation
QUALIFY row_number() OVER (PARTITION BY attention, size, context, seed ORDER BY val_loss, run) = 1;

-- Loss of the final weights by position, one row per bin. `context` is the trained one and
-- `eval_context` the length of the windows here; `position` is the middle of the bin on a log
-- scale, in tokens that the model was given, of the window or of the document.
CREATE VIEW by_position AS
SELECT
    s.* EXCLUDE (updates, tokens, train_seconds),
    e.dataset, e.context AS eval_context, e.axis, e."start", e.stop,
    sqrt((e."start" + 1) * e.stop) AS position, e.tokens, e.loss, e.loss_se
FROM evaluations e JOIN status s USING (run);

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

-- How calmly each run with updates went: its spikes (spikes.py) and its losses that are no number.
CREATE VIEW stability AS
SELECT
    run, coalesce(spikes, 0) AS spikes,
    10000 * coalesce(spikes, 0) / updates AS spikes_per_10000_updates,
    highest_spike, nonfinite_losses
FROM (
    SELECT run, count(*) AS updates, count(*) - count(train_loss) AS nonfinite_losses
    FROM updates WHERE surviving GROUP BY run
)
LEFT JOIN (
    SELECT run, count(*) AS spikes, max(height) AS highest_spike FROM spikes GROUP BY run
) USING (run);

-- One row per point of the speed study. `method` is how attention was computed, for people;
-- `seconds` is the median, of one step, of one sampled token of all sequences, or of one pass.
CREATE VIEW speeds AS
SELECT
    *,
    concat_ws(' ', attention, nullif(implementation, '')) AS method,
    median_seconds AS seconds
FROM measurements;
