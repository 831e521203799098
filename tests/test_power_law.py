"""Laws of one variable, with one E for all attentions or one each."""

import numpy as np
import pytest

from lmscaling.fits import power_law
from lmscaling.fits.power_law import Points
from lmscaling.fits.uncertainty import Noise, Runs, replicates

HOURS = np.geomspace(1.5, 24, 9)


def law(x, E=2.5, k=1.0, gamma=0.3):
    return E + k * x**-gamma


@pytest.mark.parametrize("unit", [1.0, 3.6e18])  # hours, FLOPs
def test_known_laws_come_back(unit):
    x = HOURS * unit
    found = power_law.fit(
        {"softmax": Points(x, law(HOURS)), "linear": Points(x, law(HOURS, k=1.1, gamma=0.25))},
        count=50,
    )
    assert found.one_E
    assert found.p_value == pytest.approx(1)
    for laws in (found.shared, found.free):
        assert {one.status for one in laws.values()} == {"fitted"}
        assert pytest.approx(2.5, abs=1e-5) == laws["softmax"].E
        assert laws["softmax"].gamma == pytest.approx(0.3, abs=1e-5)
        assert laws["linear"].k == pytest.approx(1.1 * unit**0.25, rel=1e-4)
    assert found.laws["linear"].loss(2 * x) == pytest.approx(law(2 * HOURS, k=1.1, gamma=0.25))


def test_one_E_is_rejected_where_there_are_two():
    rng = np.random.default_rng(0)
    curves = {
        name: Points(HOURS, law(HOURS, E) + rng.normal(0, 0.002, 9))
        for name, E in (("softmax", 2.5), ("linear", 2.6))
    }
    found = power_law.fit(curves, count=100)
    assert found.p_value is not None
    assert found.p_value < 1e-3
    assert not found.one_E
    assert found.laws is found.free
    assert 2.6 in found.laws["linear"].intervals["E"]


def cover(studies: int, count: int) -> tuple[dict[str, float], float]:
    """Share of studies whose intervals hold the truth, and in which one true E is rejected."""
    runs = Runs.from_labels(18, np.arange(18) // 3)
    truth = np.r_[law(HOURS), law(HOURS, k=1.2, gamma=0.25)]
    held: dict[str, list[bool]] = {"E": [], "k": [], "gamma": [], "free E": []}
    rejected = []
    for loss in replicates(truth, 0 * truth, runs, Noise(), studies, seed=studies):
        softmax = Points(HOURS, loss[:9], runs.trunk_n[:9])
        linear = Points(HOURS, loss[9:], runs.trunk_n[9:])
        found = power_law.fit({"softmax": softmax, "linear": linear}, count=count)
        intervals = found.shared["linear"].intervals
        for name, value in (("E", 2.5), ("k", 1.2), ("gamma", 0.25)):
            held[name].append(value in intervals[name])
        held["free E"].append(2.5 in found.free["linear"].intervals["E"])
        rejected.append(not found.one_E)
    return {name: float(np.mean(hits)) for name, hits in held.items()}, float(np.mean(rejected))


def test_intervals_hold_the_truth_in_most_of_40_studies():
    """33 of 40, as for surfaces; 8 or more rejections of the truth have a chance of 0.0007."""
    held, rejected = cover(40, 300)
    assert min(held.values()) >= 33 / 40
    assert rejected < 8 / 40


@pytest.mark.slow
def test_intervals_hold_the_truth_in_95_percent_of_500_studies():
    held, rejected = cover(500, 1000)
    assert min(held.values()) >= 0.92
    assert max(held.values()) <= 0.975
    assert 0.025 <= rejected <= 0.08


def test_a_curve_with_too_few_points_has_no_law_and_spoils_no_other():
    found = power_law.fit({"a": Points(HOURS, law(HOURS)), "b": Points([1, 2], [3, 2])}, count=50)
    assert found.laws["b"].status == "too_few"
    assert found.laws["a"].gamma == pytest.approx(0.3, abs=1e-5)
    assert (found.one_E, found.p_value) == (True, None)
    three = power_law.fit({"a": Points([1, 2, 3], [3, 2, 1.5])}, count=50)
    assert three.laws["a"].status == "too_few"
    with pytest.raises(ValueError, match="too_few"):
        found.laws["b"].loss(1.0)
    nothing = power_law.fit({"b": Points([1, 1, 1, 1], [3, 2, 3, 2])})
    assert nothing.laws["b"].status == "too_few"


def test_a_law_without_floor_has_E_at_its_bound():
    found = power_law.fit({"a": Points(HOURS, law(HOURS, E=0.0, k=3.0))}, count=50)
    assert found.laws["a"].status == "bound"
    assert pytest.approx(0, abs=1e-6) == found.laws["a"].E


def test_a_curve_that_is_no_power_is_a_misfit():
    found = power_law.fit({"a": Points(HOURS, law(HOURS) + 0.02 * np.sin(HOURS))}, count=50)
    assert found.laws["a"].status == "misfit"


@pytest.mark.parametrize(("second_E", "status"), [(2.67, "fitted"), (2.68, "misfit")])
def test_a_shared_E_takes_one_degree_of_freedom_and_each_curve_two(second_E, status):
    """18 losses have 13 degrees left, with which chi-squared exceeds 27.7 in 1 % of studies."""
    softmax, linear = Points(HOURS, law(HOURS)), Points(HOURS, law(HOURS, second_E))
    found = power_law.fit({"softmax": softmax, "linear": linear}, count=20)
    assert found.ratio is not None
    assert 26 < found.ratio < 30
    assert found.shared["softmax"].status == status
    assert found.free["softmax"].status == "fitted"
