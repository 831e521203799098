-- Views of proposals of `lmscaling design`.

-- Half-widths of 95 % intervals against what is spent, one row per design and spending.
CREATE VIEW frontiers AS
SELECT
    * EXCLUDE (frontier, runs, unknown_fields),
    unnest(from_json(frontier, '[{
        "spend": "DOUBLE", "chosen": "DOUBLE", "random": "DOUBLE", "random_low": "DOUBLE",
        "random_high": "DOUBLE", "largest": "DOUBLE"
    }]'), recursive := true)
FROM designs;
