-- Views of sealed forecasts.

-- Every sealed prediction beside what was measured. It is scored if its file has the hash of its name,
-- if the run began after it was sealed, and if the run is done. Dates are UTC with equal formats.
CREATE VIEW forecast_scores AS
-- baseline: What the plain guess is; empty without one.
-- measured: What the run has shown, in the unit of the quantity.
-- started: When the first attempt of the run began: UTC, ISO 8601; null if none has.
-- state: scored, or why not: changed of a file whose hash differs, begun of a run that began before
--   the seal, not predicted, waiting, or failed of a run without the quantity.
WITH begun AS (SELECT run, min(started) AS started FROM attempts GROUP BY run),
peaks AS (
    SELECT run, max(peak_memory_bytes) AS bytes FROM updates WHERE surviving GROUP BY run
),
compared AS (
    SELECT
        f.*, k.attention, k.size, k.context, k.seed, coalesce(k.status, 'pending') AS status,
        least(b.started, k.started) AS started,
        CASE f.quantity
            WHEN 'update_seconds' THEN k.train_seconds / nullif(k.updates, 0)
            WHEN 'memory_bytes' THEN p.bytes
            WHEN 'loss' THEN v.val_loss
        END AS measured
    FROM forecasts f LEFT JOIN planned k USING (run) LEFT JOIN begun b USING (run)
    LEFT JOIN peaks p USING (run) LEFT JOIN (
        SELECT run, arg_max(val_loss, "update") AS val_loss FROM validations WHERE surviving GROUP BY run
    ) v USING (run)
)
SELECT
    * REPLACE (CASE WHEN status = 'done' THEN measured END AS measured),
    CASE
        WHEN NOT intact THEN 'changed'
        WHEN started <= sealed THEN 'begun'
        WHEN median IS NULL THEN 'not predicted'
        WHEN status IN ('pending', 'running', 'interrupted', 'held') THEN 'waiting'
        WHEN status <> 'done' OR measured IS NULL THEN 'failed'
        ELSE 'scored'
    END AS state
FROM compared;
