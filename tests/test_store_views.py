"""Views of the store: spikes, the ends of branches, and crossings of times."""

import math

import numpy as np
import pytest
import speed_points
import test_store
from speed_points import point
from test_store import ask, end, exported, header, live, log, record, study, update

from lmscaling.config import study_file
from lmscaling.store import build as store
from lmscaling.store import spikes

__all__ = ["study"]


def losses(changes, n=2000):
    """Calm losses with some that are higher, or no number."""
    made = [3 + noise for noise in np.random.default_rng(0).normal(0, 0.02, n)]
    for at, more in changes.items():
        made[at] = None if more is None else made[at] + more
    return made


UPSET = losses({200: 1.0, 203: 0.8, 700: 0.5, 1500: 2.0} | dict.fromkeys(range(701, 720), 0.5))
TRAINED = {
    "upset": UPSET,
    "end": losses({298: 1.0, 299: 1.0}, 300),
    "lost": losses({101: None, 100: None, 102: 6.0}, 300),
}


def test_spikes_and_recoveries_are_those_of_the_functions_and_have_a_rate_and_a_median(study):
    for run, own in TRAINED.items():
        rows = [update(i + 1, loss=loss) for i, loss in enumerate(own)]
        record(study, run, log(header(run), *rows, end(len(rows))), updates=len(rows))
    rows = [update(i + 1, loss=loss) for i, loss in enumerate(losses({250: 1.0}, 300))]
    live(study, "again", log(header("again"), *rows))
    rows = [update(i + 1, attempt=2, loss=loss) for i, loss in enumerate(losses({}, 300))]
    live(study, "again", log(header("again", 2, start=200), *rows[200:]), attempt=2)
    columns = "spikes, spikes_per_10000_updates, highest_spike, nonfinite_losses, median_recovery"
    known = {run: row for run, *row in ask(study, f"SELECT run, {columns} FROM stability")}
    query = "SELECT run, update, height, recovery FROM spikes ORDER BY run, update"
    found = exported(study, query)
    at, heights = spikes.find(np.array(UPSET))
    lasted = spikes.recoveries(np.array(UPSET), at)
    first, lasted = at[np.isfinite(lasted)], lasted[np.isfinite(lasted)]
    assert len(first) == 3 < len(at)
    updates, rises, _ = zip(*(row[1:] for row in found if row[0] == "upset"), strict=True)
    assert (list(updates), rises) == ((at + 1).tolist(), pytest.approx(heights.tolist()))
    told = [row[1::2] for row in found if row[0] == "upset" and row[3] is not None]
    assert told == list(zip((first + 1).tolist(), lasted.tolist(), strict=True))
    highest, median = pytest.approx(max(heights)), sorted(lasted)[1]
    assert known["upset"] == [len(at), 5.0 * len(at), highest, 0, median]
    assert math.isinf(known["end"][-1])  # an upset at the end is never over
    assert known["again"][:4] == [0, 0.0, None, 0]  # what was trained again is gone
    assert [update for run, update, *_ in found if run == "lost"] == [103]
    assert (known["lost"][0], known["lost"][3]) == (1, 2)


@pytest.fixture
def branched(study, values):
    """Both trunks done at update 4, of each two planned branches that of the first's half done."""
    values |= {"branches": {"shares": [0.5, 1.0]}, "skip": []}
    laid_out = study_file.write_record(study / "study.json", {"command": "", "study": values})
    for run in laid_out.cells:
        rows = [update(n) for n in (1, 2, 3, 4)]
        rows += [test_store.validation(n, loss=4 - n / 10) for n in (1, 2, 3, 4)]
        record(study, run, log(header(run), *rows, end(4)), updates=4)
    run = next(iter(laid_out.branches))
    rows = [update(2), test_store.validation(2, loss=3.5)]
    record(study, run, log(header(run, start=1), *rows, end(2)))
    return study, laid_out, run


def test_branches_are_in_no_view_of_trunks(branched):
    study, _, run = branched
    store.build(study)
    branches = "run IN (SELECT run FROM cells WHERE branch IS NOT NULL)"
    views = {"validation": 16, "training": 16, "final": 4, "last_validation": 4, "status": 4}
    for view, rows in views.items():
        query = f"SELECT count(*), count(*) FILTER ({branches}) FROM {view}"
        assert exported(study, query) == [(rows, 0)], view
    assert exported(study, f"SELECT in_study FROM runs WHERE run = '{run}'") == [(True,)]


def test_an_endpoint_counts_its_whole_trajectory_beside_its_trunk_at_that_time(branched):
    study, laid_out, run = branched
    _, other, third, *_ = laid_out.branches
    live(study, other, log(header(other, start=3), update(4), test_store.validation(4)))
    record(study, third, log(header(third, start=1), end(1)), "no_trunk", updates=1)
    columns = "run, trunk, share, update, tokens, val_loss, trunk_val_loss, params, flops, "
    seconds = "hours * 3600, trunk_hours * 3600"
    trunk = laid_out.branches[run].trunk
    spent = 128 * 600.0, pytest.approx(2), pytest.approx(2)
    assert ask(study, f"SELECT {columns + seconds} FROM endpoints") == [  # the others have no end
        (run, trunk, 0.5, 2, 128, 3.5, 3.8, 100, *spent)
    ]
    query = "SELECT status FROM planned WHERE branch IS NOT NULL ORDER BY place LIMIT 3"
    assert exported(study, query) == [("done",), ("running",), ("no_trunk",)]
    (study / "runs" / trunk / "log.jsonl").write_bytes(b"")  # nothing to compare it with
    assert ask(study, "SELECT run, trunk_val_loss FROM endpoints") == [(run, None)]


