-- Views of tasks: runs on data of their own, by row under `tasks:`.

-- One row per cell of a task, finished or not.
CREATE VIEW tasks AS
SELECT * FROM every WHERE task IS NOT NULL;

-- Every surviving validation of the cells of tasks. `bits` is the loss in bits per target.
CREATE VIEW task_validations AS
-- bits: The validation loss in bits per target.
-- epoch: Pass over the training data, from 1.
-- train_seconds: Seconds of productive time, see updates.
-- update: Updates done.
SELECT
    run, t.name, t.task, t.kind, t.dataset, t.attention, t.baseline, t.size, t.context, t.seed,
    t.lr_scale, t.d_model, t.n_layer, t.params, t.state_bytes, t.status, t.place,
    v.update, v.epoch, v.tokens, v.train_seconds, v.val_loss, v.val_loss / ln(2) AS bits, v.groups
FROM validations v JOIN tasks t USING (run)
WHERE v.surviving;

-- The same by group of targets, as the numbers of pairs of recall: `pairs` is NULL of other groups.
CREATE VIEW task_groups AS
-- accuracy: Share of the targets of the group that the model predicts; they are those of the last
--   validation.
-- group: Group of targets: of recall the number of pairs of their sequence.
-- loss: Mean cross-entropy, nats per token; see split where there is one.
-- pairs: Key-value pairs of the sequence; null of other tasks than recall.
-- targets: Number of targets in the group.
SELECT
    * EXCLUDE (groups),
    try_cast("group" AS BIGINT) AS pairs,
    json_extract(groups, '$."' || "group" || '".accuracy')::DOUBLE AS accuracy,
    json_extract(groups, '$."' || "group" || '".loss')::DOUBLE AS loss,
    json_extract(groups, '$."' || "group" || '".targets')::BIGINT AS targets
FROM (SELECT *, unnest(json_keys(groups)) AS "group" FROM task_validations WHERE groups IS NOT NULL);

-- Of each task, attention, size and context the factor of the learning rate whose runs end best, by the
-- mean over seeds. A run that failed counts as infinite, one that has not ended not at all.
CREATE VIEW task_rates AS
-- seeds: Runs of which the row is the mean.
SELECT task, attention, size, context, lr_scale, count(*) AS seeds
FROM (
    SELECT
        t.*,
        CASE
            WHEN t.status IN ('diverged', 'exploded', 'oom') THEN 'infinity'::DOUBLE
            WHEN t.status IN ('done', 'out_of_tokens') THEN val_loss
        END AS loss
    FROM tasks t LEFT JOIN (
        SELECT run, arg_max(val_loss, "update") AS val_loss FROM task_validations GROUP BY run
    ) USING (run)
)
WHERE loss IS NOT NULL
GROUP BY task, attention, size, context, lr_scale
QUALIFY row_number() OVER (
    PARTITION BY task, attention, size, context
    ORDER BY isinf(avg(loss)), count(*) DESC, avg(loss), lr_scale
) = 1;

-- The score of each finished run at the best factor of its learning rate: the accuracy of the hardest
-- group of targets, the bits of an image's pixel, else the loss in nats. A run has not `learned` if it
-- recalls the fewest pairs less than twice as often as by guessing one of the values of its sequence;
-- of two or three pairs, less often than halfway between guessing and always.
CREATE VIEW task_scores AS
-- learned: False if the run recalls the fewest pairs less than twice as often as by guessing, or of
--   up to three pairs less often than halfway between guessing and always.
-- measure: What the score is: accuracy, bits, or loss in nats.
-- score: Accuracy of the hardest group, bits per pixel, or loss in nats.
WITH ended AS (
    SELECT * FROM task_validations SEMI JOIN task_rates USING (task, attention, size, context, lr_scale)
    WHERE status IN ('done', 'out_of_tokens')
    QUALIFY row_number() OVER (PARTITION BY run ORDER BY "update" DESC) = 1
),
hardest AS (
    SELECT
        run, "update", arg_max("group", coalesce(pairs, 0)) AS "group",
        arg_max(accuracy, coalesce(pairs, 0)) AS accuracy,
        min(pairs) FILTER (pairs > 1) AS fewest, arg_min(accuracy, pairs) FILTER (pairs > 1) AS easiest
    FROM task_groups GROUP BY ALL
)
SELECT
    e.* EXCLUDE (groups), h."group", h.accuracy,
    CASE WHEN accuracy IS NOT NULL THEN 'accuracy' WHEN kind = 'images' THEN 'bits' ELSE 'loss' END AS measure,
    CASE measure WHEN 'accuracy' THEN accuracy WHEN 'bits' THEN bits ELSE val_loss END AS score,
    coalesce(easiest >= least(2 / fewest, (1 + 1 / fewest) / 2), true) AS learned
FROM ended e LEFT JOIN hardest h USING (run, "update");
