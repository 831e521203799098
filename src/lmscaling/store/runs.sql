-- One row per run that has left anything: its record, the columns of class `Run`, if it is over, else
-- what its log says.
CREATE TABLE runs AS
-- compared_updates: Updates whose spikes were judged by the difference from other runs of the same
--   text; null without updates.
-- damaged_lines: Lines of logs and evaluations that are no complete record, or that contradict
--   another line.
-- final_train_loss: Mean training loss of the last updates of a published run, nats per token; null
--   of our runs.
-- highest_spike: Nats of the highest spike of a published run.
-- in_study: Whether the study still has the cell.
-- lines: Lines of the logs.
-- most_rise: Nats that the loss of a run may rise: 0.1, or six standard deviations of seeds if that
--   is more, from those of its size and context, else of the study.
-- rise: Nats of the median loss of the last twentieth of the run above the lowest such median, of
--   the training or the validation loss, whichever rose less; null without either.
-- source: measured, or published for runs and times of others.
-- spikes: Spikes of a published run; those of our runs are in the table spikes.
-- superseded_rows: Updates that a later attempt trained again.
-- unknown_fields: Fields that this version does not know.
WITH first AS (SELECT * FROM headers QUALIFY row_number() OVER (PARTITION BY run ORDER BY attempt) = 1),
last AS (SELECT * FROM attempts QUALIFY row_number() OVER (PARTITION BY run ORDER BY attempt DESC) = 1),
-- How far the validation loss has risen for good: as `rise` in spikes.py does of training losses,
-- but a twentieth may have no validation. The last one of a run always has.
parts AS (
    SELECT run, ceil(20 * update / max(update) OVER (PARTITION BY run)) AS part, val_loss
    FROM validations WHERE surviving
),
medians AS (
    SELECT run, part, median(coalesce(val_loss, 'infinity'::DOUBLE)) AS loss FROM parts GROUP BY run, part
),
ends AS (
    SELECT run, arg_max(loss, part) AS loss, arg_max(loss, part) - min(loss) AS val_rise
    FROM medians GROUP BY run
),
-- Text that is hard for every model raises the one, too many epochs of little text raise the other.
rises AS (
    SELECT run, loss, least(train_rise, val_rise) AS rise
    FROM ends JOIN compared USING (run) WHERE train_rise IS NOT NULL
),
-- The scatter of seeds at a size and context, else of the study or task, from runs that have not risen.
scatter AS (
    SELECT task, size, context, count(*) - 1 AS degrees, (count(*) - 1) * var_samp(loss) AS squares
    FROM rises JOIN cells USING (run) WHERE rise <= 0.1
    GROUP BY task, attention, size, context, lr_scale, branch HAVING count(*) > 1
),
limits AS (
    SELECT
        run,
        greatest(0.1, 6 * coalesce(sqrt(coalesce(
            sum(s.squares) / sum(s.degrees), any_value(whole.variance)
        )), 0)) AS most_rise
    FROM cells c LEFT JOIN scatter s USING (size, context)
    LEFT JOIN (SELECT task, sum(squares) / sum(degrees) AS variance FROM scatter GROUP BY task) whole
        ON whole.task IS NOT DISTINCT FROM c.task
    GROUP BY run
)
SELECT
    run,
    'measured' AS source,
    run IN (SELECT run FROM cells) AS in_study,
    r.* EXCLUDE (run, name, cell, data, calibration) REPLACE (
        coalesce(r.status, last.status, 'running') AS status,
        coalesce(r.message, last.message, '') AS message,
        coalesce(r.attempts, last.attempt, 0) AS attempts,
        coalesce(r.updates, logged.updates, 0) AS updates,
        coalesce(r.tokens, logged.tokens, 0) AS tokens,
        coalesce(r.train_seconds, logged.train_seconds, 0) AS train_seconds,
        coalesce(r.params, first.params) AS params,
        coalesce(r.params_total, first.params_total) AS params_total,
        coalesce(r.flops_per_token, first.flops_per_token) AS flops_per_token,
        coalesce(r.state_bytes, first.state_bytes) AS state_bytes,
        coalesce(r.bytes_per_token, first.bytes_per_token) AS bytes_per_token,
        coalesce(r.remarks, first.remarks, '') AS remarks,
        coalesce(r.code, first.code, '') AS code,
        coalesce(r.program, first.program, '') AS program,
        r.environment::VARCHAR AS environment
    ),
    NULL::DOUBLE AS final_train_loss,
    NULL::BIGINT AS spikes, NULL::DOUBLE AS highest_spike,
    compared_updates,
    rise, most_rise,
    coalesce(lines, 0) AS lines,
    coalesce(damaged_lines, 0) + coalesce(damaged_evaluations, 0) AS damaged_lines,
    (SELECT count(*) FROM updates u WHERE u.run = logged.run AND NOT surviving) AS superseded_rows
FROM logged
FULL JOIN run_rows r USING (run)
LEFT JOIN first USING (run)
LEFT JOIN last USING (run)
LEFT JOIN compared USING (run)
LEFT JOIN (SELECT run, rise FROM rises) USING (run)
LEFT JOIN limits USING (run)
LEFT JOIN (
    SELECT run, count(*) FILTER (damaged) AS damaged_evaluations FROM evaluation_lines GROUP BY run
) USING (run);
