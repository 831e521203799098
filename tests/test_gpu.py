"""The command that measures a device: the order, what a kill leaves, the archive, bad input."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from functools import partial
from pathlib import Path

import duckdb
import pytest
import targets
import torch
from conftest import ROOT
from test_main import lmscaling

from lmscaling import figures, kernels
from lmscaling.bench.checks import right
from lmscaling.bench.isolation import each
from lmscaling.config import grid, study_file, sweeps
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.evaluate import gradient_error
from lmscaling.gpu import PARTS, archive, call, jobs
from lmscaling.kernels.linear import chunked
from lmscaling.runtime import environment, gpus
from lmscaling.store import build as store

FILES = [ROOT / "config" / name for name in ("study.yaml", "gpu.yaml", "gpu_cpu.yaml")]
TINY = {
    "sizes": {"s": {"n_layer": 1, "n_head": 2, "d_model": 16, "lr": 1e-2}},
    "axes": {"attention": ["softmax", "linear"], "size": ["s"], "context": [16]},
    "update_tokens": 128,
    "budget": "6 updates",
    "validation": {"tokens": 512, "every_tokens": 256},
    "speed": {
        "repeats": 3,
        "target_seconds": 0.01,
        "time_step": {
            "sizes": ["s"],
            "contexts": [16, 32],
            "tokens": 32,
            "implementations": ["linear/chunked", "softmax/cudnn", "softmax/flash"],
        },
        "time_decode": {"sizes": ["s"], "contexts": [16]},
        "time_layer": [],
    },
    "published": False,
}
STEP = "linear.chunked-b2-ctx16"
BLOCKED = ("snakemake", "duckdb", "datasets", "pandas", "scipy", "seaborn")


def study(*overlays: dict) -> dict:
    """The values of a study of seconds, with overlays."""
    values = study_file.read_study(FILES)
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
    out = tmp_path_factory.mktemp("ceilings") / "d"
    measure(out, study(), parts=["ceiling"])
    return out


@pytest.fixture
def begun(ceilings: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(ceilings, tmp_path / "d"))


def lines_of(out: Path) -> dict[str, dict]:
    texts = (out / "records.jsonl").read_text().splitlines()
    lines = {json.loads(text)["key"]: json.loads(text) for text in texts}
    assert len(lines) == len(texts)  # nothing is measured twice
    return lines


def listed(values: dict, out: Path, device: str = "") -> list[jobs.Job]:
    return list(jobs.jobs(grid.expand(values), out, device, {}, 0.0))


def of_a_gpu() -> dict:
    return study_file.read_study(FILES[:2])


def wrong_keys(q, k, v, feature_map, normalize, chunk=64):
    """Right forward; the gradient by the keys is lost."""
    return chunked.attend(q, k.detach(), v, feature_map, normalize) + 0 * k.sum()


# The whole command


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three calls of the CPU preset leave of which two were killed, without modules that a
    machine may lack."""
    folder = tmp_path_factory.mktemp("gpu")
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({BLOCKED}))\n"
    (folder / "sitecustomize.py").write_text(blocked)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", str(ROOT / "src"))])
    out = folder / "build" / "d"
    command = [sys.executable, "-m", "lmscaling", "gpu", *map(str, FILES)]
    command += ["--out", str(out), "--archive", str(folder / "kept")]
    options = {"env": os.environ | {"PYTHONPATH": path}, "cwd": ROOT}
    for wait in (random.uniform(0, 10), random.uniform(0, 20)):
        killed = subprocess.Popen([*command, "--minutes", "60"], **options)
        begun = time.monotonic()
        while not (out / "records.jsonl").exists() and time.monotonic() < begun + 120:
            time.sleep(0.1)
        time.sleep(wait)
        killed.kill()
        killed.wait()
    done = subprocess.run([*command, "--minutes", "60"], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu: complete" in done.stdout
    return folder


@pytest.mark.ci
def test_calls_that_are_killed_end_with_every_record(measured):
    lines = lines_of(measured / "build" / "d")
    planned = listed(lines["device"]["study"], measured)
    assert set(lines) == {"device", *(task.key for job in planned for task in job.tasks)}
    assert {line.get("status", "done") for line in lines.values()} == {"done"}
    assert all(not right.fault(line) for key, line in lines.items() if key.startswith("right/"))


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
    assert not figures.is_empty("step_time", path.parent)


@pytest.mark.ci
def test_a_run_trains_with_the_implementation_whose_step_was_the_fastest(measured):
    out = measured / "build" / "d"
    steps = {k.split("/")[-1]: line for k, line in lines_of(out).items() if "step/25k" in k}
    seconds = {
        name: steps[f"softmax.{name}-b4-ctx64"]["value"]["median_seconds"]
        for name in ("cudnn", "flash")
    }
    (run,) = out.glob("runs/softmax-*/run.json")
    chosen = json.loads(run.read_text())["calibration"]["choice"]["implementation"]
    assert chosen == min(seconds, key=lambda name: seconds[name])


# The order


def test_what_tells_most_comes_first():
    planned = listed(of_a_gpu(), Path("d"), "NVIDIA H100 80GB HBM3")
    parts = [job.part for job in planned]
    assert list(dict.fromkeys(parts)) == [part for part in PARTS if part in parts]
    sizes = [job.size for job in planned if job.part == "step"]
    assert list(dict.fromkeys(sizes)) == ["124M", "355M", "774M", "1558M"]
    assert [job.name for job in planned if job.part == "train"][:3] == [
        "tokens", "softmax-124M-ctx1024-s0", "linear-124M-ctx1024-s0",
    ]  # fmt: skip


def test_every_kernel_that_is_timed_is_checked_before(tmp_path):
    planned = listed(of_a_gpu(), tmp_path)
    checked = {job.name for job in planned if job.part == "right"}
    assert checked == {"linear/chunked", "softmax/cudnn", "softmax/flash", "cross_entropy"}


def test_a_process_goes_through_all_contexts_of_an_implementation():
    planned = listed(of_a_gpu(), Path("d"), "NVIDIA H100 80GB HBM3")
    (job,) = (j for j in planned if (j.part, j.name) == ("step", "124M softmax/cudnn"))
    assert [task.key.rpartition("/")[2] for task in job.tasks] == [
        "softmax.cudnn-b16-ctx1024", "softmax.cudnn-b4-ctx4096", "softmax.cudnn-b1-ctx16384",
        "softmax.cudnn-b1-ctx65536", "softmax.cudnn-b1-ctx131072",
    ]  # fmt: skip


@pytest.mark.parametrize(("device", "longest"), [("NVIDIA H100", 16384), ("NVIDIA H200", 65536)])
def test_a_step_that_cannot_fit_is_not_tried(device, longest):
    planned = listed(of_a_gpu(), Path("d"), device)
    (job,) = (j for j in planned if j.name == "774M linear/chunked")
    assert job.tasks[-1].key.endswith(f"-ctx{longest}")


@pytest.mark.parametrize("files", [["study.yaml"], ["study.yaml", "gpu.yaml"]])
def test_both_softmax_kernels_of_pytorch_are_timed_wherever_one_is(files):
    values = study_file.read_study([ROOT / "config" / name for name in files])
    for one in sweeps.expand(grid.expand(values).study).values():
        ways = {point.way for point in one.points}
        assert ("softmax/flash" in ways) == ("softmax/cudnn" in ways), one.folder


def test_parts_and_sizes_are_chosen(begun):
    parts = {key.partition("/")[0] for key in lines_of(begun)}
    assert parts == {"device", "time_ceiling"}
    assert "complete" in measure(begun, study(), parts=["step"], sizes=["6k"])
    assert {key.partition("/")[0] for key in lines_of(begun)} == parts


# Time, kills and faults


def test_a_line_that_a_kill_has_cut_is_measured_again(begun):
    path, whole = begun / "records.jsonl", lines_of(begun)
    path.write_bytes(path.read_bytes()[:-20])
    measure(begun, study(), parts=["ceiling"])
    assert set(lines_of(begun)) == set(whole)


def test_too_little_time_leaves_no_line_and_is_no_failure(tmp_path, monkeypatch):
    begun = time.monotonic()
    assert "the same command goes on" in measure(tmp_path / "d", study(), minutes=0.01)
    assert time.monotonic() - begun < 30
    monkeypatch.setattr(call, "START_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(jobs.sweep, "outcome", lambda *_: time.sleep(60))
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


def test_a_fault_of_the_machine_is_no_result(tmp_path, monkeypatch):
    def lost(one, point):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    monkeypatch.setattr(jobs.sweep, "outcome", lost)
    with pytest.raises(UserError, match="the device of this machine failed"):
        measure(tmp_path / "d", study(), parts=["step"])
    assert set(lines_of(tmp_path / "d")) == {"device"}


def test_a_full_disk_loses_nothing_that_was_measured(tmp_path):
    words = [sys.executable, "-m", "lmscaling", "gpu", *FILES, "--out", tmp_path / "d", "--only"]
    command = f"exec {shlex.join(map(str, words))}"
    run = partial(subprocess.run, capture_output=True, text=True, cwd=ROOT)
    assert run(["bash", "-c", f"{command} ceiling"]).returncode == 0
    before = lines_of(tmp_path / "d")
    size = (tmp_path / "d" / "records.jsonl").stat().st_size
    # A limit on the size of files is refused as a full disk is.
    limit = f"trap '' XFSZ; ulimit -f {size // 1024 + 1}"
    full = run(["bash", "-c", f"{limit}; {command} right"])
    assert full.returncode == 1
    assert full.stderr.startswith("error: File too large; make room"), full.stderr
    assert archive.read(tmp_path / "d" / "records.jsonl") == before
    assert run(["bash", "-c", f"{command} ceiling right"]).returncode == 0
    assert set(lines_of(tmp_path / "d")) > set(before)


def test_calls_in_one_process_end_with_the_first_that_is_not_done():
    ends = list(each([lambda: 1, lambda: 1 / 0, lambda: 3], 60))
    assert [(end.status, end.value) for end in ends] == [("done", 1), ("failed", None)]


def test_a_measurement_ends_with_the_process_that_asked_for_it(tmp_path):
    code = (
        "import os, time\nfrom pathlib import Path\n"
        "from lmscaling.bench.isolation import isolated\n"
        f"isolated(lambda: (Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())), "
        "time.sleep(60)), 60)"
    )
    asked = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.1)
    asked.kill()
    asked.wait()
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("it went on")


# What is wrong


def test_a_wrong_kernel_is_named_and_its_times_are_not_used(tmp_path, monkeypatch):
    load = kernels.load
    monkeypatch.setattr(
        kernels, "load", lambda *name: wrong_keys if name == ("linear", "chunked") else load(*name)
    )
    measure(tmp_path / "d", study(), parts=["right", "step"])
    lines = lines_of(tmp_path / "d")
    assert "dk of integers is not exact" in right.fault(lines["right/linear/chunked"])
    assert not right.fault(lines["right/softmax/flash"])
    archive.unpack(tmp_path / "d" / "kept" / "lmscaling-gpu.zip", tmp_path / "m" / "d")
    rows = {
        path.stem: json.loads(path.read_text())
        for path in (tmp_path / "m" / "d").glob("speed/time_step/*/*.json")
    }
    assert rows[STEP]["status"] == "wrong"
    assert rows[STEP]["median_seconds"] is None
    assert rows["softmax.flash-b2-ctx16"]["status"] == "done"


def test_a_kernel_that_ends_its_process_is_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "load", lambda *_: lambda *_: os._exit(3))
    measure(tmp_path / "d", study(), parts=["right"])
    assert "exit code 3" in right.fault(lines_of(tmp_path / "d")["right/softmax/flash"])


