"""The time law: exponents from differences within runs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmscaling.fits import power_law
from lmscaling.fits.noise import Place
from lmscaling.fits.points import Group, Point
from lmscaling.fits.power_law import Curve, fit_curves

HOURS = 24 * 2.0 ** -np.arange(8)[::-1]
SEEDS = 3


def law(x, E=2.5, k=1.0, gamma=0.3):
    return E + k * x**-gamma


def seeds_of(rng, E=2.5, gamma=0.3, count=SEEDS, run_sd=0.01, point_sd=0.001):
    """Losses ``[seeds, hours]``."""
    noise = run_sd * rng.standard_normal((count, 1))
    noise = noise + point_sd * rng.standard_normal((count, len(HOURS)))
    return law(HOURS, E, gamma=gamma) + noise


def curve(loss):
    loss = np.atleast_2d(loss)
    runs = np.repeat(np.arange(len(loss)), len(HOURS))
    return Curve.from_points(np.tile(HOURS, len(loss)), loss.ravel(), runs)


def fit(**curves) -> Any:
    return fit_curves(curves, dict.fromkeys(curves, Place(1e8, 1024, "softmax")))


UNITS = st.sampled_from([1.0, 3600.0, 3.6e18])  # hours, seconds, FLOPs
NOISE = st.sampled_from([0.0, 0.001])


@settings(max_examples=12)
@given(st.floats(1.5, 3.5), st.floats(0.1, 0.6), UNITS, st.floats(-0.5, 2), NOISE)
def test_a_unit_moves_no_exponent_and_a_constant_moves_E_alone(E, gamma, unit, shift, noise):
    """Without noise the law itself comes back."""
    rng = np.random.default_rng(0)
    loss = law(HOURS, E, gamma=gamma) + noise * rng.standard_normal((SEEDS, len(HOURS)))
    runs, x = np.repeat(np.arange(SEEDS), len(HOURS)), np.tile(HOURS, SEEDS)
    plain, moved = (
        fit(a=Curve.from_points(scale * x, loss.ravel() + up, runs))["a"]
        for scale, up in ((1.0, 0.0), (unit, shift))
    )
    if noise == 0:
        assert (plain.E, plain.gamma) == pytest.approx((E, gamma), rel=1e-3)
        assert plain.loss(2 * HOURS) == pytest.approx(law(2 * HOURS, E, gamma=gamma), abs=1e-4)
    assert moved.status == plain.status
    if plain.status == "fitted" and plain.E is not None:
        assert moved.gamma == pytest.approx(plain.gamma, rel=1e-3)
        assert pytest.approx(plain.E + shift, abs=1e-3) == moved.E
        assert moved.k == pytest.approx(plain.k * unit**plain.gamma, rel=0.05)
        assert plain.loss(6.0) in plain.band(6.0)[0]


def test_a_high_run_moves_no_exponent_and_widens_the_band():
    rng = np.random.default_rng(0)
    plain = seeds_of(rng)
    high = plain + np.array([[0.15], [0], [0]])
    others = {f"other {i}": curve(seeds_of(rng)) for i in range(3)}
    first, second = fit(a=curve(plain), **others)["a"], fit(a=curve(high), **others)["a"]
    assert second.gamma == pytest.approx(first.gamma, abs=1e-6)
    assert pytest.approx(first.E + 0.05, abs=1e-6) == second.E
    (narrow,), (wide,) = first.band(6.0), second.band(6.0)
    assert wide.width > 2 * narrow.width
    assert law(6.0) in wide


def test_means_that_leave_the_law_by_more_than_seeds_scatter_are_refused():
    rng = np.random.default_rng(2)
    wave = 0.01 * np.sin(2 * np.log(HOURS))
    found = fit(straight=curve(seeds_of(rng)), wave=curve(seeds_of(rng) + wave))
    assert (found["straight"].status, found["wave"].status) == ("fitted", "refused")
    assert found["wave"].lack < 1e-6 < found["straight"].lack


def test_the_band_of_one_run_is_a_range_that_names_its_assumption():
    def assumed(found):
        return found.band(6.0)[0].assumed

    one = curve(seeds_of(np.random.default_rng(3), count=1))
    assert assumed(fit(a=one)["a"]) == pytest.approx(0.0019)  # of the nearest measured study
    rng = np.random.default_rng(4)
    beside = fit(a=one, **{f"{i}": curve(seeds_of(rng)) for i in range(4)})
    assert 0.004 < assumed(beside["a"]) < 0.025  # of the other curves
    assert assumed(beside["0"]) is None


def test_the_run_that_matters_most_is_named():
    loss = seeds_of(np.random.default_rng(5))
    loss[1] += 0.02 * np.log(HOURS)
    found = power_law.most_influential(fit(a=curve(loss))["a"])
    assert found == ("1", pytest.approx(0.3, abs=0.01))
    assert power_law.most_influential(fit(a=curve(loss[0]))["a"]) is None


def test_bands_hold_losses_between_points():
    rng = np.random.default_rng(6)
    found = fit(a=curve(seeds_of(rng)), b=curve(seeds_of(rng)))["a"]
    for x, band in zip((2.0, 6.0, 20.0), found.band([2.0, 6.0, 20.0]), strict=True):
        assert law(x) in band


def test_a_curve_with_too_few_points_or_without_floor_or_fall_has_no_law_and_spoils_no_other():
    for loss in (law(HOURS, E=-0.5, k=3.0), law(HOURS, k=-1.0), HOURS):
        found = fit(a=curve(loss))["a"]
        assert (found.status, found.E) == ("bound", None)
    found = fit(a=curve(law(HOURS)), b=Curve.from_points([1, 2], [3, 2]))
    assert found["b"].status == "too_few"
    assert found["a"].gamma == pytest.approx(0.3, abs=1e-5)
    for x, loss in (([1, 2, 3], [3, 2, 1.5]), ([1, 1, 1, 1], [3, 2, 3, 2])):
        assert fit(a=Curve.from_points(x, loss))["a"].status == "too_few"
    for method in (found["b"].loss, found["b"].band):
        with pytest.raises(ValueError, match="too_few"):
            method(1.0)


def test_groups_of_unknown_schedule_have_no_law():
    def group(schedule):
        return Group(tuple(
            Point("measured", schedule, "validation", name, "s", 1024, 0, f"{name} run", 10**8,
                  10**8, 0, "hours", hours / 24, hours, 1.0, 1.0, hours, hours, None, law(hours))
            for name in ("softmax", "linear") for hours in HOURS
        ))  # fmt: skip

    found = power_law.fit_groups({"a": group("constant"), "b": group("unknown")})
    assert {one.status for one in found["a"].values()} == {"fitted"}
    assert {one.status for one in found["b"].values()} == {"unknown_schedule"}
