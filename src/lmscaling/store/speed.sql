-- Views of the speed study.

-- One row per point of the speed study. `method` says how attention was computed;
-- `seconds` is the median, of one step, of one sampled token of all sequences, or of one pass; `mfu`
-- is the share of the device's peak that a step of a model reaches, by counted FLOPs, 0 to 1. Of a
-- step at several chunk sizes it is the row of the fastest. Steps of the size `copy` are of the kind
-- `copy_task`: nothing else is compared with a model as small as that of the task.
CREATE VIEW speeds AS
-- method: How attention was computed: attention and implementation.
-- mfu: Share of the device's peak that a step reaches, by counted FLOPs, 0 to 1.
-- seconds: Median seconds of a step, of a sampled token of all sequences, or of a pass.
SELECT
    * REPLACE (
        CASE WHEN kind = 'time_step' AND size = 'copy' THEN 'copy_task' ELSE kind END AS kind
    ),
    concat_ws(' ', attention, nullif(implementation, '')) AS method,
    median_seconds AS seconds,
    flops_per_token * batch * context / seconds / peak_flops AS mfu
FROM measurements
QUALIFY measurements.kind <> 'time_step' OR row_number() OVER (
    PARTITION BY source, setup, sweep, size, attention, implementation, batch, context
    ORDER BY median_seconds, chunk
) = 1;

-- Two methods at the same point: `ratio` is how many times as fast the challenger is. The method
-- 'softmax fused' is at each point the fastest softmax that stores no matrix of weights; `fused` says
-- which one that was.
CREATE VIEW speed_ratios AS
-- baseline: What the challenger, or another attention, is compared with.
-- challenger: Method that may be faster.
-- fused: Softmax that was softmax fused, the fastest that stores no matrix; else null.
-- ratio: Seconds of the baseline over seconds of the challenger.
WITH timed AS (
    SELECT *, method AS role FROM speeds WHERE seconds IS NOT NULL
    UNION ALL
    SELECT *, 'softmax fused' FROM speeds
    WHERE attention = 'softmax' AND implementation NOT IN ('', 'no_flash') AND seconds IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY source, setup, kind, sweep, size, batch, passes, context
        ORDER BY seconds, method
    ) = 1
)
SELECT
    source, setup, kind, sweep, size, a.params, a.d_head, batch, passes, context,
    a.role AS challenger, b.role AS baseline, b.seconds / a.seconds AS ratio,
    CASE 'softmax fused' WHEN b.role THEN b.method WHEN a.role THEN a.method END AS fused
FROM timed a JOIN timed b USING (source, setup, kind, sweep, size, batch, passes, context)
WHERE a.role <> b.role;

-- What each setup reached at best: bytes per second of a copy, read and written, and FLOP/s of a
-- square product.
CREATE VIEW ceilings AS
-- copy_bytes_per_second: Bytes per second of the best copy, read and written.
-- matmul_flops: FLOP/s of the best product of square matrices.
-- started: When the first of them was measured, UTC, ISO 8601.
SELECT
    setup, device, any_value(driver_version) AS driver_version, any_value(peak_flops) AS peak_flops,
    max(2 * context / seconds) FILTER (attention = 'copy') AS copy_bytes_per_second,
    max(2 * context::DOUBLE ** 3 / seconds) FILTER (attention = 'matmul') AS matmul_flops,
    min(started) AS started
FROM speeds WHERE kind = 'time_ceiling' GROUP BY setup, device;

-- One row per implementation and shape of a layer. The floor is the time to move q, k, v, y and one
-- float32 per row once, and with gradients q, k, v, dy, dq, dk, dv and that float32, at the measured
-- bandwidth of a copy; `floor_fraction` is its share of the measured time.
CREATE VIEW kernel_times AS
-- floor_bytes: Bytes per token and head that a pass must move: q, k, v, y and one float32 once,
--   with gradients also q, k, v, dy, dq, dk, dv and that float32.
-- floor_fraction: Share of the time that moving these bytes at the speed of a copy takes.
-- kind: Attention whose layer was measured.
-- ns_per_token_head: Nanoseconds per token and head, median.
-- vector_bytes: Bytes of one vector of a head.
SELECT
    s.source, s.setup, s.device, s.attention AS kind, s.implementation, s.passes, s.dtype, s.batch,
    s.n_head, s.context, s.d_head, s.repeats, s.captured, s.median_seconds, s.least_seconds,
    s.most_seconds, s.peak_memory_bytes, s.status, s.message,
    1e9 * s.median_seconds / (s.batch * s.context * s.n_head) AS ns_per_token_head,
    s.d_head * CASE WHEN s.dtype = 'float32' THEN 4 ELSE 2 END AS vector_bytes,
    4 * vector_bytes + 4 + CASE WHEN s.passes = 'forward+backward' THEN 7 * vector_bytes + 4 ELSE 0 END AS floor_bytes,
    1e9 * floor_bytes / c.copy_bytes_per_second / ns_per_token_head AS floor_fraction
