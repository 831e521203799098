"""The surface L(N, D): known ones come back, one run decides nothing, and doubt has a name."""

import csv
from dataclasses import replace
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import coverage_surfaces
import numpy as np
import pytest
from conftest import ROOT
from coverage import each
from coverage_surfaces import FAMILIES, Family, Study, huber, log_sum_exp, simulate
from hypothesis import given, settings
from hypothesis import strategies as st
from test_uncertainty import contained

from lmscaling.fits import holdout, inference, loss_surface, points, student
from lmscaling.fits.points import Group
from lmscaling.fits.student import Design
from lmscaling.fits.uncertainty import codes

SIZES = np.array([19e6, 85e6, 302e6, 708e6])
TOKENS = np.array([5e9, 1e10, 2e10, 4e10, 8e10])
N, D = (axis.ravel() for axis in np.meshgrid(SIZES, TOKENS, indexing="ij"))
TRUTH = {"E": 1.8, "A": 400.0, "B": 1500.0, "alpha": 0.34, "beta": 0.30, "a": 0.30 / 0.64}


def surface(N: Any = N, D: Any = D, E=1.8, A=400.0, B=1500.0, alpha=0.34, beta=0.30, a=None, g=1.0):
    return E + ((A * N**-alpha) ** (1 / g) + (B * D**-beta) ** (1 / g)) ** g


def study(seeds: int = 3, g: float = 1.0, seed: int = 0, **noise: float) -> dict[str, Any]:
    """Losses of every size, number of tokens and seed, with labels of runs and cells."""
    rng = np.random.default_rng(seed)
    run_sd, point_sd = noise.get("run_sd", 0.01), noise.get("point_sd", 0.003)
    size = np.repeat(np.arange(len(N)) // len(TOKENS), seeds)
    which = np.tile(np.arange(seeds), len(N))
    n, d = np.repeat(N, seeds), np.repeat(D, seeds)
    effect = rng.normal(0, run_sd, (len(SIZES), seeds))
    loss = surface(n, d, g=g) + effect[size, which] + rng.normal(0, point_sd, len(n))
    return {
        "N": n, "D": d, "loss": loss, "cell": size.tolist(),
        "trunk": list(zip(size.tolist(), which.tolist(), strict=True)),
    }  # fmt: skip


@pytest.mark.parametrize("truth", [
    {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28},  # Hoffmann et al.
    {"E": 0.5, "A": 20.0, "B": 1e5, "alpha": 0.1, "beta": 0.6},
])  # fmt: skip
def test_a_known_surface_is_found_and_the_way_of_hoffmann_finds_it_too(truth):
    noise = np.random.default_rng(0).normal(0, 1e-7, len(N))
    found: Any = loss_surface.fit(N, D, surface(**truth) + noise)
    assert found.status == "fitted"
    known = truth | {"a": truth["beta"] / (truth["alpha"] + truth["beta"])}
    assert found.values == pytest.approx(known, rel=1e-3)
    assert found.loss(1e9, 1e11) == pytest.approx(surface(1e9, 1e11, **truth), abs=1e-4)
    points = np.arange(len(N))
    design = Design.from_points(N, D, points, points)
    _, _, e, alpha, beta = huber(design, surface(**truth) + noise)
    theirs = {"E": np.exp(e), "alpha": alpha, "beta": beta}
    assert theirs == pytest.approx({name: truth[name] for name in theirs}, rel=1e-3)


def test_the_way_of_hoffmann_has_the_slopes_of_finite_differences():
    theta = np.array([1.0, 2.0, 0.5, 0.4, 0.3])
    x, z = np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.5, 0.3])
    _, slope = log_sum_exp(theta, x, z)
    for k, step in enumerate(1e-6 * np.eye(5)):
        high, low = (log_sum_exp(theta + sign * step, x, z)[0] for sign in (1, -1))
        assert slope[:, k] == pytest.approx((high - low) / 2e-6, abs=1e-8)


@settings(max_examples=6)
@given(st.sampled_from([1e-6, 0.5, 20.0]), st.sampled_from([1e-9, 2.0]), st.floats(-0.5, 1))
def test_units_move_no_exponent_and_a_constant_moves_E_alone(unit, tokens, shift):
    made = study(seeds=3)
    plain = loss_surface.fit(**made)
    moved = made | {"N": unit * made["N"], "D": tokens * made["D"], "loss": made["loss"] + shift}
    found = loss_surface.fit(**moved)
    assert found.status == plain.status == "fitted"
    for name in ("alpha", "beta", "a"):
        assert found.values[name] == pytest.approx(plain.values[name], rel=1e-3)
        assert found.intervals[name].width == pytest.approx(plain.intervals[name].width, rel=0.01)
        assert plain.values[name] in plain.intervals[name]
    assert found.values["E"] == pytest.approx(plain.values["E"] + shift, abs=2e-3)
    for name, exponent, scale in (("A", "alpha", unit), ("B", "beta", tokens)):
        expected = plain.values[name] * scale ** found.values[exponent]
        assert found.values[name] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("convention", ["non_embedding", "total", "total_less_positions"])
