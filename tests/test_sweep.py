"""A sweep measures each point once, in a process of its own; how a point ends is a record."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields

import psutil
import pytest
import torch
from conftest import refused

from lmscaling import kernels
from lmscaling.bench import decode, training_step
from lmscaling.bench import sweep as runner
from lmscaling.bench.checks import timed
from lmscaling.bench.clock import Timing
from lmscaling.bench.isolation import isolated
from lmscaling.config import grid, study_file, sweeps
from lmscaling.errors import UserError
from lmscaling.files import write_json
from lmscaling.model.gpt import GPT
from lmscaling.records.timing import MEASUREMENT_STATUSES, Measurement
from lmscaling.types import dump

SPEED = {
    "timeout_seconds": 20, "repeats": 3, "target_seconds": 0.01,
    "time_step": [{"sizes": ["s"], "contexts": [16, 32, 64],
                   "implementations": ["softmax/flash", "linear/chunked"]}],
    "time_decode": {"sizes": ["s"], "contexts": [16, 32], "attentions": ["softmax"],
                    "batches": [1, 2]},
}  # fmt: skip
MIDDLE = "linear.chunked-b1-ctx32"


def by_kind(values):
    return {sweep.kind: sweep for sweep in sweeps.expand(grid.expand(values).study).values()}


def steps(values, section):
    """The sweep of this section of ``time_step``."""
    return by_kind(values | {"speed": SPEED | {"time_step": [section]}})["time_step"]


@pytest.fixture
def planned(values):
    """The sweeps of a tiny study by kind."""
    return by_kind(values | {"speed": SPEED})


@pytest.fixture
def run(tmp_path, planned, monkeypatch):
    """Measure a sweep by a function of our own; gives back its records by point."""

    def run(call, kind="time_step", checks=None):
        # Children report to a file whom they measured: they share no memory with us.
        def measure(sweep, point):
            with (tmp_path / "measured").open("a") as file:
                file.write(f"{point.name}\n")
            return call(point)

        monkeypatch.setattr(
            {"time_step": training_step, "time_decode": decode}[kind], "measure", measure
        )
        sweep = planned[kind]
        write_json(tmp_path / f"{kind}.json", dump(sweep))
        runner.measure(tmp_path / f"{kind}.json", tmp_path / kind, checks)
        summary = json.loads((tmp_path / kind / "sweep.json").read_text())
        points = [p for p in (tmp_path / kind).glob("*.json") if p.name != "sweep.json"]
        return summary, {p.stem: json.loads(p.read_text()) for p in points}

    return run


def measured(tmp_path, before=()):
    """Names of the points that were measured after these, in order."""
    return (tmp_path / "measured").read_text().splitlines()[len(before) :]


def outcome(point, seconds=(3.0, 1.0, 2.0, 10.0)):
    return Timing(sorted(seconds), 1, False, 7).outcome(point, torch.float32)


def test_every_point_is_a_whole_record_with_its_spread_and_setup(run, planned):
    summary, points = run(outcome)
    assert set(points) == {p.name for p in planned["time_step"].points}
    assert set(summary["statuses"].values()) == {"done"}
    for point in points.values():
        assert set(point) == {"record", "record_sha256", *(f.name for f in fields(Measurement))}
        numbers = [point[f"{name}_seconds"] for name in ("least", "lower", "median", "most")]
        assert (numbers, point["repeats"]) == ([1, 1.75, 2.5, 10], 4)
        assert point["environment"]["versions"]["torch"] == torch.__version__
        assert point["device"] == point["environment"]["device"]


def test_a_point_is_measured_again_only_if_its_record_is_missing_or_damaged(run, tmp_path, capfd):
    run(outcome)
    before, folder = measured(tmp_path), tmp_path / "time_step"
    files = {path: path.stat().st_ino for path in folder.glob("*.json")}
    run(outcome)
    assert {path: path.stat().st_ino for path in files} == files
    point = folder / f"{MIDDLE}.json"
    point.unlink()
    run(outcome)
    assert measured(tmp_path, before) == [MIDDLE]
    point.write_text('{"record"')
    (folder / "sweep.json").write_text("")
    run(outcome)
    assert measured(tmp_path, before) == [MIDDLE, MIDDLE]
    assert str(point) in capfd.readouterr().out


def fill_memory(point):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more")


@pytest.mark.parametrize(("call", "status", "message"), [
    (fill_memory, "oom", "2 GiB"),
    (lambda point: os.kill(os.getpid(), signal.SIGKILL), "oom", "memory"),
    (lambda point: os.kill(os.getpid(), signal.SIGUSR1), "failed", "SIGUSR1"),
    (lambda point: os._exit(3), "failed", "code 3"),
    (lambda point: [][0], "failed", "out of range"),
    (lambda point: torch.empty(2**60), "oom", "allocate"),
])  # fmt: skip
def test_a_process_that_dies_is_a_record_and_ends_its_series_only(
    run, tmp_path, call, status, message
):
    name = "softmax.flash-b1-ctx32"
    summary, points = run(lambda point: (call if point.name == name else outcome)(point))
    end = points[name]
    assert (end["status"], end["median_seconds"], end["repeats"]) == (status, None, 0)
    assert message in end["message"]
    assert len(end["message"].splitlines()) == 1
    assert summary["statuses"]["softmax.flash-b1-ctx64"] == "not_tried"
    assert "softmax.flash-b1-ctx64" not in measured(tmp_path)
    assert summary["statuses"]["linear.chunked-b1-ctx64"] == "done"
    assert status in MEASUREMENT_STATUSES


@pytest.mark.parametrize(("error", "what"), [
    (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "device"),
    (OSError(errno.ENOSPC, "No space left on device"), "disk"),
    (torch.distributed.DistBackendError("NCCL error: remote process exited"), "network"),
])  # fmt: skip
def test_a_fault_of_the_machine_is_no_record_and_the_point_is_measured_again(
    run, tmp_path, error, what
):
    def fail(point):
        if point.context == 32:
            raise error
        return outcome(point)

    with refused(UserError, f"the {what} "):
        run(fail)
    assert not (tmp_path / "time_step" / "softmax.flash-b1-ctx32.json").exists()
    assert not (tmp_path / "time_step" / "sweep.json").exists()
    before = measured(tmp_path)
    summary, _ = run(outcome)
    assert set(summary["statuses"].values()) == {"done"}
    again = measured(tmp_path, before)
    assert "softmax.flash-b1-ctx16" not in again
    assert "softmax.flash-b1-ctx32" in again


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGBUS])
def test_a_measurement_that_is_stopped_or_loses_its_disk_is_no_record(run, tmp_path, number):
    with refused(UserError, number.name):
        run(lambda point: os.kill(os.getpid(), number))
    assert not list((tmp_path / "time_step").glob("*.json"))


def test_what_hangs_is_killed_at_the_limit_with_all_that_it_started(tmp_path):
    def hang():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (tmp_path / "pid").write_text(str(child.pid))
        time.sleep(600)

    ended = isolated(hang, 1.5)
    assert (ended.status, "1.5 s" in ended.message) == ("slow", True)
    started = int((tmp_path / "pid").read_text())
    limit = time.monotonic() + 60
    while psutil.pid_exists(started) and psutil.Process(started).status() != "zombie":
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_mistake_stops_its_series_in_one_sentence_and_is_tried_again(run, tmp_path, capfd):
    def call(point, wrong=("softmax", "linear")):
        if point.attention in wrong:
            raise UserError("implementation 'x' has no file")
        return outcome(point)

    with refused(UserError, "'x'"):
        run(call)
    assert not (tmp_path / "time_step" / "sweep.json").exists()
    summary, records = run(lambda point: call(point, ["linear"]))
    assert {record["status"] for record in records.values()} == {"done"}
    left = {f"softmax.flash-b1-ctx{c}" for c in (16, 32, 64)}
    assert set(summary["statuses"]) == set(records) == left
    assert re.search(".*linear/chunked.*'x'.*", capfd.readouterr().out)
    summary, _ = run(outcome)
    assert summary["statuses"]["linear.chunked-b1-ctx16"] == "done"


def test_a_kernel_that_is_wrong_is_not_timed_until_a_check_finds_it_right(
    run, tmp_path, values, monkeypatch
):
    study, checks = tmp_path / "study.json", tmp_path / "kernels.json"
    study_file.write_record(study, {"command": "", "study": values | {"speed": SPEED}})
    monkeypatch.setattr(timed.sweeps, "kernels", lambda study: ["linear/chunked", "softmax/flash"])
    monkeypatch.setattr(timed.gate, "conditions", dict)
    monkeypatch.setattr(timed, "ODD", ())
    with monkeypatch.context() as patch:
        wrong = lambda *given: 2 * kernels.load("linear", "chunked")(*given)  # noqa: E731
        load = lambda kind, name: wrong if name == "chunked" else kernels.load(kind, name)  # noqa: E731
        patch.setattr(timed.layer, "load", load)
        found = {each.way: each.message for each in timed.check(study, checks)}
    assert found["linear/chunked"].startswith("y of integers")
    assert not found["softmax/flash"]
    summary, records = run(outcome, checks=checks)
    assert {record["implementation"] for record in records.values()} == {"flash"}
    assert not [name for name in summary["statuses"] if "chunked" in name]
    timed.check(study, checks)
    summary, _ = run(outcome, checks=checks)
    assert summary["statuses"]["linear.chunked-b1-ctx16"] == "done"
    monkeypatch.setattr(timed.gate, "conditions", lambda: [][0])
    with refused(UserError, "the device cannot be used"):
        timed.check(study, checks)
    checks.write_text("{")
    with refused(UserError, checks.name):
        run(outcome, checks=checks)


def test_batches_of_decoding_are_series_of_their_own(run):
    def call(point):
        if point.batch == 2:
            raise MemoryError("no room")
        return outcome(point)

    summary, _ = run(call, "time_decode")
    names = [f"softmax-b{batch}-ctx{n}" for n in (16, 32) for batch in (1, 2)]
    ends = ["done", "oom", "done", "not_tried"]
    assert summary["statuses"] == dict(zip(names, ends, strict=True))


def test_a_full_step_has_as_many_sequences_as_its_tokens_and_counts_its_flops(tmp_path, values):
    given = {"sizes": ["s"], "contexts": [16, 32], "implementations": ["linear/chunked"]}
    sweep = steps(values, given | {"tokens": 64, "vocab_size": 11})
    assert [(p.context, p.batch) for p in sweep.points] == [(16, 4), (32, 2)]
    assert sweep.cell_of(sweep.points[0]).model.vocab_size == 11
    write_json(tmp_path / "sweep.json", dump(sweep))
    runner.measure(tmp_path / "sweep.json", tmp_path / "out")
    row = json.loads((tmp_path / "out" / "linear.chunked-b4-ctx16.json").read_text())
    assert row["status"] == "done"
    assert row["flops_per_token"] == GPT(sweep.cell_of(sweep.points[0])).flops_per_token()


def test_an_implementation_that_takes_a_chunk_is_timed_at_each_that_fits(values):
    given = SPEED["time_step"][0] | {"chunks": [8, 32]}
    given["implementations"] = ["softmax/flash", "linear", "linear/chunked"]
    found = [(p.way, p.context, p.chunk) for p in steps(values, given).points if p.context < 64]
    assert found == [
        ("softmax/flash", 16, None), ("linear", 16, None), ("linear/chunked", 16, 8),
        ("softmax/flash", 32, None), ("linear", 32, None), ("linear/chunked", 32, 8),
        ("linear/chunked", 32, 32),
    ]  # fmt: skip
    too_short = steps(values, given | {"contexts": [4]}).points
    assert [p.chunk for p in too_short] == [None, None, None]
    fused = [p for p in steps(values | {"gpus": 1}, given).points if p.way == "linear/chunked"]
    assert {p.chunk for p in fused} == {None}  # it has a table of its own
    for wrong, said in (
        ([given | {"implementations": ["softmax/flash"]}], "chunks"),
        ([given, given], "'s' is named twice"),
    ):
        with refused(UserError, said):
            by_kind(values | {"speed": SPEED | {"time_step": wrong}})


def test_a_sweep_is_pending_until_all_its_points_are_settled(run, tmp_path, planned, values):
    folder, sweep = tmp_path / "time_step", planned["time_step"]
    assert sweeps.is_pending(folder, sweep)
    run(outcome)
    assert not sweeps.is_pending(folder, sweep)
    more = steps(values, SPEED["time_step"][0] | {"contexts": [16, 32, 64, 128]})
    assert more.folder == sweep.folder
    assert sweeps.is_pending(folder, more)


def test_two_processes_do_not_measure_one_sweep(run, tmp_path):
    def call(point):
        # The sweep that we are in holds the lock: a second one is refused.
        with pytest.raises(UserError, match=r"process \d+"):
            runner.measure(tmp_path / "time_step.json", tmp_path / "time_step")
        return outcome(point)

    summary, _ = run(call)
    assert set(summary["statuses"].values()) == {"done"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_sweep_for_a_gpu_is_refused_without_one(tmp_path, values):
    sweep = by_kind(values | {"speed": SPEED, "gpus": 1})["time_step"]
    write_json(tmp_path / "s.json", dump(sweep))
    with refused(UserError, "GPU", "gpus: 0"):
        runner.measure(tmp_path / "s.json", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.json"))
