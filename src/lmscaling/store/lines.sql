-- The lines of a batch of logs. `log_rows` are the lines of the files; their columns come from the
-- record classes.

-- One row per line; a damaged line has NULL in a column that every line of its kind has.
INSERT INTO lines
SELECT
    parse_path(filename)[-2] AS run,
    * EXCLUDE (run, filename),
    coalesce(
        attempt IS NULL
        OR record IN ('update', 'gradients', 'validation') AND (update IS NULL OR tokens IS NULL)
        OR record NOT IN ('header', 'update', 'gradients', 'validation', 'end'),
        true
    ) AS damaged,
    false AS repeated
FROM log_rows;

-- An attempt has one header and one end, and one line of a kind for an update. Of equal lines one
-- counts. Of lines that differ the first in the order of their values does, and the others are
-- damaged: which of them training has written is unknown.
UPDATE lines SET damaged = version > 1 AND copy = 1, repeated = copy > 1
FROM (
    SELECT
        id,
        dense_rank() OVER (PARTITION BY run, record, attempt, place ORDER BY l) AS version,
        row_number() OVER (PARTITION BY run, record, attempt, place, l) AS copy
    FROM (
        SELECT
            rowid AS id, run, record, attempt,
            if(record IN ('header', 'end'), 0, update) AS place, lines AS l
        FROM lines WHERE NOT damaged
    )
    SEMI JOIN (
        SELECT
            run, record, attempt, if(record IN ('header', 'end'), 0, update) AS place
        FROM lines WHERE NOT damaged GROUP BY ALL HAVING count(*) > 1
    ) USING (run, record, attempt, place)
)
WHERE lines.rowid = id;
