"""The command that measures a device: the order, what a kill leaves, the archive, bad input."""

import contextlib
import copy
import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import zipfile
from functools import cache
from pathlib import Path

import pytest
import targets
import torch
from conftest import ROOT, refused, sentence

from lmscaling import figures
from lmscaling.bench.isolation import each
from lmscaling.config import grid, study_file
from lmscaling.errors import UserError
from lmscaling.gpu import PARTS, archive, call, jobs
from lmscaling.store import build as store

FILES = [ROOT / "config" / name for name in ("study.yaml", "gpu.yaml", "gpu_cpu.yaml")]
TINY = {
    "sizes": {"s": {"n_layer": 1, "n_head": 2, "d_model": 16, "lr": 1e-2}},
    "axes": {"attention": ["softmax", "linear"], "size": ["s"], "context": [16]},
    "update_tokens": 128,
    "budget": "6 updates",
    "validation": {"tokens": 512, "every_tokens": 256},
    "speed": {
        "repeats": 3, "target_seconds": 0.01, "time_layer": [],
        "time_step": [{
            "sizes": ["s"], "contexts": [16, 32], "tokens": 32,
            "implementations": ["linear/chunked", "softmax/cudnn", "softmax/flash"],
        }],
        "time_decode": {"sizes": ["s"], "contexts": [16]},
    },
    "published": False,
}  # fmt: skip
STEP = "linear.chunked-b2-ctx16"
# A library asks an installed package for its version before it imports it: both are hidden.
LACKING = """
import sys
from importlib.metadata import Distribution, PackageNotFoundError

names = ["snakemake", "duckdb", "datasets", "pandas", "scipy", "seaborn"]
sys.modules.update(dict.fromkeys(names))
installed = Distribution.from_name

def from_name(name):
    if name in names:
        raise PackageNotFoundError(name)
    return installed(name)

Distribution.from_name = from_name
"""


def study(*overlays: dict) -> dict:
    values = copy.deepcopy(read(3))
    for overlay in ({"speed": {"time_layer": None}}, TINY, *overlays):
        _merge(values, overlay)
    return values


def _merge(values, overlay):
    for key, value in overlay.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict) and key != "sizes":
            _merge(values[key], value)
        else:
            values[key] = value


def measure(out: Path, values: dict, minutes: float = 60, parts=PARTS, sizes=None) -> str:
    return call.measure(values, out, out / "kept", minutes, parts, sizes)