def test_a_kernel_that_repeats_other_numbers_is_wrong(monkeypatch):
    def unstable(q, k, v, feature_map, normalize):
        return chunked.attend(q, k, v, feature_map, normalize) + 1e-7 * torch.rand(1)

    monkeypatch.setattr(kernels, "load", lambda *_: unstable)
    steps = [s for s in sweeps.expand(grid.expand(study()).study).values() if s.kind == "time_step"]
    found = {each.case.partition(",")[0] for each in right.compared("linear/chunked", steps)
             if not each.right}  # fmt: skip
    assert "repeated" in found


@pytest.mark.parametrize(
    ("device", "versions", "said"),
    [
        ("NVIDIA H200", {}, "and this is"),
        (None, {"torch": "1.0"}, "torch 1.0"),
        (None, {"ptxas": "12.0"}, "ptxas 12.0"),
    ],
)
def test_records_of_another_device_or_version_are_not_continued(begun, device, versions, said):
    path = begun / "records.jsonl"
    first, *rest = path.read_text().splitlines()
    line = json.loads(first)
    line["environment"]["device"] = device or line["environment"]["device"]
    line["environment"]["versions"] |= versions
    path.write_text("\n".join([json.dumps(line), *rest, ""]))
    with pytest.raises(UserError, match=f"{said}.*--out"):
        measure(begun, study(), parts=["ceiling"])


