-- One row per cell and branch of the study, planned or skipped; published runs are added later.
CREATE TABLE cells AS
-- source: measured, or published for a run that others trained.
-- run: Cell name and hash.
-- name: Name of the cell, for people.
-- attention: File stem in attention/, or the label of a row of axes.attention; with (code ...) if its
--   runs were trained by several versions of its code and this one not by the newest.
-- baseline: The attention that the others of its study are compared with.
-- size: Row under sizes:.
-- context: Tokens of a sequence.
-- seed: Seed of weights and data order.
-- lr_scale: Factor of the size's learning rate.
-- lr: Peak learning rate.
-- branch: Share of the budget at which a decayed branch ends, or of the largest budget of a run whose
--   budget is a smaller one; null of a trunk.
-- trunk: Run that a branch starts from; of other runs their own.
-- d_model: Width of the model.
-- n_layer: Blocks of the model.
-- positions: How the model gets positions: learned, rope or none.
-- masked: Whether attention does not cross documents.
-- task: Row under tasks:; null of a cell of the grid.
-- dataset: Row under datasets:.
-- kind: Kind of the dataset; null of published runs.
-- encoding: Name of the encoding of its tokens.
-- schedule: Kind of the learning-rate schedule, such as constant; unknown of published runs.
-- update_tokens: Tokens per optimizer update, over all devices.
-- budget: What the run may spend, as the study file says it.
-- budget_amount: The same as a number, in budget_unit.
-- budget_unit: hours, minutes or seconds of productive time, updates or tokens.
-- rung: The budget as the study says it, on an axis of budgets or if it depends on the model; else null.
-- rung_amount: The same as a number, in rung_unit.
-- rung_unit: flops, tokens per parameter or per non-embedding parameter, or a unit of budget_unit.
-- skipped: Why the cell is not trained; null if it is.
-- present_code: Fingerprint of the present source of the attention; null of published runs.
-- present_program: Fingerprint of the present source of the model, of training, and of what they and
--   the attention import; null of published runs.
-- place: Number of the cell in the study's order, from 0; null of published runs.
SELECT
    'measured' AS source,
    cell ->> 'run' AS run,
    cell ->> 'name' AS name,
    cell ->> 'attention' AS attention,
    cell ->> 'baseline' AS baseline,
    cell ->> 'size' AS size,
    (cell ->> 'context')::BIGINT AS context,
    (cell ->> 'seed')::BIGINT AS seed,
    (cell ->> 'lr_scale')::DOUBLE AS lr_scale,
    (cell ->> 'lr')::DOUBLE AS lr,
    (cell ->> 'branch')::DOUBLE AS branch,
    cell ->> 'trunk' AS trunk,
    (cell ->> '$.model.d_model')::BIGINT AS d_model,
    (cell ->> '$.model.n_layer')::BIGINT AS n_layer,
    cell ->> 'position' AS positions,
    (cell ->> 'masked')::BOOLEAN AS masked,
    cell ->> 'task' AS task,
    cell ->> '$.data.dataset' AS dataset,
    nullif(cell ->> '$.data.source.kind', '') AS kind,
    cell ->> '$.data.encoding' AS encoding,
    cell ->> '$.schedule.kind' AS schedule,
    (cell ->> 'update_tokens')::BIGINT AS update_tokens,
    cell ->> 'budget' AS budget,
    (cell ->> 'budget_amount')::DOUBLE AS budget_amount,
    cell ->> 'budget_unit' AS budget_unit,
    cell ->> 'rung' AS rung,
    (cell ->> 'rung_amount')::DOUBLE AS rung_amount,
    cell ->> 'rung_unit' AS rung_unit,
    cell ->> 'skipped' AS skipped,
    cell ->> 'present_code' AS present_code,
    cell ->> 'present_program' AS present_program,
    (cell ->> 'place')::BIGINT AS place
FROM cell_rows;
