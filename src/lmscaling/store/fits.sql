-- Every number that is fitted to the losses of a study. `fits/tables.py` computes the rows once, when
-- the store is built; report, figures and `Study` read them. `<name>_low` and `<name>_high` are the ends
-- of the 95 % interval of `<name>`: infinite where an end is open, null where there is no interval.

CREATE TEMP TABLE any_fit (
    -- source: measured, or published for runs of others.
    -- attention: Label of the attention.
    -- size: Name of the size.
    -- context: Training context, tokens.
    -- status: Outcome of the fit.
    -- why: The status in words.
    -- assumed_sd: Standard deviation between seeds, nats, that the ranges of this row assume because none
    --   was measured; null where they are 95 % intervals.
    source VARCHAR, attention VARCHAR, size VARCHAR, context BIGINT, status VARCHAR, why VARCHAR,
    assumed_sd DOUBLE
);

CREATE TEMP TABLE any_pair AS
-- reference: What the attention is compared with.
-- in_order: The reference is the baseline or, of two others, the one that comes first; every pair has a
--   row in the other order, too.
-- with_baseline: The reference is the baseline.
-- seeds: Seeds that both have.
-- sd: Scatter of the gap of a pair of runs, nats.
-- sd_of: Where the scatter comes from.
-- basis: measured with seeds of the cell, pooled from other cells, or assumed.
-- degrees: Degrees of freedom of the scatter, infinite if it is assumed.
SELECT *, unnest(NULL::STRUCT(
    reference VARCHAR, in_order BOOLEAN, with_baseline BOOLEAN, seeds INTEGER, sd DOUBLE, sd_of VARCHAR,
    basis VARCHAR, degrees DOUBLE
)) FROM any_fit;

CREATE TEMP TABLE any_gap AS
-- gap: Loss of the attention minus that of the reference, nats per token.
-- p: Of a gap of 0, corrected for the number of tests (Holm); null if not tested.
-- tests: Gaps for which p is corrected, those of the same kind of pair of the source.
SELECT *, unnest(NULL::STRUCT(gap DOUBLE, gap_low DOUBLE, gap_high DOUBLE, p DOUBLE, tests INTEGER))
FROM any_pair;

-- Final losses compared seed by seed; a row without size and context is the mean over cells.
CREATE TABLE gaps AS
-- cells: Cells that were averaged.
-- needed: Seeds that find a gap of this size with a probability of 80 %.
-- failed: Runs of the attention that diverged or exploded, in these cells.
-- ended: Those that failed or are done.
-- failed_share: Of those that ended, with its exact binomial interval.
SELECT *, unnest(NULL::STRUCT(
    cells INTEGER, needed INTEGER, failed INTEGER, ended INTEGER, failed_share DOUBLE,
    failed_share_low DOUBLE, failed_share_high DOUBLE
)) FROM any_gap;

-- Losses of curves compared after as much as both have spent, against the baseline.
CREATE TABLE curve_gaps AS
-- axis: updates, flops or hours.
-- spent: Where the shorter curve ends, in the unit of the axis.
SELECT *, unnest(NULL::STRUCT(axis VARCHAR, spent DOUBLE)) FROM any_gap;

-- What the reference spends over what the attention spends until both have the same loss.
CREATE TABLE multiplier_levels AS
-- loss: Compared loss, nats per token.
-- updates: Ratio of updates; above 1 the attention is the better one.
-- flops: Ratio of counted FLOPs, null if they are unknown.
-- hours: Ratio of productive hours.
-- speed: Updates of the attention per update of the reference in the same time.
SELECT *, unnest(NULL::STRUCT(
    loss DOUBLE, updates DOUBLE, updates_low DOUBLE, updates_high DOUBLE,
    flops DOUBLE, flops_low DOUBLE, flops_high DOUBLE,
    hours DOUBLE, hours_low DOUBLE, hours_high DOUBLE, speed DOUBLE
)) FROM any_pair;

-- The level of the lowest loss that both reach, or the reason why there is none.
CREATE TABLE multipliers AS FROM multiplier_levels;

