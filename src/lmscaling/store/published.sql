-- Published numbers as rows of the store's tables, each with source 'published'. The temporary
-- tables `published_<file>` are those of published_files.sql.

-- What the names in the files mean: GPT-2's sizes, and the post's ways to compute attention in our
-- words. N as in model.py: matrices, biases and norms of n_layer blocks, and the last norm.
CREATE TEMP TABLE published_sizes AS
SELECT *, n_layer * (12 * d_model * d_model + 13 * d_model) + 2 * d_model AS params
FROM (VALUES
    (124, '124M', 12, 12, 768),
    (355, '355M', 24, 16, 1024),
    (774, '774M', 36, 20, 1280),
    (1558, '1558M', 48, 25, 1600)
) AS sizes (params_millions, size, n_layer, n_head, d_model);

CREATE TEMP TABLE published_methods AS
FROM (VALUES
    ('time_step', 'softmax_flash', 'softmax', 'flash'),
    ('time_step', 'softmax_no_flash', 'softmax', 'no_flash'),
    ('time_step', 'linear_attention', 'linear', 'attention'),
    ('time_step', 'linear_attention_parallel_no_flash', 'linear', 'attention_parallel_no_flash'),
    ('time_step', 'linear_attention_parallel', 'linear', 'attention_parallel'),
    ('time_step', 'linear_state', 'linear', 'state'),
    ('time_step', 'linear_state_parallel', 'linear', 'state_parallel'),
    ('time_step', 'linear_chunked', 'linear', 'chunked'),
    ('time_decode', 'softmax_kv_cache', 'softmax', ''),
    ('time_decode', 'linear_state', 'linear', '')
) AS methods (kind, name, attention, implementation);

CREATE TEMP MACRO published_run(attention, params_millions, context) AS
    concat('published/', attention, '-', params_millions, 'M-ctx', context);

-- As model/gpt.py counts them: three times those of a forward pass, for a vocabulary padded to 50304,
-- over half the context or in chunks of 64. The post counts none.
CREATE TEMP MACRO published_flops(attention, n_layer, n_head, d_model, context) AS
    3 * (2 * 50304 * d_model + n_layer * (24 * d_model * d_model + 2 * d_model * CASE
        WHEN attention = 'softmax' THEN context ELSE least(64, context) + 2 * d_model // n_head
    END));

-- What is wrong with the files beyond their types, as the end of a sentence about one of them.
CREATE TEMP VIEW published_problems AS
WITH keys AS (
    SELECT 'step_time' AS file, 'time_step' AS kind, params_millions, implementation AS name, context
    FROM published_step_time
    UNION ALL
    SELECT 'decode_time', 'time_decode', params_millions, implementation, context
    FROM published_decode_time
    UNION ALL
    SELECT 'final_loss', NULL, params_millions, attention, context FROM published_final_loss
    UNION ALL
    SELECT 'runs', NULL, params_millions, attention, context FROM published_runs
)
SELECT file, concat('has ', params_millions, ' million parameters, which is no size of GPT-2') AS problem
FROM keys ANTI JOIN published_sizes USING (params_millions)
UNION ALL
SELECT file, concat('has ', name, ', which is no implementation of the post')
FROM keys ANTI JOIN published_methods USING (kind, name) WHERE kind IS NOT NULL
UNION ALL
SELECT file, concat('has ', name, ', which is no attention of the post')
FROM keys WHERE kind IS NULL AND name NOT IN ('softmax', 'linear')
UNION ALL
SELECT file, concat('has two rows for ', name, ', ', params_millions, 'M, context ', context)
FROM keys GROUP BY file, name, params_millions, context HAVING count(*) > 1
UNION ALL
SELECT 'curves', concat('does not end where runs.csv says for ', attention, ', ', params_millions, 'M, context ', context)
FROM published_runs FULL JOIN (
    SELECT params_millions, attention, context, max("update") AS last_update
    FROM published_curves GROUP BY ALL
) c USING (params_millions, attention, context)
WHERE published_runs.last_update IS DISTINCT FROM c.last_update;

INSERT INTO cells BY NAME
SELECT
    'published' AS source,
    published_run(attention, params_millions, context) AS run,
    run[11:] AS name,
    attention, 'softmax' AS baseline, size, context, 0 AS seed, 1 AS lr_scale, run AS trunk, d_model, n_layer,
    'learned' AS positions, false AS masked, 'c4' AS dataset, 'gpt2' AS encoding, 'unknown' AS schedule,
    524288 AS update_tokens, '24 hours' AS budget, 24 AS budget_amount,
    'hours' AS budget_unit
FROM published_runs JOIN published_sizes USING (params_millions);

-- The last loss that was logged is a mean over updates around `last_update`, with a half: the run
-- went on for some fifty more.
INSERT INTO runs BY NAME
SELECT
    published_run(attention, params_millions, context) AS run,
    'published' AS source, false AS in_study, 'done' AS status, '' AS message, 1 AS attempts,
    last_update::BIGINT AS updates,
    (last_update * 524288)::BIGINT AS tokens,
    hours * 3600 AS train_seconds,
    final_train_loss,
    spikes, highest_spike,
    params,
    params + (50257 + context) * d_model AS params_total,
    published_flops(attention, n_layer, n_head, d_model, context) AS flops_per_token,
    0 AS lines, 0 AS damaged_lines, 0 AS superseded_rows
FROM published_runs
JOIN published_sizes USING (params_millions)
LEFT JOIN published_final_loss USING (params_millions, attention, context);

-- `update` is rounded to a whole one; `tokens` are exact.
INSERT INTO updates BY NAME
SELECT
    published_run(attention, params_millions, context) AS run,
    "update"::BIGINT AS "update",
    ("update" * 524288)::BIGINT AS tokens,
    hours * 3600 AS train_seconds,
    train_loss,
    true AS surviving
FROM published_curves;

-- A series of the post ends where the next context did not fit.
CREATE TEMP TABLE published_times AS
WITH timed AS (
    SELECT 'time_step' AS kind, params_millions, implementation AS name, context,
        milliseconds / 1000 AS median_seconds, 'done' AS status, '' AS message
    FROM published_step_time
    UNION ALL
    SELECT 'time_decode', params_millions, implementation, context,
        milliseconds_per_token / 1000, 'done', ''
    FROM published_decode_time
)
SELECT * FROM timed
UNION ALL
SELECT kind, params_millions, name, 2 * max(context), NULL, 'oom',
    'the published series ends before this context'
FROM timed GROUP BY kind, params_millions, name
HAVING max(context) < 524288;

INSERT INTO measurements BY NAME
SELECT
    'published' AS source, kind, 'published' AS sweep, size, attention, implementation, n_layer,
    n_head, d_model // n_head AS d_head, params, context, 1 AS batch, '' AS passes,
    median_seconds, status, message,
    'NVIDIA H100' AS device, 'one NVIDIA H100, Buckman and Gelada 2024' AS setup
FROM published_times
JOIN published_methods USING (kind, name)
JOIN published_sizes USING (params_millions);
