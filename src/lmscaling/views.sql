-- What figures and the report read: views over the tables of the store.

-- One row per cell of the study, whatever became of it.
CREATE VIEW status AS
SELECT
    c.*, params, params_total, flops_per_token, updates, tokens, train_seconds, attempts, message,
    CASE WHEN c.skipped IS NOT NULL THEN 'skipped' ELSE coalesce(r.status, 'pending') END AS status
FROM cells c LEFT JOIN runs r USING (run);

-- Every surviving validation of the study's runs.
CREATE VIEW validation AS
SELECT
    s.* EXCLUDE (updates, tokens, train_seconds),
    v.update, v.tokens, v.train_seconds / 3600 AS hours, v.tokens * flops_per_token AS flops, v.val_loss
FROM validations v JOIN status s USING (run)
WHERE v.surviving AND v.val_loss IS NOT NULL;

-- Every surviving update of the study's runs.
CREATE VIEW training AS
SELECT
    s.* EXCLUDE (updates, tokens, train_seconds),
    u.update, u.tokens, u.train_seconds / 3600 AS hours, u.tokens * flops_per_token AS flops, u.train_loss
FROM updates u JOIN status s USING (run)
WHERE u.surviving AND u.train_loss IS NOT NULL;

-- The last validation of each run, where several learning rates were tried that of the best.
CREATE VIEW final AS
SELECT * FROM (
    SELECT * FROM validation
    QUALIFY row_number() OVER (PARTITION BY run ORDER BY update DESC) = 1
)
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