@pytest.fixture(scope="module")
def ceilings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a call leaves that measures the ceilings only."""
    torch.compiler.reset()  # loads the compiler once, and not in each process that is forked
    out = tmp_path_factory.mktemp("ceilings") / "d"
    measure(out, study(), parts=["ceiling"])
    return out


@pytest.fixture
def begun(ceilings: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ceilings, tmp_path / "d"))


def lines_of(out: Path) -> dict[str, dict]:
    texts = (out / "records.jsonl").read_text().splitlines()
    lines = {json.loads(text)["key"]: json.loads(text) for text in texts}
    assert len(lines) == len(texts)  # nothing is measured twice
    return lines


@cache
def read(n: int) -> dict:
    return study_file.read_study(FILES[:n])


def listed(values: dict, out: Path, device: str = "") -> list[jobs.Job]:
    return list(jobs.jobs(grid.expand(values), out, device, {}, 0.0))


def wait_for(is_so, seconds=300.0):
    """Until something is so; what does not exist yet is not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if is_so():
                return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three calls of the CPU preset leave of which two were killed, without modules that a
    machine may lack."""
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "sitecustomize.py").write_text(LACKING)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", str(ROOT / "src"))])
    out = folder / "build" / "d"
    command = [sys.executable, "-m", "lmscaling", "gpu", *map(str, FILES)]
    command += ["--out", str(out), "--archive", str(folder / "kept")]
    options = {"env": os.environ | {"PYTHONPATH": path}, "cwd": ROOT}
    for n_lines in (1, 9):
        killed = subprocess.Popen([*command, "--minutes", "60"], **options)
        wait_for(lambda n=n_lines: (out / "records.jsonl").read_bytes().count(b"\n") >= n)
        killed.kill()
        killed.wait()
    done = subprocess.run([*command, "--minutes", "60"], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu: complete" in done.stdout
    return folder


@pytest.mark.ci
def test_calls_that_are_killed_end_with_every_record_and_a_run_uses_the_fastest_kernel(measured):
    out = measured / "build" / "d"
    lines = lines_of(out)
    planned = listed(lines["device"]["study"], measured)
    assert set(lines) == {"device", *(task.key for job in planned for task in job.tasks)}
    assert {line.get("status", "done") for line in lines.values()} == {"done"}
    found = [line["value"] for key, line in lines.items() if key.startswith("right/")]
    assert {each["message"] for each in found} == {""}
    steps = {key.split("/")[-1]: line for key, line in lines.items() if "step/25k" in key}
    (run,) = out.glob("runs/softmax-*/run.json")
    chosen = json.loads(run.read_text())["calibration"]["choice"]["implementation"]
    seconds = {name: steps[f"softmax.{name}-b4-ctx64"]["value"]["median_seconds"]
               for name in ("cudnn", "flash")}  # fmt: skip
    assert seconds[chosen] == min(seconds.values())


@pytest.mark.ci
def test_the_archive_is_imported_in_another_folder_and_drawn(measured, tmp_path):
    with zipfile.ZipFile(measured / "kept" / "lmscaling-gpu.zip") as file:
        names = file.namelist()
    assert not [name for name in names if name.endswith((".bin", ".safetensors"))]
    shutil.copytree(ROOT / "results" / "published", tmp_path / "published")
    out = tmp_path / "measured" / "d"
    for _ in range(2):  # again changes nothing
        archive.unpack(measured / "kept" / "lmscaling-gpu.zip", out)
    store.build(out)
    with store.connect(out / "store") as db:
        times = "SELECT count(*) FROM speeds WHERE source = 'measured' AND status = 'done'"
        assert db.sql(times).fetchall() == [(12 + 12 + 4 + 2,)]  # steps, layers, samples, ceilings
        ours = db.sql("SELECT DISTINCT status FROM runs WHERE source = 'measured'").fetchall()
        assert ours == [("done",)]
        shares = db.sql(
            "SELECT optimizer_seconds / seconds FROM speeds "
            "WHERE kind = 'time_step' AND source = 'measured'"
        ).fetchall()
        assert all(0 < share < 1 for (share,) in shares)
        assert all(number is None for number in targets.measure(db))  # all are for a GPU
    path = figures.save("step_time", out / "store", out / "figures")
    assert figures.n_rows("step_time", path.parent)


def test_what_tells_most_comes_first_and_what_cannot_fit_is_not_tried():
    planned, on_h200 = (listed(read(2), Path("d"), f"NVIDIA {name}") for name in ("H100", "H200"))
    parts = [job.part for job in planned]
    assert list(dict.fromkeys(parts)) == [part for part in PARTS if part in parts]
    sizes = [job.size for job in planned if job.part == "step"]
    assert list(dict.fromkeys(sizes)) == ["124M", "355M", "774M", "1558M"]
    assert [job.name for job in planned if job.part == "train"][:3] == [
        "tokens", "softmax-124M-ctx1024-s0", "linear-124M-ctx1024-s0",
    ]  # fmt: skip
    # One process goes through all contexts of an implementation.
    (job,) = (j for j in planned if (j.part, j.name) == ("step", "124M softmax/cudnn"))
    assert [task.key.rpartition("/softmax.cudnn-")[2] for task in job.tasks] == [
        "b16-ctx1024", "b4-ctx4096", "b1-ctx16384", "b1-ctx65536", "b1-ctx131072",
    ]  # fmt: skip
    for listing, longest in ((planned, 16384), (on_h200, 65536)):
        (job,) = (j for j in listing if j.name == "774M linear/chunked")
        assert job.tasks[-1].key.endswith(f"-ctx{longest}")
    # Both kernels of softmax are timed wherever one is, and all are checked before.
    checked = {job.name for job in planned if job.part == "right"}
    assert checked == {"linear/chunked", "softmax/cudnn", "softmax/flash", "cross_entropy"}
    for part in ("step", "layer"):
        keys = [task.key for job in planned if job.part == part for task in job.tasks]
        flash, cudnn = ({key.replace(name, "") for key in keys if name in key}
                        for name in ("softmax.flash", "softmax.cudnn"))  # fmt: skip
        assert flash == cudnn != set(), part


def test_too_little_time_leaves_no_line_and_is_no_failure(tmp_path, monkeypatch):
    said = measure(tmp_path / "d", study(), minutes=0.01)
    assert "complete" not in said
    sentence("gpu", re.sub(r"\d+ of \d+", "n of n", said))
    monkeypatch.setattr(call, "START_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(jobs.sweep, "outcome", lambda *_: time.sleep(600))
    measure(tmp_path / "d", study(), minutes=0.05, parts=["ceiling"])
    assert set(lines_of(tmp_path / "d")) == {"device"}


def test_what_fails_ends_its_series_and_is_not_tried_again(tmp_path, monkeypatch):
    def broken(one, point):
        with (tmp_path / "calls").open("a") as file:
            file.write(f"{point.name}\n")
        raise ValueError("no such head")

    monkeypatch.setattr(jobs.sweep, "outcome", broken)
    for _ in range(2):
        assert "complete" in measure(tmp_path / "d", study(), parts=["step"])
    calls = (tmp_path / "calls").read_text().split()
    assert sorted(calls) == [STEP, "softmax.cudnn-b2-ctx16", "softmax.flash-b2-ctx16"]
    ends = [line for key, line in lines_of(tmp_path / "d").items() if key.endswith(STEP)]
    assert [(line["status"], line["message"]) for line in ends] == [("failed", "no such head")]


def test_a_fault_of_the_machine_is_no_result_and_other_parts_or_sizes_are_none(begun, monkeypatch):
    def lost(one, point):
        raise RuntimeError("uncorrectable ECC error")

    before = lines_of(begun)
    assert {key.partition("/")[0] for key in before} == {"device", "time_ceiling"}
    assert "complete" in measure(begun, study(), parts=["step"], sizes=["6k"])
    assert lines_of(begun) == before
    monkeypatch.setattr(jobs.sweep, "outcome", lost)
    with refused(UserError, "device", "uncorrectable ECC error"):
        measure(begun, study(), parts=["step"])
    assert lines_of(begun) == before


def test_a_line_that_a_kill_has_cut_is_measured_again_and_a_full_disk_loses_no_other(begun):
    """A limit on the size of files is refused as a full disk is."""
    path, whole = begun / "records.jsonl", lines_of(begun)
    path.write_bytes(path.read_bytes()[:-20])
    before, limits = archive.read(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            measure(begun, study(), parts=["ceiling"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert archive.read(path) == before
    assert len(before) == len(whole) - 1
    measure(begun, study(), parts=["ceiling"])
    assert set(lines_of(begun)) == set(whole)


def test_a_measurement_ends_with_the_process_that_asked_for_it(tmp_path):
    ends = list(each([lambda: 1, lambda: 1 / 0, lambda: 3], 60))  # in one process
    assert [(end.status, end.value) for end in ends] == [("done", 1), ("failed", None)]
    code = (
        "import os, time\nfrom pathlib import Path\n"
        "from lmscaling.bench.isolation import isolated\n"
        f"isolated(lambda: (Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())), "
        "time.sleep(600)), 600)"
    )
    asked = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: (tmp_path / "pid").read_text())
    asked.kill()
    asked.wait()
    stat = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    wait_for(lambda: not stat.exists() or stat.read_text().split()[2] == "Z", 60)
