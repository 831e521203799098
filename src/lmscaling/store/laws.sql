-- Views that laws of loss are fitted to.

-- What a law needs of each run. Budgets are in what they count: hours, FLOPs, else updates.
CREATE VIEW law_runs AS
-- own_budget: What the run may spend, in unit; of a branch what its trunk may. Null of updates that are
--   the same for all runs of the study.
-- params_positions: Parameters of learned positions; they depend on the context.
-- split: Tokens that its loss is measured on: validation, or train for published runs.
-- unit: What the budget counts: hours, flops or updates.
SELECT
    source, run, trunk, attention, baseline, size, context, seed, rung, schedule, status, params,
    params_total, flops_per_token, final_train_loss,
    CASE WHEN source = 'published' THEN 'train' ELSE 'validation' END AS split,
    CASE WHEN positions = 'learned' THEN context * d_model ELSE 0 END AS params_positions,
    CASE
        WHEN budget_hours IS NOT NULL THEN 'hours' WHEN rung_unit = 'flops' THEN 'flops' ELSE 'updates'
    END AS unit,
    CASE
        WHEN unit = 'hours' THEN budget_hours WHEN unit = 'flops' THEN rung_amount
        WHEN rung IS NOT NULL
            THEN ceil(budget_amount / CASE budget_unit WHEN 'tokens' THEN update_tokens ELSE 1 END)
    END AS own_budget
FROM known;

-- The losses along each run that a law may use: every validation of the cells in `final`, which has no
-- failed run, and the curves of published runs. `spent` counts what the budget counts.
CREATE VIEW law_curves AS
-- budget: What the run may spend, in unit.
-- loss: Mean cross-entropy, nats per token; see split where there is one.
-- params_positions: Parameters of learned positions; they depend on the context.
-- spent: What was spent until here, in unit.
-- unit: What the budget counts: hours, flops or updates.
-- updates: Updates done; of a mean over several, their geometric mean.
WITH points AS (
    SELECT run, "update" AS updates, tokens, hours, val_loss AS loss
    FROM validation WHERE run IN (SELECT run FROM final)
    UNION ALL
    SELECT run, updates, tokens, hours, loss FROM curves WHERE source = 'published'
)
SELECT
    b.* EXCLUDE (own_budget, rung),
    p.* EXCLUDE (run), p.tokens * flops_per_token AS flops,
    CASE unit WHEN 'hours' THEN p.hours WHEN 'flops' THEN p.tokens * flops_per_token ELSE p.updates END AS spent,
    coalesce(own_budget, max(p.updates) OVER (PARTITION BY source)) AS budget
FROM points p JOIN law_runs b USING (run);

-- What laws of loss are fitted to, one row per run and share of the budget. `schedule` is `decayed`
-- at the ends of branches and of runs whose schedule decays the rate, and `constant` where a trunk
-- passes a share, between its losses on a straight line in ln spent; published runs, whose schedule
-- is `unknown`, pass shares as trunks do. A run that is over but spent less than its budget ends at
-- share 1, too, with its own `spent`; one whose rate should still have decayed has no end.
CREATE VIEW law_points AS
-- budget: What the run may spend until its share, in unit.
-- loss: Mean cross-entropy, nats per token, between validations on a straight line in ln spent.
-- schedule: decayed at the end of a branch or of a run whose rate decays, constant where a trunk
--   passes a share, unknown of published runs.
-- trunk: Run that a branch starts from; of a trunk its own run.
-- updates: Updates done; of a mean over several, their geometric mean.
WITH along AS MATERIALIZED (FROM law_curves),
steps AS (
    SELECT
        *, lag(loss) OVER way AS loss_before, lag(spent) OVER way AS spent_before,
        lag(updates) OVER way AS updates_before, lag(hours) OVER way AS hours_before,
        lead(run) OVER way IS NULL AS is_last
    FROM along
    WINDOW way AS (PARTITION BY run ORDER BY spent, updates)
),
passed AS (
    SELECT
        * EXCLUDE (budget, updates, tokens, hours, flops, spent, loss),
        share * steps.budget AS budget, share * steps.budget AS spent,
        ln(share * steps.budget / spent_before) / ln(steps.spent / spent_before) AS part,
        updates_before * (updates / updates_before) ** part AS updates,
        tokens / steps.updates * updates_before * (steps.updates / updates_before) ** part AS tokens,
        hours_before * (hours / hours_before) ** part AS hours,
        loss_before + part * (loss - loss_before) AS loss
    FROM steps, (FROM (VALUES (1 / 16), (1 / 8), (1 / 4), (1 / 2), (1)) AS shares (share))
    WHERE share * steps.budget > spent_before AND share * steps.budget <= steps.spent
),
ended AS (
    SELECT
        * REPLACE (coalesce(final_train_loss, loss) AS loss), 1 AS share
    FROM steps
    WHERE is_last AND CASE
        WHEN schedule IN ('constant', 'unknown') THEN status IN ('done', 'out_of_tokens') AND spent < budget
        ELSE status = 'done'
    END
),
decayed AS (
    SELECT
        t.*, e.run, e.share, e."update" AS updates, e.tokens, e.hours, e.val_loss AS loss,
        CASE unit WHEN 'hours' THEN e.hours WHEN 'flops' THEN e.flops ELSE e."update" END AS spent
    FROM endpoints e JOIN (
        SELECT DISTINCT ON (run) * EXCLUDE (run, updates, tokens, hours, flops, loss, spent)
        FROM along
    ) t USING (trunk)
),
-- Runs of the smaller budgets of an axis, each at its best rate.
smaller AS (
    SELECT
        b.* EXCLUDE (own_budget, rung), own_budget AS budget, 1 AS share, e."update" AS updates,
        e.tokens, e.hours, e.val_loss AS loss,
        CASE unit WHEN 'hours' THEN e.hours WHEN 'flops' THEN e.flops ELSE e."update" END AS spent
    FROM endpoints e JOIN law_runs b USING (run)
    WHERE e.trunk = e.run
    QUALIFY row_number() OVER (
        PARTITION BY b.attention, b.size, b.context, b.seed, rung ORDER BY e.val_loss, run
    ) = 1
)
SELECT
    source, schedule, split, attention, size, context, seed, trunk, params, params_total,
    params_positions, unit, share, budget, updates, tokens, hours, spent,
    tokens * flops_per_token AS flops, loss
FROM (
    FROM passed WHERE schedule IN ('constant', 'unknown')
    UNION ALL BY NAME
    SELECT * REPLACE (
        CASE WHEN schedule IN ('constant', 'unknown') THEN schedule ELSE 'decayed' END AS schedule
    )
    FROM ended
    UNION ALL BY NAME
    SELECT * REPLACE (share * budget AS budget, 'decayed' AS schedule) FROM decayed
    UNION ALL BY NAME
    SELECT * REPLACE ('decayed' AS schedule) FROM smaller
);

-- What figures of laws draw: our runs, or published ones where none of ours is measured. Laws of both
-- would cover each other in a figure; the tables list both.
CREATE VIEW drawn_points AS
FROM law_points QUALIFY source = min(source) OVER ();

-- The same of the losses that a multiplier compares.
CREATE VIEW drawn_curves AS
FROM law_curves WHERE schedule IN ('constant', 'unknown') QUALIFY source = min(source) OVER ();