-- The last crossing of the losses of two attentions along each axis.
CREATE TABLE loss_crossings AS
-- axis: updates, flops or hours.
-- crossing: In the unit of the axis.
-- times: Number of crossings.
-- ahead: Which of both has the lower loss at the end.
-- first: Where the compared range begins, in the unit of the axis.
-- last: Where it ends.
-- p: Of a gap of one sign throughout, corrected for the number of rows (Holm).
SELECT *, unnest(NULL::STRUCT(
    axis VARCHAR, crossing DOUBLE, crossing_low DOUBLE, crossing_high DOUBLE,
    times INTEGER, ahead VARCHAR,
    first DOUBLE, last DOUBLE, p DOUBLE
)) FROM any_pair;

CREATE TEMP TABLE any_law AS
-- schedule: Learning rate of the fitted losses: decayed, constant, or unknown of published runs. Laws of
--   each are fitted apart.
-- losses: Which losses were fitted.
SELECT *, unnest(NULL::STRUCT(schedule VARCHAR, losses VARCHAR)) FROM any_fit;

CREATE TEMP TABLE any_curve AS
-- lack: p-value of the test of lack of fit.
-- without: The run that moves the result most.
-- moved: The result without that run.
-- excluded: Runs that were not fitted, and why.
-- curve_x: Places of the fitted curve, for drawing.
-- curve: The fitted losses there, nats per token.
SELECT *, unnest(NULL::STRUCT(
    lack DOUBLE, without VARCHAR, moved DOUBLE, excluded VARCHAR, curve_x DOUBLE[], curve DOUBLE[]
)) FROM any_law;

CREATE TEMP TABLE any_surface AS
-- E: Irreducible loss, nats per token.
-- A: Coefficient of N, parameters without embeddings.
-- B: Coefficient of D, training tokens.
-- alpha: Exponent of N.
-- beta: Exponent of D.
-- a_opt: Exponent of the best size, N ~ C^a_opt with C = 6 N D.
-- g: Interaction of N and D; null in the sum.
SELECT * EXCLUDE (size), unnest(NULL::STRUCT(
    E DOUBLE, E_low DOUBLE, E_high DOUBLE, A DOUBLE, A_low DOUBLE, A_high DOUBLE,
    B DOUBLE, B_low DOUBLE, B_high DOUBLE, alpha DOUBLE, alpha_low DOUBLE, alpha_high DOUBLE,
    beta DOUBLE, beta_low DOUBLE, beta_high DOUBLE, a_opt DOUBLE, a_opt_low DOUBLE, a_opt_high DOUBLE,
    g DOUBLE, g_low DOUBLE, g_high DOUBLE
)) FROM any_law;

-- L(N, D) = E + A / N^alpha + B / D^beta, or with an interaction
-- L(N, D) = E + ((A / N^alpha)^(1/g) + (B / D^beta)^(1/g))^g.
CREATE TABLE surfaces AS
-- points: Fitted losses.
-- runs: Runs that they are of.
-- farther: Expected loss at four times the largest N and D, nats per token; its interval has the error
--   that the form made where the largest size and compute were left out.
-- tests: Of the sum.
-- drawn: E, A, B, alpha, beta and g of the drawn curve, also where the runs determine none of them.
SELECT *, unnest(NULL::STRUCT(
    points INTEGER, runs INTEGER, farther DOUBLE, farther_low DOUBLE, farther_high DOUBLE,
    tests VARCHAR, drawn DOUBLE[]
)) FROM any_surface;

-- The sum and the form with interaction, of surfaces that have both.
CREATE TABLE surface_forms AS
-- form: sum, or with g.
-- which: kept, beside, or refused.
SELECT *, unnest(NULL::STRUCT(form VARCHAR, which VARCHAR)) FROM any_surface;

-- Exponents with other parameters counted in N.
CREATE TABLE surface_conventions AS
-- convention: Parameters counted in N.
SELECT *, unnest(NULL::STRUCT(convention VARCHAR)) FROM any_surface;

-- Surfaces without a run: the most influential one, and each that lies too far from the others.
CREATE TABLE surface_influence AS
-- run: Size and seed.
-- deviation: Mean residual of the run, in standard errors.
-- is_far: It lies farther than chance explains, 5 % for any run of a surface.
SELECT *, unnest(NULL::STRUCT(run VARCHAR, deviation DOUBLE, is_far BOOLEAN)) FROM any_surface;