def test_N_is_the_count_of_parameters_that_was_asked_for(convention):
    """The exponent of losses that follow this count comes back, to their noise."""
    made = study(seeds=3)
    counts = {"params": made["N"], "total": made["N"] + 5e7 + 3e6, "positions": 3e6}
    counted = {"non_embedding": 0.0, "total": 5.3e7, "total_less_positions": 5e7}[convention]
    loss = made["loss"] + surface(made["N"] + counted, made["D"]) - surface(made["N"], made["D"])
    found = loss_surface.fit_group(group_of(made | {"loss": loss}, **counts), convention)
    assert found.convention == convention
    direct = loss_surface.fit(**made | {"N": made["N"] + counted, "loss": loss})
    assert found.values == pytest.approx(direct.values, rel=1e-6)
    with pytest.raises(ValueError, match="active"):
        loss_surface.fit(N, D, surface(), convention="active")


def scales(made: Study) -> tuple[float, float]:
    noise = student.fit(made.design, made.y_n).noise
    return noise.tau2, noise.sigma2


def test_run_and_point_noise_are_told_apart():
    made, _ = simulate(Family(run_sd=0.02, point_sd=0.003, seeds=5), 30)
    tau2, sigma2 = np.median(each(scales, made), axis=0)
    wide = np.sqrt(inference.normal_variance(student.NU, 5))
    assert wide * np.sqrt(tau2) == pytest.approx(0.003, rel=0.1)
    assert wide * np.sqrt(sigma2) == pytest.approx(0.02, rel=0.1)


def test_a_run_scale_solves_its_equation_for_unequal_runs():
    m = np.array([1, 2, 5, 5, 9])
    between = np.random.default_rng(0).uniform(0.5, 20, 5) * 1e-4
    sigma2 = student.run_scale(between, m, 1e-5, 3.0)
    assert (between / (1e-5 + m * sigma2)).sum() == pytest.approx(3.0)
    assert student.run_scale(0 * between, m, 1e-5, 3.0) == 0


@pytest.mark.parametrize(
    "theta", [[1.8, -0.5, -0.2, 0.35, 0.4, -0.2], [0.5, 0.3, -1.0, 0.8, 0.2, 0.1]]
)
def test_gradients_are_those_of_finite_differences(theta):
    theta, centre = np.array(theta), (16.0, 23.0)
    x, z = np.linspace(-2, 2, 5), np.linspace(1, -3, 5)
    _, slope = student.values(theta, x, z)
    named, gradient = inference.quantities(theta, centre)
    for k, step in enumerate(1e-6 * np.eye(6)):
        high, low = (student.values(theta + sign * step, x, z)[0] for sign in (1, -1))
        assert slope[:, k] == pytest.approx((high - low) / 2e-6, abs=1e-7)
        high, low = (inference.quantities(theta + sign * step, centre)[0] for sign in (1, -1))
        assert gradient[:, k] == pytest.approx((high - low) / 2e-6, abs=1e-6)
    assert named.shape == (len(inference.QUANTITIES),)


def test_one_run_that_went_wrong_hardly_moves_the_exponents_and_is_named():
    clean = study(seeds=3)
    loss = clean["loss"].copy()
    loss[[run == (3, 1) for run in clean["trunk"]]] += 0.15
    before, after = loss_surface.fit(**clean), loss_surface.fit(**clean | {"loss": loss})
    assert after.status == "fitted"
    for name in ("alpha", "beta", "a"):
        assert after.values[name] in before.intervals[name]
        assert TRUTH[name] in after.intervals[name]
    flagged = [one.run for one in after.influence if one.flagged]
    assert flagged == [(3, 1)]
    assert not any(one.flagged for one in before.influence)
    assert len(before.influence) == 12
    first = before.influence[0]  # moves most, to what the exponents are without it
    keep = [run != first.run for run in clean["trunk"]]
    others: Any = {name: list(compress(clean[name], keep)) for name in clean}
    without = loss_surface.fit(**others)
    half = (before.intervals["a"].high or 0) - before.values["a"]
    assert first.without["a"] == pytest.approx(without.values["a"], abs=0.25 * half)
    assert first.moved == max(one.moved for one in before.influence)
    design = Design.from_points(
        clean["N"], clean["D"], codes(clean["trunk"]), np.array(clean["cell"])
    )
    _, _, _, alpha, beta, _ = student.fit(design, loss, robust=False).theta_K
    assert abs(beta / (alpha + beta) - TRUTH["a"]) > 2 * abs(after.values["a"] - TRUTH["a"])


