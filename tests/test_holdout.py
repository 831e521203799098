"""Losses that a surface foresees: places left out of the fit, judged against their intervals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from coverage_surfaces import FAMILIES, simulate

from lmscaling.fits import holdout


def six_sizes(seed: int, noise: float = 1.0) -> dict[str, Any]:
    family = replace(FAMILIES["clean"], run_sd=0.01 * noise, point_sd=0.004 * noise)
    made = simulate(family, 1, seed)
    design = made.design
    n, d = (
        np.exp(part[design.row_n, design.column_n] + at)
        for part, at in zip((design.x_Gm, design.z_Gm), design.centre, strict=True)
    )
    loss = made.y_RGm[0, design.row_n, design.column_n]
    cell = design.cell_G[design.row_n]
    return {"N": n, "D": d, "loss": loss, "trunk": design.row_n.tolist(), "cell": cell.tolist()}


@pytest.mark.parametrize("by", ["size", "compute"])
def test_a_right_surface_foresees_what_was_left_out(by):
    found = holdout.fit(**six_sizes(0), by=by)
    assert found.status == "passed"
    assert found.skill is not None
    assert found.skill > 0.5
    n = six_sizes(0)
    beyond = n["N"].max() if by == "size" else (6 * n["N"] * n["D"]).max() / 4
    assert found.beyond == pytest.approx(beyond)
    assert all(place.loss in place.interval for place in found.places)
    assert {place.seeds for place in found.places} == {3}


@pytest.mark.parametrize("by", ["size", "compute"])
def test_a_surface_that_bends_where_it_was_left_out_fails_the_forecast(by):
    bent = six_sizes(0)
    known, _ = holdout.split(bent["N"], bent["D"], by)
    found = holdout.fit(**bent | {"loss": bent["loss"] + 0.1 * ~known}, by=by)
    assert found.status == "missed"
    assert found.surface.status == "fitted"


def test_baselines_are_a_plane_of_logarithms_and_the_nearest_place():
    n, d = np.array([1e7, 1e8, 1e9, 1e7, 1e8]), np.array([1e9, 1e9, 1e9, 1e10, 1e10])
    loss = np.exp(3 - 0.05 * np.log(n) - 0.03 * np.log(d))
    at_n, at_d = np.array([1e9]), np.array([2e10])
    seen = np.exp(3 - 0.05 * np.log(at_n) - 0.03 * np.log(at_d))
    plane, near = holdout.baselines(n, d, loss[:, None], at_n, at_d, seen[:, None])
    assert plane == pytest.approx([0], abs=1e-9)
    assert near == pytest.approx(loss[4] - seen)  # 2.3 and 0.7 away, against 3.0 from the other


def test_two_sizes_predict_no_third():
    made = six_sizes(0)
    few = made["N"] <= np.unique(made["N"])[2]
    found = holdout.fit(made["N"][few], made["D"][few], made["loss"][few])
    assert (found.status, found.rms, found.skill) == ("no_surface", None, None)


def test_a_law_no_better_than_a_baseline_does_not_pass():
    """Runs that differ by 0.2 nats: the nearest place tells more than the surface."""
    found = holdout.fit(**six_sizes(4, noise=20.0))
    assert found.status == "baseline"
    assert found.rms is not None
    assert found.baselines is not None
    assert found.rms > min(found.baselines)
