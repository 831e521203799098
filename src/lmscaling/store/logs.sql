-- Tables of logs, as they were written, and of evaluations. `log_rows` and `evaluation_rows` are the
-- lines of the files; their columns come from the record classes.

-- One row per line of every log; a damaged line has NULL in a column that
-- every line of its kind has.
CREATE TEMP TABLE lines AS
SELECT
    parse_path(filename)[-2] AS run,
    * EXCLUDE (run, filename),
    coalesce(
        attempt IS NULL
        OR record IN ('update', 'validation') AND (update IS NULL OR tokens IS NULL)
        OR record NOT IN ('header', 'update', 'validation', 'end'),
        true
    ) AS damaged
FROM log_rows;

CREATE TEMP TABLE headers AS
SELECT * FROM lines WHERE record = 'header' AND NOT damaged;

-- One row per attempt, whether it ended or was killed.
CREATE TABLE attempts AS
SELECT
    h.run, h.attempt, h.start_update, h.started,
    e.status, e.message, e.ended,
    min(h.start_update) OVER (
        PARTITION BY h.run ORDER BY h.attempt
        ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
    ) AS keeps_to
FROM headers h
LEFT JOIN (SELECT * FROM lines WHERE record = 'end' AND NOT damaged) e USING (run, attempt);

COMMENT ON COLUMN attempts.keeps_to IS
'Last update that survives: a later attempt that continued after it has lost what came later; null if all survive.';

CREATE TABLE updates AS
SELECT u.*, update <= coalesce(keeps_to, update) AS surviving
FROM (
    SELECT run, COLUMNS(lambda c: list_contains(getvariable('update_columns'), c))
    FROM lines WHERE record = 'update' AND NOT damaged
) u LEFT JOIN attempts USING (run, attempt);

COMMENT ON COLUMN updates.surviving IS 'False if a later attempt trained this update again.';

-- One row per spike of the training loss; spikes.py defines and finds them.
CREATE TABLE spikes (
    run VARCHAR, update BIGINT, train_loss DOUBLE, height DOUBLE, recovery DOUBLE
);

COMMENT ON COLUMN spikes.height IS 'Nats above the running median.';
COMMENT ON COLUMN spikes.recovery IS
'Updates until the upset that this spike begins was over, infinite if it never was; null of later spikes of an upset.';

CREATE TABLE validations AS
SELECT v.*, update <= coalesce(keeps_to, update) AS surviving
FROM (
    SELECT run, COLUMNS(lambda c: list_contains(getvariable('validation_columns'), c))
    FROM lines WHERE record = 'validation' AND NOT damaged
) v LEFT JOIN attempts USING (run, attempt);

COMMENT ON COLUMN validations.surviving IS 'False if a later attempt trained this update again.';

-- Losses of final weights, one row per bin of positions. Its file appears complete or not at all, so
-- damage comes from a disk or a copy.
CREATE TEMP TABLE evaluation_lines AS
SELECT
    parse_path(filename)[-2] AS run,
    * EXCLUDE (run, filename),
    coalesce(
        record <> 'evaluation'
        OR dataset IS NULL OR context IS NULL OR axis IS NULL
        OR "start" IS NULL OR stop IS NULL OR tokens IS NULL,
        true
    ) AS damaged
FROM evaluation_rows;

CREATE TABLE evaluations AS
SELECT * EXCLUDE (record, damaged) FROM evaluation_lines WHERE NOT damaged;