def is_flagged(made: Study) -> bool:
    found = inference.estimate(made.design, made.y_n)
    limit = inference.t_distribution.isf(0.025 / 18, found.degrees - 1)
    return bool((np.abs(inference.deviations(found)) > limit).any())


def test_a_run_is_flagged_in_one_study_of_twenty_if_none_went_wrong():
    assert np.mean(each(is_flagged, simulate(FAMILIES["clean"], 300)[0])) < 0.08


def design_of(family: Family, runs: int | None = None) -> Design:
    """The design of a family, of its last ``runs`` if not of all."""
    made = points_of(family)
    kept = made["trunk"] >= (0 if runs is None else made["trunk"].max() + 1 - runs)
    n, d, run, cell = (made[name][kept] for name in ("N", "D", "trunk", "cell"))
    return Design.from_points(n, d, run - run.min(), cell)


def test_exponents_need_two_seeds_of_every_size_or_ten_sizes():
    assert loss_surface.few_runs(design_of(Family(seeds=1)))
    assert not loss_surface.few_runs(design_of(Family(seeds=2)))
    assert not loss_surface.few_runs(design_of(FAMILIES["many sizes"]))
    assert loss_surface.few_runs(design_of(Family(seeds=3), 16))  # one size keeps one run
    found = loss_surface.fit(**study(seeds=1))
    assert (found.status, found.values, found.intervals) == ("few_runs", {}, {})
    assert found.loss(N, D) == pytest.approx(surface(), abs=0.05)  # the curve is there
    assert len(found.tests) == 1


def test_a_grid_and_one_large_run_have_a_law_without_it_and_a_forecast_of_it():
    made = study(seeds=3)
    large: Any = {"N": 7e9, "D": 1.4e11, "loss": surface(7e9, 1.4e11), "cell": 9, "trunk": "large"}
    more: Any = {name: [*values, large[name]] for name, values in made.items()}
    grid, found = loss_surface.fit(**made), loss_surface.fit(**more)
    assert (found.values, found.lone, grid.lone) == (grid.values, (7e9,), ())
    (place,) = holdout.fit(**more).places
    assert place.loss in place.interval


GADRE = ROOT.parent / "shared" / "inputs" / "field" / "gadre_c4.csv"
"""Losses of 104 runs (Gadre et al. 2024, arXiv:2403.08540); each corpus has one run of 6.9B."""


@pytest.mark.skipif(not GADRE.is_file(), reason=f"needs {GADRE}")
def test_public_grids_foretell_their_large_run_or_have_no_intervals():
    with GADRE.open() as file:
        rows = list(csv.DictReader(file))
    for corpus, is_foretold in (("c4_original", False), ("rpj", True), ("rw_original", True)):
        of = ("params_no_embed", "tokens", "c4_val_loss")
        n, d, loss = np.array([[float(r[x]) for x in of] for r in rows if r["dataset"] == corpus]).T
        law = loss_surface.fit(n, d, loss)
        assert (law.status, law.lone) == ("interaction", (n.max(),))
        held = holdout.fit(n, d, loss)
        assert held.status == ("passed" if is_foretold else "missed")
        assert [place.loss for place in held.places] == [loss[n == n.max()][0]]
        assert abs(held.places[0].error) < 0.12


def test_a_surface_with_interaction_refuses_the_sum_and_comes_back():
    found = loss_surface.fit(**study(seeds=3, g=0.8))
    assert found.status == "interaction"
    assert found.values["g"] == pytest.approx(0.8, abs=0.1)
    assert found.values["beta"] == pytest.approx(0.3, abs=0.03)
    assert "g" not in found.beside
    assert found.beside_intervals == {}  # the refused sum has numbers and no intervals
    assert min(test.p_value for test in found.tests) < 0.01