def test_two_calls_at_once_are_refused(begun):
    with gpus.locked(begun / "lock"), pytest.raises(UserError, match="another call"):
        measure(begun, study(), parts=["ceiling"])


def test_another_study_is_not_mixed_in(begun):
    with pytest.raises(UserError, match=r"another study.*--out"):
        measure(begun, study({"budget": "7 updates"}), parts=["ceiling"])


# The archive


@pytest.fixture
def packed(begun: Path) -> Path:
    return begun / "kept" / "lmscaling-gpu.zip"


def changed(path: Path, name: str, content: str) -> Path:
    """A copy of an archive with one file changed or added."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(path.with_name("new.zip"), "w") as new:
        for each_name in {*old.namelist(), name}:
            new.writestr(each_name, content if each_name == name else old.read(each_name))
    return path.with_name("new.zip")


def test_an_archive_of_another_version_is_refused(packed, tmp_path):
    with zipfile.ZipFile(packed) as file:
        first, *rest = file.read("records.jsonl").decode().splitlines()
    other = "\n".join([json.dumps(json.loads(first) | {"format": 99}), *rest, ""])
    with pytest.raises(UserError, match="format 99"):
        archive.unpack(changed(packed, "records.jsonl", other), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_an_archive_writes_only_names_of_ours(packed, tmp_path):
    hostile = changed(packed, "runs/../../../evil.json", "{}")
    archive.unpack(hostile, tmp_path / "m" / "d")
    assert not list(tmp_path.rglob("evil.json"))


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "bits", "folder", "missing"])
def test_a_damaged_or_missing_archive_is_one_sentence(packed, tmp_path, damage):
    content = packed.read_bytes()
    packed.unlink()
    if damage == "folder":
        packed.mkdir()
    elif damage != "missing":
        changed_bits = content[:100] + bytes(255 - x for x in content[100:200]) + content[200:]
        cut = content[: len(content) // 2]
        of = {"empty": b"", "text": b"no archive", "cut": cut, "bits": changed_bits}
        packed.write_bytes(of[damage])
    with pytest.raises(UserError, match=r"copy it again|correct its path"):
        archive.unpack(packed, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_an_import_does_not_mix_with_other_records(packed, tmp_path):
    out = tmp_path / "m" / "d"
    archive.unpack(packed, out)
    with zipfile.ZipFile(packed) as file:
        first, *rest = file.read("records.jsonl").decode().splitlines()
    other = "\n".join([json.dumps(json.loads(first) | {"id": "another"}), *rest, ""])
    with pytest.raises(UserError, match=r"other records.*--out"):
        archive.unpack(changed(packed, "records.jsonl", other), out)


def test_a_device_is_a_folder_name(packed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    archive.unpack(packed, None)
    (folder,) = Path("results/measured").iterdir()
    assert folder.name.replace("-", "").isalnum()
    assert folder.name == folder.name.lower()


# What must be there


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_says_so_before_anything_is_measured(tmp_path):
    with pytest.raises(UserError, match=r"this machine has none.*PRESET=cpu"):
        measure(tmp_path / "d", of_a_gpu())
    assert not (tmp_path / "d").exists()


def test_a_missing_vocabulary_is_said_before_anything_is_measured(tmp_path, monkeypatch):
    def offline(name):
        raise OSError("no network")

    monkeypatch.setattr("tiktoken.get_encoding", offline)
    with pytest.raises(UserError, match="TIKTOKEN_CACHE_DIR"):
        measure(tmp_path / "d", study({"tokenizer": "gpt2"}))
    assert not (tmp_path / "d").exists()


def test_a_missing_text_is_said_before_anything_is_measured(tmp_path):
    row = {"sources": {"kind": "stdlib", "validation": ["c4.jsonl"]}}
    with pytest.raises(UserError, match=r"c4\.jsonl does not exist"):
        measure(tmp_path / "d", study({"datasets": row}))
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("sys.modules['pydantic'] = None", "has no pydantic; "),
        ("import typing_extensions; del typing_extensions.Sentinel", "another typing_extensions"),
        ("sys.modules['isal'] = None", "isal cannot be used"),
    ],
)
def test_a_missing_or_old_package_is_one_sentence(tmp_path, module, said):
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{module}\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", str(ROOT / "src"))])
    command = ["gpu", *map(str, FILES), "--out", str(tmp_path / "d"), "--minutes", "0.01"]
    done = lmscaling(*command, env=os.environ | {"PYTHONPATH": path}, cwd=ROOT)
    assert done.returncode == 1
    assert said in done.stderr
    assert "wheels/" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_versions_do_not_need_an_installed_package(monkeypatch):
    def version(name):
        assert name != "lmscaling"
        return "1"

    monkeypatch.setattr(environment, "version", version)
    assert environment.versions()["lmscaling"]


def test_the_version_of_ptxas_is_that_of_triton(monkeypatch):
    compiler = pytest.importorskip("triton.backends.nvidia.compiler")
    path = compiler.get_ptxas(90).path
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    assert f", V{environment.ptxas(9, 0)['ptxas']}\n" in said
    monkeypatch.setitem(sys.modules, "triton.backends.nvidia.compiler", None)
    assert environment.ptxas(9, 0) == {}


def test_make_gpu_neither_installs_nor_connects():
    done = subprocess.run(
        ["make", "-n", "gpu", "PRESET=cpu"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "pip" not in done.stdout
    assert "venv" not in done.stdout
    assert "PYTHONPATH=src:wheels python3 -m lmscaling gpu" in done.stdout


def test_records_stay_out_of_git_until_they_are_imported():
    given = subprocess.run(["git", "check-ignore", "build/measured/records.jsonl"], cwd=ROOT)
    assert given.returncode == 0


# Numbers


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_centring_keeps_dq_where_values_have_a_mean(mean):
    torch.manual_seed(0)
    q, k, v, dy = (torch.randn(1, 1024, 1, 64) for _ in range(4))
    v = v + mean * torch.randn(64)
    rows = gradient_error.compared(*(x.bfloat16() for x in (q, k, v, dy)))
    errors = {row["implementation"]: row["dq_error"] for row in rows}
    assert errors["centred"] < 0.006
    assert errors["chunked"] < 0.006
    assert errors["uncentred"] < 0.01 if not mean else 0.1 < errors["uncentred"] < 0.2


def test_mean_over_deviation_is_what_it_says():
    v = torch.randn(1, 4000, 2, 8, generator=torch.Generator().manual_seed(0)) * 2 + 6
    assert gradient_error.mean_over_sd(v) == pytest.approx(3, rel=0.02)


def test_layers_see_what_training_shows_them(cell, tokens):
    from lmscaling.model.gpt import GPT

    ids = torch.from_numpy(Stream(tokens, "train").read(0, cell.context + 1).astype("int64"))
    (q, k, v, dy), *rest = gradient_error.inputs(GPT(cell), ids)
    assert not rest  # one block
    assert q.shape == k.shape == v.shape == dy.shape == (1, cell.context, 1, 8)
    assert dy.float().abs().sum() > 0


# Targets


def test_targets_are_measured_and_judged(tmp_path):
    columns = (
        "kind VARCHAR, implementation VARCHAR, passes VARCHAR, dtype VARCHAR, batch BIGINT, "
        "n_head BIGINT, context BIGINT, ns_per_token_head DOUBLE, median_seconds DOUBLE, "
        "status VARCHAR, setup VARCHAR"
    )
    with duckdb.connect() as db:
        db.execute(f"CREATE TABLE kernel_times ({columns})")
        for kind, name, ns in (
            ("linear", "chunked", 0.5), ("softmax", "flash", 2.0), ("softmax", "cudnn", 1.0),
            ("peer", "fla_chunk", 2.0),
        ):  # fmt: skip
            row = (kind, name, "forward+backward", "bfloat16", 128, 12, 1024, ns, 1e-3, "done", "x")
            db.execute("INSERT INTO kernel_times VALUES (" + "?, " * 10 + "?)", row)
        found = {
            t.name: t.verdict(db.sql(t.query).fetchall()[0][0])
            for t in targets.TARGETS
            if "kernel_times" in t.query
        }
    assert found["the same, forward and backward"] == "reached"
    assert found["flash-linear-attention against ours, median"] == "reached"
    assert found["fastest softmax against ours, minimum from 512 tokens"] == "reached"
    assert found["fused linear attention, forward, full device"] == "not measured"


def test_a_target_that_is_missed_says_by_how_much():
    least = next(t for t in targets.TARGETS if t.bound == "at least" and t.value == 35)
    assert least.verdict(35.0) == "reached"
    assert least.verdict(28.0) == "missed by 20%"
    most = next(t for t in targets.TARGETS if t.value == 600)
    assert most.verdict(900.0) == "missed by 50%"
    assert most.verdict(None) == "not measured"
