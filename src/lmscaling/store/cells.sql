-- Views of cells: what figures and the report know of every run.

-- One row per trunk and per branch of the study, finished or not, and per published run. `budget_hours`
-- is NULL of a budget that counts updates or tokens. A run that has spent its budget or its text has
-- exploded if its loss had risen for good by then. It is a table because almost every view reads it:
-- each time a query names a view, DuckDB resolves all of what that view is made of.
CREATE TABLE every AS
-- budget_hours: What the run may spend, in hours; null of a budget in updates or tokens.
-- is_stale: Whether the run was trained by other code than the present.
-- status: How the run ended, or its state: skipped, pending, running, interrupted or held; exploded
--   of a run that is over and whose rise exceeds most_rise.
WITH judged AS (
    SELECT * REPLACE (
        CASE WHEN exploded THEN 'exploded' ELSE status END AS status,
        CASE WHEN exploded THEN printf('the loss ends %.2f nats above its lowest', rise) ELSE message END
        AS message
    )
    FROM (
        SELECT *, coalesce(status IN ('done', 'out_of_tokens') AND rise > most_rise, false) AS exploded
        FROM runs
    )
)
SELECT
    c.*,
    c.budget_amount / CASE c.budget_unit
        WHEN 'hours' THEN 1 WHEN 'minutes' THEN 60 WHEN 'seconds' THEN 3600
    END AS budget_hours,
    r.* EXCLUDE (
        run, source, in_study, budget_amount, budget_unit, status, exploded, spikes, highest_spike,
        compared_updates, lines, damaged_lines, superseded_rows, unknown_fields, environment, environments,
        code_differs
    ),
    coalesce(r.code <> '' AND c.present_code <> '' AND r.code <> c.present_code, false)
        OR coalesce(
            r.program <> '' AND c.present_program <> '' AND r.program <> c.present_program, false
        ) AS is_stale,
    CASE WHEN c.skipped IS NOT NULL THEN 'skipped' ELSE coalesce(r.status, 'pending') END AS status
FROM cells c LEFT JOIN judged r USING (run);

-- Those of the grid, and published runs. The cells of tasks are on other data.
CREATE VIEW known AS
SELECT * EXCLUDE (task, kind) FROM every WHERE task IS NULL;

-- Those of the study. Below, views are about these unless they name published runs.
CREATE VIEW planned AS
SELECT * EXCLUDE (final_train_loss) FROM known WHERE source = 'measured';

-- One row per cell. Below, views are about trunks unless they name branches.
CREATE VIEW status AS
SELECT * FROM planned WHERE branch IS NULL;

-- Fields of records that this version does not know, and how many records have them.
CREATE VIEW unknown_fields AS
-- field: Name of the field.
-- records: Records that have it.
-- table: Table whose records have the field.
SELECT "table", field, count(*) AS records FROM (
    SELECT 'runs' AS "table", unnest(json_keys(unknown_fields)) AS field FROM runs
    UNION ALL SELECT 'measurements', unnest(json_keys(unknown_fields)) FROM measurements
    UNION ALL SELECT 'samples', unnest(json_keys(unknown_fields)) FROM samples
    UNION ALL SELECT 'floors', unnest(json_keys(unknown_fields)) FROM floors
)
GROUP BY ALL;