def test_a_sum_that_is_kept_has_the_interaction_beside_it_and_bands_that_grow_with_their_level():
    found = loss_surface.fit(**study(seeds=3))
    assert found.status == "fitted"
    assert 1 in found.beside_intervals["g"]
    assert found.beside_intervals["beta"].width > found.intervals["beta"].width
    assert [test.numerator for test in found.tests] == [15, 0]  # F against seeds, t of g
    assert len(loss_surface.fit(**study(seeds=2)).tests) == 1  # F needs more degrees than four
    bands = [found.band(1e9, 1e11, level)[0] for level in (0.5, 0.95, 0.99)]
    assert float(found.loss(1e9, 1e11)) in bands[0]
    for inner, outer in pairwise(bands):
        assert contained(inner, outer)
        assert inner.width < outer.width


def test_coverage_of_a_few_dozen_studies():
    """At least 50 of 60: a right interval holds the truth in fewer with a chance of 0.0005."""
    families = {name: FAMILIES[name] for name in ("clean", "one blown", "g .9")}
    for row in coverage_surfaces.surfaces(60, ("ours",), families):
        assert row.refused < 0.1
        assert (row.coverage or 0) >= 50 / 60, row


@pytest.mark.parametrize(("chosen", "status"), [
    (SIZES[0] == N, "too_few"),  # all N equal
    (TOKENS[0] == D, "too_few"),  # all D equal
    (SIZES[1] >= N, "too_few"),  # two sizes: any alpha does
    (np.arange(20) % 5 == np.arange(20) // 5, "too_few"),  # fewer points than parameters
    (np.isin(N, SIZES[:3]) & np.isin(D, TOKENS[:3]), "few_runs"),
    (np.isin(N, SIZES[:3]), "fitted"),
])  # fmt: skip
def test_a_design_that_cannot_tell_has_no_numbers(chosen, status):
    loss = surface() + np.random.default_rng(0).normal(0, 0.001, len(N))
    found = loss_surface.fit(N[chosen], D[chosen], loss[chosen])
    assert found.status == status
    assert (not found.values) == (status != "fitted")


def test_what_no_form_or_more_than_one_surface_describes_has_no_exponents():
    made = study(seeds=3, run_sd=0.002, point_sd=0.001)
    wave = 0.05 * np.sin(3 * np.log(made["N"]))
    found = loss_surface.fit(**made | {"loss": made["loss"] + wave})
    assert (found.status, found.values, found.intervals) == ("refused", {}, {})
    assert found.residuals
    n = np.geomspace(1e7, 1e9, 12)
    found = loss_surface.fit(n, 20 * n, surface(n, 20 * n))
    assert (found.status, found.values) == ("not_unique", {})
    with pytest.raises(ValueError, match="not_unique"):
        found.loss(1e9, 1e10)


@pytest.mark.parametrize(
    ("truth", "status"), [({"E": -0.5}, "no_floor"), ({"alpha": 4.0, "A": 1e29}, "bound")]
)
def test_a_parameter_at_its_bound_has_no_intervals(truth, status):
    loss = surface(**TRUTH | truth) + np.random.default_rng(0).normal(0, 1e-3, len(N))
    found = loss_surface.fit(N, D, loss)
    assert found.status == status
    assert found.intervals == {}


def group_of(made, params, positions=0.0, total=None, schedule="decayed"):
    """A group of points, of which the fit reads N, tokens, losses and labels."""
    one = points.Point(
        source="published", schedule=schedule, split="train", attention="softmax", size="s",
        context=1024, seed=0, trunk="a", params=10, params_total=10, params_positions=0,
        unit="hours", share=1.0, budget=1.0, updates=1.0, tokens=1.0, hours=1.0, spent=1.0,
        flops=None, loss=3.0,
    )  # fmt: skip
    total = params if total is None else total
    rows = zip(params, total, made["D"], made["loss"], made["trunk"], strict=True)
    return Group(tuple(
        one._replace(params=int(n), params_total=int(m), params_positions=int(positions), tokens=d,
                     loss=y, trunk=str(run), size=str(n), seed=run[1])
        for n, m, d, y, run in rows
    ))  # fmt: skip


def test_a_group_of_unknown_schedule_has_no_surface():
    made = study(seeds=3)
    unknown = group_of(made, made["N"], schedule="unknown")
    found = loss_surface.fit_group(unknown)
    assert (found.status, found.values, found.estimate) == ("schedule", {}, None)
    assert holdout.fit_group(unknown, "size").status == "no_surface"
    assert loss_surface.fit_group(group_of(made, made["N"])).status == "fitted"


def points_of(family: Family, seed: int = 0) -> dict[str, Any]:
    """Points of one study of a family."""
    return simulate(family, 1, seed)[0][0].points


def test_245_points_far_from_the_surface_in_places_have_intervals():
    """Where every point is a run the likelihood chooses the degrees of freedom, and points far
    above the others change nothing."""
    made = points_of(coverage_surfaces.MORE["245 points"])
    found = loss_surface.fit(made["N"], made["D"], made["loss"])
    assert found.status == "fitted"
    assert found.nu in student.NUS
    assert found.nu < 3
    assert coverage_surfaces.SURFACE["beta"] in found.intervals["beta"]


def six_sizes(seed: int, noise: float = 1.0) -> dict[str, Any]:
    clean = FAMILIES["clean"]
    return points_of(replace(clean, run_sd=0.01 * noise, point_sd=0.004 * noise), seed)


@pytest.mark.parametrize("by", ["size", "compute"])
def test_a_right_surface_foresees_what_was_left_out_and_one_that_bends_there_does_not(by):
    made = six_sizes(0)
    found: Any = holdout.fit(**made, by=by)
    assert found.status == "passed"
    assert found.skill > 0.5
    beyond = made["N"].max() if by == "size" else (6 * made["N"] * made["D"]).max() / 4
    assert found.beyond == pytest.approx(beyond)
    assert all(place.loss in place.interval for place in found.places)
    assert {place.seeds for place in found.places} == {3}
    known, _ = holdout.split(made["N"], made["D"], by)
    bent = holdout.fit(**made | {"loss": made["loss"] + 0.1 * ~known}, by=by)
    assert (bent.status, bent.surface.status) == ("missed", "fitted")


def test_baselines_are_a_plane_of_logarithms_and_the_nearest_place():
    n, d = np.array([1e7, 1e8, 1e9, 1e7, 1e8]), np.array([1e9, 1e9, 1e9, 1e10, 1e10])
    loss = np.exp(3 - 0.05 * np.log(n) - 0.03 * np.log(d))
    at_n, at_d = np.array([1e9]), np.array([2e10])
    seen = np.exp(3 - 0.05 * np.log(at_n) - 0.03 * np.log(at_d))
    plane, near = holdout.baselines(n, d, loss, at_n, at_d, seen)
    assert plane == pytest.approx(0, abs=1e-9)
    assert near == pytest.approx(loss[4] - seen[0])  # 2.3 and 0.7 away, against 3.0 from the other


def test_two_sizes_predict_no_third_and_a_law_no_better_than_a_baseline_does_not_pass():
    made = six_sizes(0)
    few = made["N"] <= np.unique(made["N"])[2]
    found: Any = holdout.fit(made["N"][few], made["D"][few], made["loss"][few])
    assert (found.status, found.rms, found.skill) == ("no_surface", None, None)
    found = holdout.fit(**six_sizes(4, noise=20.0))  # of runs that differ by 0.2 nats
    assert found.status == "baseline"
    assert found.rms > min(found.baselines)


def real_runs(folder: Path, context: str) -> dict[str, Any]:
    """Runs of other people that nobody tuned for, parameters without embeddings."""
    with folder.joinpath("nxai_2k_8k.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["context"] == context and r["final_val_loss"]]
    tokens = [int(r["steps"]) * float(r["batch"]) * int(context) for r in rows]
    params = [float(r["params"]) - 2 * 50304 * int(r["width"]) for r in rows]
    losses = [float(r["final_val_loss"]) for r in rows]
    return {"N": np.array(params), "D": np.array(tokens), "loss": np.array(losses)}


@pytest.mark.parametrize("context", ["2048", "8192"])
@pytest.mark.parametrize("part", [2, 1.5, 1.2])
def test_larger_budgets_of_real_runs_lie_in_the_intervals_or_there_are_none(
    full_published, context, part
):
    """The error of the fit alone holds 4 to 91 % of them, because the form bends."""
    made = real_runs(full_published, context)
    compute = 6 * made["N"] * made["D"]
    known = compute <= compute.max() / part
    few = {name: values[known] for name, values in made.items()}
    held = [holdout.fit(**few, by=by) for by in ("size", "compute")]
    law: Any = loss_surface.fit(**few)
    if any(one.status == "missed" for one in held):
        return
    inside, beyond = [], {name: values[~known] for name, values in made.items()}
    for N, D, loss in zip(*beyond.values(), strict=True):
        error = holdout.form_error(held, N, D)
        if error is not None:
            inside.append(loss in law.band(N, D, float(np.hypot(error, law.point_sd)))[0])
    assert not inside or np.mean(inside) >= 0.92
