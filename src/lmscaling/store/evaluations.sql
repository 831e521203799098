-- Losses of final weights, one row per bin of positions. `evaluation_rows` are the lines of the files,
-- each of which appears complete or not at all, so damage comes from a disk or a copy. Of equal lines
-- one counts; of lines that differ the first in the order of their values does, and the others are
-- damaged. So is a line of another run than that of its folder.
CREATE TEMP TABLE evaluation_lines AS
WITH marked AS (
    SELECT
        parse_path(filename)[-2] AS run,
        * EXCLUDE (run),
        coalesce(
            record <> 'evaluation'
            OR dataset IS NULL OR context IS NULL OR axis IS NULL
            OR "start" IS NULL OR stop IS NULL OR tokens IS NULL
            OR evaluation_rows.run <> parse_path(filename)[-2],
            true
        ) AS damaged
    FROM evaluation_rows
)
SELECT * EXCLUDE (filename, version, copy) REPLACE (damaged OR version > 1 AS damaged)
FROM (
    SELECT
        *,
        dense_rank() OVER (
            PARTITION BY filename, damaged, dataset, context, axis, "start" ORDER BY marked
        ) AS version,
        row_number() OVER (PARTITION BY marked) AS copy
    FROM marked
)
WHERE damaged OR copy = 1;

CREATE TABLE evaluations AS
SELECT * EXCLUDE (record, damaged) FROM evaluation_lines
WHERE NOT damaged AND run NOT IN (SELECT run FROM run_rows WHERE status = 'damaged');
