-- Tables of logs, as they were written, and of evaluations. `lines` has the lines of a batch of logs;
-- a view `batch_<table>` has the rows that they add to a table.

CREATE TEMP VIEW whole_lines AS
SELECT * EXCLUDE (damaged, repeated) FROM lines WHERE NOT damaged AND NOT repeated;

-- One row per attempt that has left a line, whether it ended or was killed. Without a header it began
-- before its first update that is known.
CREATE TEMP VIEW batch_attempts AS
WITH begun AS (
    SELECT
        run, attempt,
        coalesce(
            max(start_update),
            min(update) FILTER (record = 'update') - 1,
            min(update)
        ) AS start_update,
        max(started) AS started,
        max(status) AS status, max(message) AS message, max(ended) AS ended
    FROM whole_lines GROUP BY run, attempt
)
SELECT
    *,
    min(start_update) OVER (
        PARTITION BY run ORDER BY attempt
        ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
    ) AS keeps_to
FROM begun;

CREATE TABLE attempts AS
-- keeps_to: Last update that survives: a later attempt that continued after it has lost what came
--   later; null if all survive.
-- start_update: Updates already done when the attempt began; without a header, those before its
--   first update that is known.
FROM batch_attempts;

CREATE TEMP VIEW batch_headers AS
SELECT run, attempt, COLUMNS(lambda c: list_contains(getvariable('header_columns'), c) AND c NOT IN ('run', 'attempt'))
FROM whole_lines WHERE record = 'header';

CREATE TEMP TABLE headers AS FROM batch_headers;

CREATE TEMP VIEW batch_updates AS
SELECT u.*, update <= coalesce(keeps_to, update) AS surviving
FROM (
    SELECT run, COLUMNS(lambda c: list_contains(getvariable('update_columns'), c))
    FROM whole_lines WHERE record = 'update'
) u LEFT JOIN attempts USING (run, attempt);

CREATE TABLE updates AS
-- surviving: False if a later attempt trained this update again.
FROM batch_updates;

CREATE TEMP VIEW batch_gradients AS
SELECT g.*, update <= coalesce(keeps_to, update) AS surviving
FROM (
    SELECT run, COLUMNS(lambda c: list_contains(getvariable('gradients_columns'), c))
    FROM whole_lines WHERE record = 'gradients'
) g LEFT JOIN attempts USING (run, attempt);

CREATE TABLE gradients AS
-- surviving: False if a later attempt trained this update again.
FROM batch_gradients;

CREATE TEMP VIEW batch_validations AS
SELECT v.*, update <= coalesce(keeps_to, update) AS surviving
FROM (
    SELECT run, COLUMNS(lambda c: list_contains(getvariable('validation_columns'), c))
    FROM whole_lines WHERE record = 'validation'
) v LEFT JOIN attempts USING (run, attempt);

CREATE TABLE validations AS
-- surviving: False if a later attempt trained this update again.
FROM batch_validations;

-- What the logs of each run say as a whole.
CREATE TEMP VIEW batch_logged AS
SELECT
    run,
    count(*) AS lines,
    count(*) FILTER (damaged) AS damaged_lines,
    max(update) FILTER (NOT damaged) AS updates,
    max(tokens) FILTER (NOT damaged) AS tokens,
    max(train_seconds) FILTER (NOT damaged) AS train_seconds
FROM lines GROUP BY run;

CREATE TEMP TABLE logged AS FROM batch_logged;
