"""A sweep measures each point once, in a process of its own; how a point ends is a record."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from test_main import lmscaling

from lmscaling.bench import sweep as runner
from lmscaling.bench.clock import Timing
from lmscaling.bench.isolation import isolated
from lmscaling.config import grid, sweeps
from lmscaling.config.types import dump
from lmscaling.errors import UserError
from lmscaling.files import write_json
from lmscaling.model.gpt import GPT
from lmscaling.records.timing import MEASUREMENT_STATUSES, Measurement
from lmscaling.status import reset

SPEED = {
    "timeout_seconds": 20,
    "repeats": 3,
    "target_seconds": 0.01,
    "time_step": {
        "sizes": ["s"],
        "contexts": [16, 32, 64],
        "implementations": ["softmax/flash", "linear/chunked"],
    },
    "tune_chunk": {"implementations": ["linear/chunked"], "chunks": [8, 16, 32]},
    "time_decode": {
        "sizes": ["s"], "contexts": [16, 32], "attentions": ["softmax"], "batches": [1, 2],
    },
}  # fmt: skip


@pytest.fixture
def planned(values):
    """The sweeps of a tiny study by kind."""
    values["speed"] = SPEED
    made = sweeps.expand(grid.expand(values).study).values()
    return {sweep.kind: sweep for sweep in made}


@pytest.fixture
def run(tmp_path, planned, monkeypatch):
    """Measure a sweep by a function of our own; gives back its records by point."""

    def run(call, kind="time_step", chunks=None):
        # Children report to a file whom they measured: they share no memory with us.
        def measure(sweep, point):
            with (tmp_path / "measured").open("a") as file:
                file.write(f"{point.name}\n")
            return call(point)

        monkeypatch.setattr(runner.MODULES[kind], "measure", measure)
        sweep = planned[kind]
        write_json(tmp_path / f"{kind}.json", dump(sweep))
        runner.measure(tmp_path / f"{kind}.json", kind, tmp_path / kind, chunks)
        summary = json.loads((tmp_path / kind / "sweep.json").read_text())
        points = [p for p in (tmp_path / kind).glob("*.json") if p.name != "sweep.json"]
        return summary, {p.stem: json.loads(p.read_text()) for p in points}

    return run


def measured(tmp_path):
    """Names of the points that were measured, in order."""
    return (tmp_path / "measured").read_text().splitlines()


def outcome(point, seconds=(3.0, 1.0, 2.0, 10.0)):
    return Timing(sorted(seconds), 1, False, 7).outcome(point, torch.float32)


def test_every_point_is_a_whole_record_with_its_spread_and_setup(run, planned):
    summary, points = run(outcome)
    assert set(points) == {p.name for p in planned["time_step"].points}
    assert set(summary["statuses"].values()) == {"done"}
    for point in points.values():
        assert set(point) == {"record", *(f.name for f in fields(Measurement))}
        assert (point["least_seconds"], point["median_seconds"], point["most_seconds"]) == (
            1,
            2.5,
            10,
        )
        assert point["lower_seconds"] == 1.75
        assert point["repeats"] == 4
        assert point["environment"]["versions"]["torch"] == torch.__version__
        assert point["device"] == point["environment"]["device"]


def test_a_point_with_a_record_is_not_measured_again(run, tmp_path):
    run(outcome)
    before = measured(tmp_path)
    (tmp_path / "time_step" / "linear.chunked-b1-ctx32.json").unlink()
    run(outcome)
    assert measured(tmp_path)[len(before) :] == ["linear.chunked-b1-ctx32"]


def test_a_late_job_of_a_finished_sweep_touches_nothing(run, tmp_path):
    run(outcome)
    files = list((tmp_path / "time_step").glob("*.json"))
    before = {path: path.stat().st_ino for path in files}
    run(outcome)
    assert {path: path.stat().st_ino for path in files} == before


def test_a_damaged_record_of_a_point_is_named_and_measured_again(run, tmp_path, capfd):
    run(outcome)
    before = measured(tmp_path)
    point = tmp_path / "time_step" / "linear.chunked-b1-ctx32.json"
    point.write_text('{"record"')
    (tmp_path / "time_step" / "sweep.json").write_text("")
    run(outcome)
    assert measured(tmp_path)[len(before) :] == ["linear.chunked-b1-ctx32"]
    assert f"{point} is not valid JSON" in capfd.readouterr().out


def test_memory_that_ends_is_a_record_and_ends_its_series_only(run, tmp_path):
    def call(point):
        if point.implementation == "flash" and point.context == 32:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more")
        return outcome(point)

    summary, points = run(call)
    end = points["softmax.flash-b1-ctx32"]
    assert (end["status"], end["message"]) == ("oom", "CUDA out of memory. Tried to allocate 2 GiB")
    assert end["median_seconds"] is None
    assert end["repeats"] == 0
    assert summary["statuses"]["softmax.flash-b1-ctx64"] == "not_tried"
    assert "softmax.flash-b1-ctx64" not in measured(tmp_path)
    assert points["linear.chunked-b1-ctx64"]["status"] == "done"


@pytest.mark.parametrize(
    ("call", "status", "message"),
    [
        (
            lambda point: os.kill(os.getpid(), signal.SIGKILL),
            "oom",
            "when memory runs out",
        ),
        (lambda point: os.kill(os.getpid(), signal.SIGUSR1), "failed", "ended by SIGUSR1"),
        (lambda point: os._exit(3), "failed", "ended by exit code 3"),
        (lambda point: [][0], "failed", "list index out of range"),
        (lambda point: torch.empty(2**60), "oom", "can't allocate memory"),
    ],
)
def test_a_process_that_dies_is_a_record_and_the_sweep_goes_on(run, call, status, message):
    summary, points = run(
        lambda point: outcome(point) if point.attention == "linear" else call(point)
    )
    end = points["softmax.flash-b1-ctx16"]
    assert end["status"] == status
    assert message in end["message"]
    assert summary["statuses"]["softmax.flash-b1-ctx32"] == "not_tried"
    assert summary["statuses"]["linear.chunked-b1-ctx64"] == "done"
    assert status in MEASUREMENT_STATUSES


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "device"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (torch.distributed.DistBackendError("NCCL error: remote process exited"), "network"),
    ],
)
def test_a_fault_of_the_machine_is_no_record_and_the_point_is_measured_again(
    run, tmp_path, error, what
):
    def fail(point):
        if point.context == 32:
            raise error
        return outcome(point)

    with pytest.raises(UserError, match=f"the {what} of this machine failed during a measurement"):
        run(fail)
    assert not (tmp_path / "time_step" / "softmax.flash-b1-ctx32.json").exists()
    assert not (tmp_path / "time_step" / "sweep.json").exists()
    summary, _ = run(outcome)
    assert set(summary["statuses"].values()) == {"done"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGBUS])
def test_a_measurement_that_is_stopped_or_loses_its_disk_is_no_record(run, tmp_path, number):
    with pytest.raises(UserError, match=number.name):
        run(lambda point: os.kill(os.getpid(), number))
    assert not list((tmp_path / "time_step").glob("*.json"))


def test_what_hangs_is_killed_at_the_limit_with_all_that_it_started(tmp_path):
    def hang():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (tmp_path / "pid").write_text(str(child.pid))
        time.sleep(60)

    begun = time.monotonic()
    ended = isolated(hang, 1.5)
    assert time.monotonic() - begun < 10
    assert ended.status == "slow"
    assert ended.message == "did not end within 1.5 s"
    time.sleep(0.1)
    state = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_mistake_of_the_user_stops_the_sweep_in_one_sentence(run, tmp_path):
    def call(point):
        raise UserError("implementation 'x' has no file")

    with pytest.raises(UserError, match="implementation 'x' has no file"):
        run(call)
    assert not (tmp_path / "time_step" / "sweep.json").exists()


def test_a_mistake_in_one_series_leaves_the_others_and_is_tried_again(run, tmp_path, capfd):
    def call(point):
        if point.attention == "linear":
            raise UserError("implementation 'x' has no file")
        return outcome(point)

    summary, records = run(call)
    assert {record["status"] for record in records.values()} == {"done"}
    assert (
        set(summary["statuses"])
        == set(records)
        == {f"softmax.flash-b1-ctx{c}" for c in (16, 32, 64)}
    )
    assert "without linear/chunked: implementation 'x' has no file" in capfd.readouterr().out
    summary, _ = run(outcome)
    assert summary["statuses"]["linear.chunked-b1-ctx16"] == "done"


def test_points_survive_a_sweep_that_is_stopped(run, tmp_path):
    def stop(point):
        if point.context == 32:
            raise OSError(errno.ENOSPC, "No space left on device")
        return outcome(point)

    with pytest.raises(UserError):
        run(stop)
    before = measured(tmp_path)
    run(outcome)
    again = measured(tmp_path)[len(before) :]
    assert "softmax.flash-b1-ctx16" not in again
    assert "softmax.flash-b1-ctx32" in again


def test_batches_of_decoding_are_series_of_their_own(run):
    def call(point):
        if point.batch == 2:
            raise MemoryError("no room")
        return outcome(point)

    summary, _ = run(call, "time_decode")
    assert summary["statuses"] == {
        "softmax-b1-ctx16": "done",
        "softmax-b2-ctx16": "oom",
        "softmax-b1-ctx32": "done",
        "softmax-b2-ctx32": "not_tried",
    }


def test_a_full_step_has_as_many_sequences_as_its_tokens_and_counts_its_flops(tmp_path, values):
    given = {"sizes": ["s"], "contexts": [16, 32], "implementations": ["linear/chunked"]}
    values["speed"] = SPEED | {"time_step": given | {"tokens": 64}}
    full = {s.kind: s for s in sweeps.expand(grid.expand(values).study).values()}
    sweep = full["time_step"]
    assert [(p.context, p.batch) for p in sweep.points] == [(16, 4), (32, 2)]
    assert {(p.context, p.batch) for p in full["tune_chunk"].points} == {(16, 4), (32, 2)}
    write_json(tmp_path / "sweep.json", dump(sweep))
    runner.measure(tmp_path / "sweep.json", "time_step", tmp_path / "out", None)
    row = json.loads((tmp_path / "out" / "linear.chunked-b4-ctx16.json").read_text())
    assert row["status"] == "done"
    assert row["flops_per_token"] == GPT(sweep.cell_of(sweep.points[0])).flops_per_token()


def test_the_fastest_chunk_is_written_down_and_used(run, tmp_path):
    def call(point):
        best = {16: 8, 32: 32, 64: 16}[point.context]
        return outcome(point, [1.0 if point.chunk == best else 2.0] * 3)

    summary, _ = run(call, "tune_chunk")
    assert summary["fastest"] == {"linear/chunked": {"16": 8, "32": 32, "64": 16}}
    (tmp_path / "measured").unlink()
    _, points = run(outcome, "time_step", tmp_path / "tune_chunk" / "sweep.json")
    assert "linear.chunked-c32-b1-ctx32" in measured(tmp_path)
    chunks = {name: point["chunk"] for name, point in points.items()}
    assert chunks["linear.chunked-b1-ctx64"] == 16
    assert chunks["softmax.flash-b1-ctx64"] is None


def test_a_context_without_a_tuned_chunk_uses_that_of_the_longest_below(planned):
    point = planned["time_step"].points[-1]
    tuned = {"linear/chunked": {"16": 8, "32": 32}}
    assert runner._with_chunk(point, tuned).chunk == 32
    assert runner._with_chunk(point, {"linear/chunked": {"256": 128}}).chunk == 128


def test_a_sweep_is_pending_until_all_its_points_are_settled(run, tmp_path, planned, values):
    folder, sweep = tmp_path / "time_step", planned["time_step"]
    assert sweeps.is_pending(folder, sweep)
    run(outcome)
    assert not sweeps.is_pending(folder, sweep)
    longer = {**SPEED["time_step"], "contexts": [16, 32, 64, 128]}
    values["speed"] = SPEED | {"time_step": longer}
    more = {s.kind: s for s in sweeps.expand(grid.expand(values).study).values()}["time_step"]
    assert more.folder == sweep.folder
    assert sweeps.is_pending(folder, more)


def test_two_processes_do_not_measure_one_sweep(run, tmp_path):
    def call(point):
        # The sweep that we are in holds the lock: a second one is refused.
        with pytest.raises(UserError, match="is being measured by process"):
            runner.measure(tmp_path / "time_step.json", "time_step", tmp_path / "time_step", None)
        return outcome(point)

    summary, _ = run(call)
    assert set(summary["statuses"].values()) == {"done"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_sweep_for_a_gpu_is_refused_without_one(tmp_path, values):
    values["speed"], values["gpus"] = SPEED, 1
    sweep = next(iter(sweeps.expand(grid.expand(values).study).values()))
    write_json(tmp_path / "s.json", dump(sweep))
    done = lmscaling(sweep.kind, tmp_path / "s.json", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 1
    assert "needs a GPU and this machine has none" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").glob("*.json"))


def test_a_sweep_of_another_kind_is_refused(tmp_path, planned):
    write_json(tmp_path / "s.json", dump(planned["time_step"]))
    with pytest.raises(UserError, match="is for time_step; run lmscaling time_step"):
        runner.measure(tmp_path / "s.json", "time_decode", tmp_path / "out", None)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"time_step": {"implementations": ["linear/chunkd"]}},
            r"no file in kernels/linear/; nearest is 'chunked'",
        ),
        (
            {"time_step": {"implementations": ["sotfmax"]}},
            r"no file in attention/; nearest is 'softmax'",
        ),
        ({"time_step": {"sizes": ["xl"]}}, r"speed.time_step.sizes 'xl' has no row under sizes"),
        ({"tune_chunk": {"chunks": [48]}}, r"48 is not a power of two; nearest is 32"),
        ({"time_step": None}, r"tune_chunk uses the sizes and contexts of time_step"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_study_is_one_sentence(values, change, sentence):
    speed = dict(SPEED)
    for part, keys in change.items():
        speed[part] = keys and {**speed[part], **keys}
    values["speed"] = speed
    with pytest.raises(UserError, match=sentence) as error:
        grid.expand(values)
    assert "\n" not in str(error.value)


def test_points_that_are_added_change_no_folder_and_another_model_does(values, planned):
    values["speed"] = SPEED
    values["sizes"]["s"]["d_model"] = 16
    other = {s.kind: s for s in sweeps.expand(grid.expand(values).study).values()}
    assert other["time_step"].folder != planned["time_step"].folder


def test_steps_of_other_tokens_are_another_sweep_with_chunks_of_its_own(values, planned):
    folders = {planned["time_step"].folder}
    for tokens in (64, 128):
        values["speed"] = SPEED | {"time_step": SPEED["time_step"] | {"tokens": tokens}}
        made = {s.kind: s.folder for s in sweeps.expand(grid.expand(values).study).values()}
        assert made["tune_chunk"] == made["time_step"].replace("time_step/", "tune_chunk/")
        assert made["time_decode"] == planned["time_decode"].folder
        folders.add(made["time_step"])
    assert len(folders) == 3


@pytest.fixture
def results(tmp_path):
    """A study with two measured points of one sweep."""
    sweep = tmp_path / "tiny" / "speed" / "time_step" / "s-0123abcd"
    for name in ("linear-b1-ctx16", "linear-b1-ctx32", "sweep"):
        write_json(sweep / f"{name}.json", {})
    return tmp_path


def test_reset_moves_a_point_and_what_says_that_it_is_settled(results):
    study, paths = reset.select_measurements(results, None, "time_step/s/linear-b1-ctx16")
    attic = reset.move_measurements(study, paths)
    sweep = study / "speed" / "time_step" / "s-0123abcd"
    assert [p.name for p in sweep.iterdir()] == ["linear-b1-ctx32.json"]
    moved = attic / "speed" / "time_step" / "s-0123abcd"
    assert {p.name for p in moved.iterdir()} == {"linear-b1-ctx16.json", "sweep.json"}


def test_reset_moves_a_whole_sweep(results):
    study, paths = reset.select_measurements(results, "tiny", "time_step/s-0123abcd")
    reset.move_measurements(study, paths)
    assert not list((study / "speed" / "time_step").iterdir())


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("time_step/x", "time_step/s"), ("time_step/s/linear-b1-ctx61", "linear-b1-ctx16")],
)
def test_reset_of_what_was_not_measured_names_the_nearest(results, name, nearest):
    with pytest.raises(UserError, match=f"nearest is '.*{nearest}'"):
        reset.select_measurements(results, None, name)


def test_every_sweep_is_written_into_its_folder(values, tmp_path):
    study = grid.expand(values | {"speed": SPEED}).study
    sweeps.write(tmp_path, study)
    expected = {f"{name}.json": dump(sweep) for name, sweep in sweeps.expand(study).items()}
    written = (tmp_path / "sweeps").rglob("*.json")
    found = {str(p.relative_to(tmp_path / "sweeps")): json.loads(p.read_text()) for p in written}
    assert found == expected