def timed(study, method, seconds, kind="time_step", device="gpu", **values):
    """One series of the speed study: its times by context, None where memory did not suffice."""
    points = (point(kind, method, c, time, device, **values) for c, time in seconds.items())
    speed_points.write(study, *points)


CROSSINGS = [
    ("always", {16: 1.0, 32: 1.0}, {16: 2.0, 32: 4.0}, (None, None, None, 16, 32)),
    ("never", {16: 3.0, 32: 5.0}, {16: 2.0, 32: 4.0}, (None, None, None, 16, 32)),
    ("never", {16: 1.0, 32: 1.0}, {16: 1.0, 32: 1.0}, (None, None, None, 16, 32)),  # ties
    ("always", {16: 1.0}, {16: 2.0, 32: 2.0}, (None, None, None, 16, 16)),  # one point only
    ("from", {16: 2.0, 64: 2.0}, {16: 1.0, 64: 4.0}, (32, 16, 64, 16, 64)),
    ("from", {16: 2.0, 32: 2.0, 64: 2.0}, {16: 1.0, 32: 2.0, 64: 4.0}, (32, 32, 64, 16, 64)),
    ("from", {16: 2.0, 32: None, 64: 2.0}, {16: 1.0, 32: 2.0, 64: 4.0}, (32, 16, 64, 16, 64)),
    ("until", {16: 1.0, 64: 4.0}, {16: 2.0, 64: 2.0}, (32, 16, 64, 16, 64)),
    ("until", {16: 1.0, 64: 2.0}, {16: 2.0, 64: 2.0}, (64, 16, 64, 16, 64)),  # ends in a tie
    ("several", {16: 1.0, 32: 3.0, 128: 1.0}, {16: 3.0, 32: 1.0, 128: 3.0}, (64, 32, 128, 16, 128)),
]  # fmt: skip


def test_a_crossing_is_where_both_take_the_same_time(study):
    for i, (_, challenger, baseline, _) in enumerate(CROSSINGS):
        timed(study, "linear chunked", challenger, size=f"size {i}")
        timed(study, "softmax flash", baseline, size=f"size {i}")
    columns = "size, status, context, low, high, shortest, longest"
    found = {size: row for size, *row in ask(study, f"SELECT {columns} FROM crossings")}
    for i, (status, _, _, expected) in enumerate(CROSSINGS):
        assert found[f"size {i}"] == [status, *(pytest.approx(e) if e else None for e in expected)]
    assert len(found) == len(CROSSINGS)


def test_a_crossing_is_that_of_one_setup_one_size_and_one_pair(study):
    timed(study, "linear chunked", {16: 1.0, 32: 1.0})
    timed(study, "softmax flash", {16: 0.5}, device="another gpu")
    timed(study, "softmax flash", {16: 0.5}, size="m")
    timed(study, "softmax no_flash", {16: 0.5, 32: 0.5})
    timed(study, "linear state", {16: 0.5, 32: 0.5})
    for size, cudnn in (("one", {}), ("two", {16: 1.5, 32: 0.5})):  # the fastest of each context
        timed(study, "linear chunked", {16: 1.0, 32: 1.0}, size=size)
        timed(study, "softmax flash", {16: 2.0, 32: 0.1}, size=size)
        timed(study, "softmax cudnn", cudnn, size=size)
    columns = "size, challenger, baseline, fused, status, least_ratio, most_ratio"
    pair = "linear chunked", "softmax fused"
    assert ask(study, f"SELECT {columns} FROM crossings ORDER BY size") == [
        ("one", *pair, "softmax flash", "until", 0.1, 2.0),
        ("two", *pair, "softmax cudnn or softmax flash", "until", 0.1, 1.5),
    ]


def test_steps_of_constant_tokens_are_one_series_and_batches_of_sampling_are_several(study):
    for context, batch, seconds in ((16, 4, 1.0), (32, 2, 3.0)):
        timed(study, "linear chunked", {context: 2.0}, batch=batch)
        timed(study, "softmax flash", {context: seconds}, batch=batch)
    for batch, contexts in ((1, (16, 32)), (3, (64, 128))):
        for method in ("linear", "softmax"):
            times = dict.fromkeys(contexts, 1.0)
            timed(study, method, times, kind="time_decode", batch=batch)
    query = "SELECT kind, status, batch, most_batch, low, longest FROM crossings ORDER BY ALL"
    assert ask(study, query) == [
        ("time_decode", "never", 1, 1, None, 32), ("time_decode", "never", 3, 3, None, 128),
        ("time_step", "from", 2, 4, 16, 32),
    ]  # fmt: skip
