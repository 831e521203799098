"""Replays: a design that knows the prior only, judged by the estimators of the report."""

import design as replays
import numpy as np
import pytest

STUDIES = 10
ALLOWED = 1.25
"""Half-width of the design over that of the whole grid, at 30 % of its price."""
KNOWN = {f"{one.name}: {one.asked}": one for one in replays.replays()}
TOO_LITTLE = ("size:", "published: gamma:")
"""A best size needs five sizes of two seeds; the curve of one published cell costs more than 30 %
of itself."""
NARROW = [name for name in KNOWN if not any(part in name for part in TOO_LITTLE)]


@pytest.mark.ci
@pytest.mark.parametrize("name", NARROW)
def test_a_third_of_a_grid_tells_nearly_as_much_as_all_of_it(name):
    row = replays.replay(KNOWN[name], STUDIES, alike=False)
    assert row.ratio <= ALLOWED
    assert row.random >= 1.5 * row.ratio
    assert row.largest >= 1.5 * row.ratio


@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name in KNOWN if name not in NARROW])
def test_where_a_third_is_too_little_the_design_is_refused(name):
    assert np.isinf(replays.replay(KNOWN[name], 2).ratio)


def test_the_published_runs_are_a_grid_of_pairs_with_their_hours():
    candidates = replays.published()
    assert len(candidates) == 24
    assert 4_000 < sum(one.cost for one in candidates) < 12_000
    here = next(one for one in candidates if (one.size, one.context) == ("355M", 8192))
    world = replays.Published()
    assert world.loss("softmax", here, 1.0) == pytest.approx(3.007, abs=0.01)
    assert world.loss("linear", here, 1.0) > world.loss("softmax", here, 1.0)