FROM speeds s LEFT JOIN ceilings c USING (setup, device)
WHERE s.kind = 'time_layer';

-- Where the faster of two ways changes as contexts grow, one row per pair, size and setup, and per
-- batch of sampling: other setups are never compared. Steps have one batch per context, from `batch`
-- to `most_batch`. `least_ratio` and `most_ratio` are the extremes of
-- baseline over challenger at common contexts. `context` is where both take the same time in the last
-- change, on straight lines in logarithms between its neighbours `low` and `high`. A tie is not
-- faster. Status of the challenger: faster `always`, `never`, `from` or `until` the one change, or
-- `several` changes.
CREATE VIEW crossings AS
-- context: Tokens at which both take the same time in the last change; null if the faster one never
--   changes.
-- high: First context after the last change.
-- least_ratio: Least of seconds of the baseline over seconds of the challenger.
-- longest: Longest context that both were measured at.
-- low: Last context before the last change.
-- most_batch: Sequences at once at the context that has most.
-- most_ratio: Most of the same ratio.
-- shortest: Shortest context that both were measured at.
-- status: When the challenger is faster: always, never, from or until the one change, or several
--   changes.
WITH pairs AS (
    FROM (VALUES
        ('time_step', 'linear state_parallel', 'softmax fused'),
        ('time_step', 'linear state_parallel', 'softmax no_flash'),
        ('time_step', 'linear state_parallel', 'linear attention_parallel'),
        ('time_step', 'linear state_parallel', 'linear attention_parallel_no_flash'),
        ('time_step', 'linear state', 'linear attention'),
        ('time_step', 'linear chunked', 'softmax fused'),
        ('time_step', 'linear chunked', 'linear attention_parallel'),
        ('time_step', 'linear chunked', 'linear state_parallel'),
        ('time_decode', 'linear', 'softmax')
    ) AS pairs (kind, challenger, baseline)
    UNION
    -- Every other attention against the fastest forms of these two, and against each other.
    SELECT kind, challenger, baseline FROM speed_ratios
    WHERE kind IN ('time_step', 'time_decode')
        AND split_part(challenger, ' ', 1) NOT IN ('softmax', 'linear')
        AND (
            baseline IN ('softmax', 'softmax fused', 'linear', 'linear chunked')
            OR split_part(baseline, ' ', 1) NOT IN ('softmax', 'linear')
            AND split_part(challenger, ' ', 1) > split_part(baseline, ' ', 1)
        )
),
compared AS (
    SELECT
        r.*,
        CASE WHEN kind = 'time_decode' THEN batch END AS series_batch,
        ratio > 1 AS faster,
        lag(context) OVER series AS context_before,
        lag(ratio) OVER series AS ratio_before,
        coalesce(faster <> lag(faster) OVER series, false) AS changes
    FROM speed_ratios r JOIN pairs USING (kind, challenger, baseline)
    WINDOW series AS (
        PARTITION BY kind, sweep, size, series_batch, source, setup, challenger, baseline
        ORDER BY context
    )
)
SELECT
    * EXCLUDE (n_changes, last_faster),
    CASE
        WHEN n_changes > 1 THEN 'several'
        WHEN n_changes = 1 THEN CASE WHEN last_faster THEN 'from' ELSE 'until' END
        ELSE CASE WHEN last_faster THEN 'always' ELSE 'never' END
    END AS status
FROM (
    SELECT
        kind, sweep, size, max(params) AS params, min(batch) AS batch, max(batch) AS most_batch,
        source, setup, challenger, baseline,
        string_agg(DISTINCT fused, ' or ' ORDER BY fused) AS fused,
        max_by(
            exp(
                ln(context_before)
                + ln(context / context_before) * ln(ratio_before) / (ln(ratio_before) - ln(ratio))
            ),
            context
        ) FILTER (changes) AS context,
        max_by(context_before, compared.context) FILTER (changes) AS low,
        max(compared.context) FILTER (changes) AS high,
        min(compared.context) AS shortest, max(compared.context) AS longest,
        min(ratio) AS least_ratio, max(ratio) AS most_ratio,
        count(*) FILTER (changes) AS n_changes,
        max_by(faster, compared.context) AS last_faster
    FROM compared
    GROUP BY kind, sweep, size, series_batch, source, setup, challenger, baseline
);