-- What a surface predicts of the largest size or the largest compute, which it was not fitted to.
CREATE TABLE held_out AS
-- by: What was left out, size or compute.
-- beyond: Parameters, or FLOPs, from which on it was.
-- places: Places that were predicted.
-- rms: Root-mean-square error, nats per token.
-- worst: Largest error, nats per token.
-- skill: 1 minus the error over that of the better of two baselines.
-- loss: Measured at the place with the largest compute, nats per token.
-- predicted: Predicted there, with its simultaneous interval.
SELECT * EXCLUDE (size), unnest(NULL::STRUCT(
    "by" VARCHAR, beyond DOUBLE, places INTEGER, rms DOUBLE, worst DOUBLE, skill DOUBLE, loss DOUBLE,
    predicted DOUBLE, predicted_low DOUBLE, predicted_high DOUBLE
)) FROM any_law;

-- L(t) = E + k t^-gamma, of each attention.
CREATE TABLE time_laws AS
-- unit: Of t: hours, flops or updates.
-- E: Loss that this form approaches, nats per token; another form through the same points has another.
-- k: Coefficient of t.
-- gamma: Exponent of t, of this form.
-- curve_lower: Lower ends of the intervals along the curve, nats per token.
-- curve_upper: Upper ends.
SELECT *, unnest(NULL::STRUCT(
    unit VARCHAR, E DOUBLE, k DOUBLE, gamma DOUBLE,
    curve_lower DOUBLE[], curve_upper DOUBLE[]
)) FROM any_curve;

-- The best size at each budget t, and the law N* = G t^p of its growth.
CREATE TABLE best_sizes AS
-- budget: What a run may spend, in unit.
-- unit: hours, flops or updates.
-- best: Parameters without embeddings.
-- best_assumed: Standard deviation that the range of the best size assumes, nats.
-- loss: Fitted loss of the best size, nats per token.
-- G: Best size at budget 1.
-- p: Exponent of the growth.
-- p_assumed: Standard deviation that the range of p assumes, nats.
-- law_status: Outcome of the fit of G and p.
-- law_why: The same in words.
-- law_lack: p-value of its test of lack of fit.
SELECT * EXCLUDE (size), unnest(NULL::STRUCT(
    budget DOUBLE, unit VARCHAR, best DOUBLE, best_low DOUBLE, best_high DOUBLE, best_assumed DOUBLE,
    loss DOUBLE, G DOUBLE, p DOUBLE, p_low DOUBLE, p_high DOUBLE, p_assumed DOUBLE,
    law_status VARCHAR, law_why VARCHAR, law_lack DOUBLE
)) FROM any_curve;

-- The compute-optimal size N* = G C^a of budgets C in FLOPs, by the approaches of Hoffmann et al. 2022.
CREATE TABLE optimal_sizes AS
-- approach: 1, the lowest of all curves at each compute; 2, the minimum at each budget; 3, the surface.
-- a: Exponent of the best size, parameters without embeddings; approach 1 has no interval.
-- compute: The largest budget, FLOPs.
-- best: Best size at that compute.
SELECT * EXCLUDE (size), unnest(NULL::STRUCT(
    approach INTEGER, a DOUBLE, a_low DOUBLE, a_high DOUBLE, compute DOUBLE, best DOUBLE
)) FROM any_law;

-- The best training context of each size.
CREATE TABLE best_contexts AS
-- best: Tokens.
-- best_assumed: Standard deviation that the range of the best context assumes, nats.
-- loss: Fitted loss at the best context, nats per token.
-- lowest: The tried context with the lowest loss.
SELECT * EXCLUDE (context), unnest(NULL::STRUCT(
    best DOUBLE, best_low DOUBLE, best_high DOUBLE, best_assumed DOUBLE, loss DOUBLE, lowest DOUBLE
)) FROM any_curve;

-- The best learning rate of each attention, size and context.
CREATE TABLE best_rates AS
-- tried: Rates that are done with every seed.
-- rate: Peak, per update.
-- rate_assumed: Standard deviation that the range of the rate assumes, nats.
-- scale: The rate over that of the study.
-- loss: Fitted loss at the best rate, nats per token.
-- gain: Loss at the rate of the study minus that at the best one, nats per token.
SELECT *, unnest(NULL::STRUCT(
    tried INTEGER, rate DOUBLE, rate_low DOUBLE, rate_high DOUBLE, rate_assumed DOUBLE, scale DOUBLE,
    loss DOUBLE, gain DOUBLE
)) FROM any_fit;
