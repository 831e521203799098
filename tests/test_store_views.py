"""Views of the store: spikes, the ends of branches, and crossings of times."""

import json
import math

import numpy as np
import pytest
from test_store import (
    ENVIRONMENT,
    ask,
    end,
    exported,
    header,
    live,
    log,
    place,
    record,
    runs,
    study,
    update,
    validation,
)

from lmscaling.config import study_file
from lmscaling.records import timing
from lmscaling.store import build as store
from lmscaling.store import spikes

__all__ = ["place", "runs", "study"]


def noisy(n: int, sigma: float = 0.02, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 3 + 7 * np.exp(-np.arange(n) / 15) + rng.normal(0, sigma, n)


def changed(losses, changes) -> list:
    losses = list(losses)
    for at, value in changes.items():
        losses[at] = value if value is None else losses[at] + value
    return losses


PLANTED = {200: 1.0, 201: 0.8, 700: 0.5, 1500: 2.0, 1999: 0.4}
CAUCHY = np.random.default_rng(5).standard_cauchy(600).tolist()
UPSET = np.array(changed(noisy(1500), {200: 1.0, 203: 0.8, 700: 0.5, 1000: 0.7}))
UPSET[701:720] += 0.5
STEPS = np.where(np.arange(1000) < 500, 3.0, 4.0) + noisy(1000) - noisy(1000, 0)
FAR = {101: None, 100: None, 102: 6.0}


def calm(sigma):
    """Noise, a rising loss and a step down, which are no spikes."""
    losses = noisy(3000, sigma)
    losses[1000:] += np.linspace(0, 20 * sigma, 2000)
    losses[2000:] -= 1.0
    return losses.tolist()


TRAINED: dict[str, list] = {
    "planted": changed(noisy(2000), PLANTED), "cauchy": CAUCHY, "upset": UPSET.tolist(),
    "end": changed(noisy(300), {298: 1.0, 299: 1.0}), "step": STEPS.tolist(),
    "twentieth": changed([3.0] * 200, {100: 0.049, 150: 0.051}),
    "early": changed([3.0] * 40, {31: 6.0, 32: 6.0}), "lost": changed(noisy(300), FAR),
} | {f"calm {sigma}": calm(sigma) for sigma in (0.002, 0.02, 0.2)}  # fmt: skip


@pytest.fixture(scope="module")
def trained(place):
    """Spikes and stability of the runs of ``TRAINED``, and of one that was trained twice."""
    folder = place("trained")
    for run, losses in TRAINED.items():
        rows = [update(i + 1, loss=loss) for i, loss in enumerate(losses)]
        record(folder, run, log(header(run), *rows, end(len(rows))), updates=len(rows))
    first = changed(noisy(300), {250: 1.0})
    rows = [update(i + 1, loss=loss) for i, loss in enumerate(first)]
    live(folder, "again", log(header("again"), *rows))
    rows = [update(i + 1, attempt=2, loss=loss) for i, loss in enumerate(noisy(300)) if i >= 200]
    live(folder, "again", log(header("again", 2, start=200), *rows), attempt=2)
    columns = "spikes, spikes_per_10000_updates, highest_spike, nonfinite_losses, median_recovery"
    known = {run: row for run, *row in ask(folder, f"SELECT run, {columns} FROM stability")}
    found: dict[str, list] = {run: [] for run in known}
    query = "SELECT run, update, height, recovery FROM spikes ORDER BY run, update"
    for run, *spike in exported(folder, query):
        found[run].append(spike)
    return known, found


def test_planted_spikes_are_counted_each_once(trained):
    known, found = trained
    assert [update for update, _, _ in found["planted"]] == [place + 1 for place in PLANTED]
    spikes, rate, highest, lost, _ = known["planted"]
    assert (spikes, rate, lost) == (5, 25.0, 0)
    assert highest == pytest.approx(2.0, abs=0.1)


def test_spikes_are_those_of_the_definition_computed_plainly(trained):
    expected = []
    for i in range(32, len(CAUCHY)):
        before = CAUCHY[max(0, i - 128) : i]
        height = CAUCHY[i] - np.median(before)
        spread = 1.4826 * np.median(np.abs(before - np.median(before)))
        if height > 0.05 and height > 7 * spread:
            expected.append([i + 1, pytest.approx(height)])
    assert len(expected) > 10
    assert [spike[:2] for spike in trained[1]["cauchy"]] == expected


def test_recoveries_are_those_of_the_function_and_have_a_median(trained):
    known, found = trained
    first, lasted = spikes.recoveries(UPSET, spikes.find(UPSET)[0])
    assert len(first) == 3 < len(found["upset"])
    told = [(update, recovery) for update, _, recovery in found["upset"] if recovery is not None]
    assert told == list(zip((first + 1).tolist(), lasted.tolist(), strict=True))
    assert known["upset"][-1] == sorted(lasted)[1]
    assert math.isinf(known["end"][-1])  # an upset at the end is never over


def test_only_what_is_far_above_enough_updates_before_it_is_a_spike(trained):
    known, found = trained
    for run in ("calm 0.002", "calm 0.02", "calm 0.2", "again"):  # what was trained again is gone
        assert known[run][:4] == [0, 0.0, None, 0], run
    updates = {run: [update for update, _, _ in found[run]] for run in found}
    # More than a twentieth of a nat, after 32 updates; losses that are no number are not compared.
    assert [updates[run] for run in ("twentieth", "early", "lost")] == [[151], [33], [103]]
    assert (known["lost"][0], known["lost"][3]) == (1, 2)
    # A step is one until half of what came before is as high.
    assert updates["step"] == list(range(501, 501 + len(updates["step"])))
    assert 0 < len(updates["step"]) <= 64


@pytest.fixture
def branched(study, values):
    """Both trunks done at update 4, of each two planned branches that of the first's half done."""
    values |= {"branches": {"shares": [0.5, 1.0]}, "skip": []}
    (study / "study.json").write_text(json.dumps({"command": "", "study": values}))
    laid_out = study_file.read_record(study / "study.json").grid
    for run in laid_out.cells:
        rows = [row for n in (1, 2, 3, 4) for row in (update(n), validation(n, loss=4 - n / 10))]
        record(study, run, log(header(run), *rows, end(4)), updates=4)
    run = next(iter(laid_out.branches))
    rows = [update(2), validation(2, loss=3.5)]
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
    live(study, other, log(header(other, start=3), update(4), validation(4)))
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


def timed(study, method, seconds, size="s", device="gpu", **values):
    """One series of the speed study: its times by context, None where memory did not suffice."""
    attention, _, implementation = method.partition(" ")
    folder = study / "speed" / "time_step" / f"{size}-0"
    folder.mkdir(parents=True, exist_ok=True)
    for context, time in seconds.items():
        made = {
            "kind": "time_step", "sweep": f"{size}-0", "size": size, "attention": attention,
            "implementation": implementation, "n_layer": 1, "n_head": 1, "d_head": 8,
            "params": 100, "context": context, "batch": 1, "chunk": None, "passes": "",
            "dtype": "float32", "compiled": False, "captured": False, "warm_up": 1, "repeats": 3,
            "peak_memory_bytes": None,
            "status": "done" if time else "oom", "message": "", "started": "a", "device": device,
            "environment": ENVIRONMENT | {"device": device},
        } | {
            f"{part}_seconds": time
            for part in ("least", "lower", "median", "upper", "most", "mean", "sd")
        } | values  # fmt: skip
        line = timing.Measurement(**made)
        text = json.dumps({"record": line.record, **vars(line)})
        (folder / f"{method}-{device}-{context}.json").write_text(text)


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


def test_a_crossing_is_where_both_take_the_same_time(place):
    folder = place("crossings")
    for i, (_, challenger, baseline, _) in enumerate(CROSSINGS):
        timed(folder, "linear chunked", challenger, size=f"size {i}")
        timed(folder, "softmax flash", baseline, size=f"size {i}")
    columns = "size, status, context, low, high, shortest, longest"
    found = {size: row for size, *row in ask(folder, f"SELECT {columns} FROM crossings")}
    for i, (status, _, _, expected) in enumerate(CROSSINGS):
        assert found[f"size {i}"] == [status, *(pytest.approx(e) if e else None for e in expected)]
    assert len(found) == len(CROSSINGS)


def test_a_crossing_is_that_of_one_setup_one_size_and_one_pair(place):
    folder = place("pairs")
    timed(folder, "linear chunked", {16: 1.0, 32: 1.0})
    timed(folder, "softmax flash", {16: 0.5}, device="another gpu")
    timed(folder, "softmax flash", {16: 0.5}, size="m")
    timed(folder, "softmax no_flash", {16: 0.5, 32: 0.5})
    timed(folder, "linear state", {16: 0.5, 32: 0.5})
    for size, cudnn in (("one", {}), ("two", {16: 1.5, 32: 0.5})):  # the fastest of each context
        timed(folder, "linear chunked", {16: 1.0, 32: 1.0}, size=size)
        timed(folder, "softmax flash", {16: 2.0, 32: 0.1}, size=size)
        timed(folder, "softmax cudnn", cudnn, size=size)
    columns = "size, challenger, baseline, fused, status, least_ratio, most_ratio"
    pair = "linear chunked", "softmax fused"
    assert ask(folder, f"SELECT {columns} FROM crossings ORDER BY size") == [
        ("one", *pair, "softmax flash", "until", 0.1, 2.0),
        ("two", *pair, "softmax cudnn or softmax flash", "until", 0.1, 1.5),
    ]


def test_steps_of_constant_tokens_are_one_series_and_batches_of_sampling_are_several(place):
    folder = place("batches")
    for context, batch, seconds in ((16, 4, 1.0), (32, 2, 3.0)):
        timed(folder, "linear chunked", {context: 2.0}, batch=batch)
        timed(folder, "softmax flash", {context: seconds}, batch=batch)
    for batch, contexts in ((1, (16, 32)), (3, (64, 128))):
        for method in ("linear", "softmax"):
            times = dict.fromkeys(contexts, 1.0)
            timed(folder, method, times, kind="time_decode", batch=batch)
    query = "SELECT kind, status, batch, most_batch, low, longest FROM crossings ORDER BY ALL"
    assert ask(folder, query) == [
        ("time_decode", "never", 1, 1, None, 32), ("time_decode", "never", 3, 3, None, 128),
        ("time_step", "from", 2, 4, 16, 32),
    ]  # fmt: skip
