-- The tables of the store: the study's cells, and the logs as written. What is computed from them
-- is a view (views.sql). Variables and the table `cells` come from store.py.

-- One row per line of every log; a line that is no whole record has a NULL somewhere it must not.
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
FROM read_json(
    getvariable('log_files'),
    format = 'newline_delimited',
    columns = getvariable('log_columns'),
    ignore_errors = true,
    filename = true
);

CREATE TEMP TABLE headers AS
SELECT * FROM lines WHERE record = 'header' AND NOT damaged;

-- One row per attempt. `keeps_to` is the last update that survives: a later attempt that began
-- behind update u has lost whatever this one did beyond u.
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

CREATE TABLE updates AS
SELECT
    run, attempt, update, epoch, tokens, train_seconds, train_loss, lr, budget_fraction, grad_norm,
    tokens_per_second, mfu, peak_memory_bytes,
    update <= coalesce(keeps_to, update) AS surviving
FROM lines LEFT JOIN attempts a USING (run, attempt)
WHERE record = 'update' AND NOT damaged;

-- One row per spike of the training loss: what that is, and who finds them, is in spikes.py. Where
-- one begins an upset, `recovery` is after how many updates that was over, infinite if it never was;
-- later spikes of the same upset have none.
CREATE TABLE spikes (
    run VARCHAR, update BIGINT, train_loss DOUBLE, height DOUBLE, recovery DOUBLE
);

CREATE TABLE validations AS
SELECT
    run, attempt, update, epoch, tokens, train_seconds, lr, budget_fraction, val_loss, val_tokens,
    update <= coalesce(keeps_to, update) AS surviving
FROM lines LEFT JOIN attempts a USING (run, attempt)
WHERE record = 'validation' AND NOT damaged;

-- What was measured on final weights, one row per bin of positions. Its file is written whole, so
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
FROM read_json(
    getvariable('evaluation_files'),
    format = 'newline_delimited',
    columns = getvariable('evaluation_columns'),
    ignore_errors = true,
    filename = true
);

CREATE TABLE evaluations AS
SELECT * EXCLUDE (record, damaged) FROM evaluation_lines WHERE NOT damaged;

-- What has another `setup` was measured elsewhere or with other versions, and is never put on one
-- line with the rest.
CREATE TEMP MACRO setup_of(environment) AS
concat_ws(', ', environment ->> 'device', 'Python ' || (environment ->> 'python'), array_to_string(
    list_transform(
        json_keys(environment, '$.versions'),
        lambda package: package || ' ' || json_extract_string(environment, '$.versions."' || package || '"')
    ),
    ', '
));

-- One row per point of the speed study, ours and published.
CREATE TABLE measurements AS
SELECT
    'measured' AS source,
    * EXCLUDE (record, environment, format),
    (environment ->> 'peak_flops')::DOUBLE AS peak_flops,
    setup_of(environment) AS setup
FROM read_json(
    getvariable('measurement_files'),
    format = 'unstructured',
    columns = getvariable('measurement_columns')
)
WHERE record = 'measurement';

-- The kernel bench: one row per file, with what the device can do at best, and one per shape.
CREATE TEMP TABLE bench_lines AS
SELECT * FROM read_json(
    getvariable('kernel_files'),
    format = 'newline_delimited',
    columns = getvariable('bench_columns'),
    filename = true
);

CREATE TABLE ceilings AS
SELECT
    setup_of(environment) AS setup, environment ->> 'device' AS device,
    driver ->> 'driver_version' AS driver_version, driver ->> 'clocks.max.sm' AS most_clock,
    driver ->> 'power.limit' AS power_limit, (environment ->> 'peak_flops')::DOUBLE AS peak_flops,
    copy_bytes_per_second, matmul_flops, started, command, parse_filename(filename) AS file
FROM bench_lines WHERE record = 'bench';

CREATE TABLE kernel_times AS
SELECT
    'measured' AS source, setup, t.device, kind, implementation, passes, dtype, batch, n_head,
    context, d_head, repeats, captured, median_seconds, least_seconds, most_seconds,
    ns_per_token_head, floor_fraction, peak_memory_bytes, status, message
FROM bench_lines t JOIN ceilings c ON parse_filename(t.filename) = c.file
WHERE record = 'kernel_time';

-- One row per comparison of what a device computes with what is right.
CREATE TABLE checks AS
SELECT * EXCLUDE (record, environment, format), setup_of(environment) AS setup
FROM read_json(
    getvariable('check_files'),
    format = 'newline_delimited',
    columns = getvariable('check_columns')
)
WHERE record = 'check';

-- One row per layer of a trained model and way to compute its attention.
CREATE TABLE numerics AS
SELECT * EXCLUDE (record, environment, format), setup_of(environment) AS setup
FROM read_json(
    getvariable('numerics_files'),
    format = 'newline_delimited',
    columns = getvariable('numerics_columns')
)
WHERE record = 'numerics';

-- One row per run that has left anything: a record if it is over, else what its log says. Only
-- published runs have a `final_train_loss`, their mean over the last updates, nats per token, and
-- counted `spikes` with the highest: those of ours are found in their logs (table `spikes`).
CREATE TABLE runs AS
WITH records AS (
    SELECT * FROM read_json(
        getvariable('run_files'),
        format = 'unstructured',
        columns = getvariable('run_columns')
    )
),
logged AS (
    SELECT
        run,
        count(*) AS lines,
        count(*) FILTER (damaged) AS damaged_lines,
        max(update) FILTER (NOT damaged) AS updates,
        max(tokens) FILTER (NOT damaged) AS tokens,
        max(train_seconds) FILTER (NOT damaged) AS train_seconds
    FROM lines GROUP BY run
),
first AS (SELECT * FROM headers QUALIFY row_number() OVER (PARTITION BY run ORDER BY attempt) = 1),
last AS (SELECT * FROM attempts QUALIFY row_number() OVER (PARTITION BY run ORDER BY attempt DESC) = 1)
SELECT
    run,
    'measured' AS source,
    run IN (SELECT run FROM cells) AS in_study,
    coalesce(r.status, CASE WHEN last.status IS NULL THEN 'running' ELSE last.status END) AS status,
    coalesce(r.message, last.message, '') AS message,
    coalesce(r.attempts, last.attempt, 0) AS attempts,
    coalesce(r.updates, logged.updates, 0) AS updates,
    coalesce(r.tokens, logged.tokens, 0) AS tokens,
    coalesce(r.train_seconds, logged.train_seconds, 0) AS train_seconds,
    NULL::DOUBLE AS final_train_loss,
    NULL::BIGINT AS spikes, NULL::DOUBLE AS highest_spike,
    coalesce(r.params, first.params) AS params,
    coalesce(r.params_total, first.params_total) AS params_total,
    coalesce(r.flops_per_token, first.flops_per_token) AS flops_per_token,
    r.attempt_seconds, r.lost_seconds, r.gpu_hours,
    coalesce(lines, 0) AS lines,
    coalesce(damaged_lines, 0) + coalesce(damaged_evaluations, 0) AS damaged_lines,
    (SELECT count(*) FROM updates u WHERE u.run = logged.run AND NOT surviving) AS superseded_rows,
    r.environment::VARCHAR AS environment,
    r.started, r.ended
FROM logged
FULL JOIN records r USING (run)
LEFT JOIN first USING (run)
LEFT JOIN last USING (run)
LEFT JOIN (
    SELECT run, count(*) FILTER (damaged) AS damaged_evaluations FROM evaluation_lines GROUP BY run
) USING (run);
