-- An attention whose runs were trained by several versions of its code is several series: those of the
-- newest version keep its name, and the others are called `mine (code 3f2a)`. The newest version is
-- the present source, or that of the latest run. Runs of unknown code stay.
UPDATE cells SET attention = concat(
    cells.attention, ' (code ',
    array_to_string(list_transform(string_split(older.code, '+'), lambda code: left(code, 4)), '+'), ')'
)
FROM (
    SELECT run, code FROM cells JOIN runs USING (run, source)
    WHERE code <> ''
    QUALIFY code <> arg_max(code, (coalesce(code = present_code, false), coalesce(started, '')))
        OVER (PARTITION BY attention)
) older
WHERE cells.run = older.run;
