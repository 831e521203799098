"""The command that measures a device: it stops in time, goes on, refuses what is wrong."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest
import torch
import yaml
from conftest import ROOT
from test_main import lmscaling

from lmscaling import figures, kernels
from lmscaling.bench import sweep as runner
from lmscaling.bench.checks import kernels as checks
from lmscaling.bench.checks.passed_checks import faults
from lmscaling.config import grid, study_file, sweeps
from lmscaling.config.types import dump
from lmscaling.data.stream import Stream
from lmscaling.device import measure, session, targets
from lmscaling.device.plan import Step, checks_file, steps
from lmscaling.device.session import Session
from lmscaling.errors import UserError
from lmscaling.evaluate import gradient_error
from lmscaling.files import write_json
from lmscaling.kernels.linear import chunked
from lmscaling.runtime import environment
from lmscaling.store import build as store

FILES = [ROOT / "config" / name for name in ("study.yaml", "gpu.yaml", "gpu_cpu.yaml")]
TINY = {
    "sizes": {"s": {"n_layer": 1, "n_head": 2, "d_model": 16, "lr": 1e-2}},
    "axes": {"attention": ["linear"], "size": ["s"], "context": [64]},
    "update_tokens": 128,
    "budget": "6 updates",
    "validation": {"tokens": 512, "every_tokens": 256},
    "branches": {"shares": [1.0], "size": "s"},
    "evaluate": {"datasets": ["sources"], "size": "s"},
    "speed": {
        "repeats": 3,
        "target_seconds": 0.01,
        "time_step": {"sizes": ["s"], "contexts": [16, 32]},
        "time_decode": {"sizes": ["s"], "contexts": [16]},
        "time_layer": [],
    },
    "published": False,
}
BLOCKED = ("snakemake", "duckdb", "datasets", "pandas", "scipy", "seaborn")


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    """Study files that take seconds."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return [*map(str, FILES), str(path)]


def plan(files: list[str], out: Path) -> list[Step]:
    grid_ = grid.expand(study_file.read_study([Path(f) for f in files]))
    return steps(grid_, out, checks.names(0))


def device() -> dict:
    return {"device": "d", "versions": {"torch": "1", "triton": "1"}}


def step(out: Path, name: str, code: str, **values) -> Step:
    """A step of our own that runs some Python."""
    result = out / f"{name}.txt"
    command = (sys.executable, "-c", f"path = {str(result)!r}\n{code}")
    return Step("runs", name, result, command, **values)


WRITE = "open(path, 'a').write('once ')"


def wrong_keys(q, k, v, feature_map, normalize, chunk=64):
    """Right forward; the gradient by the keys is lost."""
    return chunked.attend(q, k.detach(), v, feature_map, normalize) + 0 * k.sum()


# The whole command


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command leaves, with modules blocked that a GPU machine may lack."""
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({BLOCKED}))\n"
    (folder / "sitecustomize.py").write_text(blocked)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", str(ROOT / "src"))])
    command = ["gpu", *map(str, FILES), str(folder / "tiny.yaml")]
    command += ["--out", str(folder / "measured" / "d"), "--minutes", "60"]
    done = lmscaling(*command, env=os.environ | {"PYTHONPATH": path}, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu: complete" in done.stdout
    before = snapshot(folder / "measured" / "d")
    again = lmscaling(*command, env=os.environ | {"PYTHONPATH": path}, cwd=ROOT)
    assert again.returncode == 0, again.stdout + again.stderr
    assert snapshot(folder / "measured" / "d") == before
    return folder / "measured" / "d"


def snapshot(out: Path) -> dict[str, int]:
    """When every record was written."""
    names = ("runs", "speed", "checks", "numerics", "evaluations", "tokens", "logs")
    return {
        str(path): path.stat().st_mtime_ns
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.relative_to(out).parts[0] in names
    }


@pytest.mark.ci
def test_all_parts_leave_records_that_the_store_reads(measured):
    counts = store.build(measured)
    assert counts["runs"] == 2  # a trunk and its branch
    assert counts["measurements"] == 2 + 4 + 2 + 2  # and the two ceilings
    assert counts["numerics"] == 4  # one layer, four ways
    assert counts["evaluations"]
    with store.connect(measured / "store") as db:
        assert db.sql("SELECT DISTINCT status FROM checks").fetchall() == [("right",)]
        statuses = db.sql("SELECT DISTINCT status FROM runs").fetchall()
        assert statuses == [("done",)]
        assert db.sql("SELECT count(*) FROM speeds WHERE flops_per_token > 0").fetchall() == [(6,)]
        assert all(number is None for number in targets.measure(db))  # all are for a GPU


@pytest.mark.ci
def test_what_was_measured_is_drawn(measured):
    store.build(measured)
    for name in ("dq_error", "throughput", "step_time"):
        path = figures.save(name, measured / "store", measured / "figures")
        assert not figures.is_empty(name, path.parent), name


# What there is to do


def test_a_step_needs_only_results_of_earlier_steps(tiny, tmp_path):
    planned = plan(tiny, tmp_path)
    results: set[Path] = set()
    for one in planned:
        assert set(one.needs) <= results, one.name
        assert not one.done
        results.add(one.result)
    assert len(results) == len(planned)
    parts = {one.part for one in planned}
    assert parts >= {"checks", "speed", "tokens", "runs", "branches", "evaluate", "gradient-error"}


def test_every_sweep_of_a_study_is_measured_after_the_checks_of_its_points(tiny, tmp_path):
    tune = {"chunks": [16], "implementations": ["linear/chunked"]}
    (tmp_path / "extra.yaml").write_text(yaml.safe_dump({"speed": {"tune_chunk": tune}}))
    planned = plan([*tiny, str(tmp_path / "extra.yaml")], tmp_path)
    kinds = {one.sweep.kind: one for one in planned if one.sweep}
    assert set(kinds) >= {"time_throughput", "time_step", "time_decode", "tune_chunk"}
    assert checks_file(tmp_path, "linear/chunked") in kinds["time_step"].needs
    assert checks_file(tmp_path, "softmax") in kinds["time_decode"].needs
    tuned = kinds["tune_chunk"].result
    assert tuned in kinds["time_step"].needs
    assert kinds["time_step"].command[-2:] == ("--chunks", str(tuned))


def test_the_study_of_a_gpu_is_complete():
    study = grid.expand(study_file.read_study(FILES[:2]))
    assert len(study.cells) == 16
    assert {cell.size for cell in study.cells.values()} == {"10M", "25M"}
    kinds = {sweep.kind for sweep in sweeps.expand(study.study).values()}
    assert kinds >= {"time_decode", "time_step", "time_throughput"}


# One call after another


def test_a_step_that_is_done_is_not_repeated(tmp_path, capsys):
    planned = [step(tmp_path, name, WRITE) for name in ("a", "b")]
    (tmp_path / "a.txt").write_text("before")
    assert Session(tmp_path, planned, device(), 60).run()
    assert [one.result.read_text() for one in planned] == ["before", "once "]
    assert Session(tmp_path, planned, device(), 60).run()
    assert planned[1].result.read_text() == "once "
    assert capsys.readouterr().out.count("done") == 1


def test_a_call_stops_in_time_and_the_next_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(session, "START_SECONDS", {True: 0.0, False: 0.0})
    monkeypatch.setattr(session.Step, "resumes", True)
    slow = step(tmp_path, "slow", f"import time\ntime.sleep(1.5)\n{WRITE}")
    after = step(tmp_path, "after", WRITE, needs=(slow.result,))
    begun = time.monotonic()
    assert not Session(tmp_path, [slow, after], device(), 1.2).run()
    assert time.monotonic() - begun < 1.8
    assert not after.done
    assert "2 steps are left" in Session(tmp_path, [slow, after], device(), 1.2).table()
    assert Session(tmp_path, [slow, after], device(), 60).run()
    assert after.done


def test_a_step_for_which_too_little_time_is_left_is_not_started(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "GRACE_SECONDS", 0.5)
    first, second = step(tmp_path, "first", WRITE), step(tmp_path, "second", WRITE)
    assert not Session(tmp_path, [first, second], device(), 10).run()
    assert first.done
    assert not second.done


def test_a_step_that_a_complete_call_is_too_short_for_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "GRACE_SECONDS", 0.2)
    long = step(tmp_path, "long", "import time\ntime.sleep(9)")
    call = Session(tmp_path, [long], device(), 0.5)
    assert call.run()
    assert "left out: runs long: failed" in call.table()
    log = tmp_path / "logs" / "failed" / "runs.long.log"
    assert "error: not done after 0 s" in log.read_text()


def test_a_crash_costs_one_step_and_those_that_need_it(tmp_path, capsys):
    bad = step(tmp_path, "bad", "raise SystemExit('it broke')")
    after = step(tmp_path, "after", WRITE, needs=(bad.result,))
    other = step(tmp_path, "other", WRITE)
    call = Session(tmp_path, [bad, after, other], device(), 600)
    assert call.run()  # nothing is left that can be done
    assert other.done
    assert "it broke" in capsys.readouterr().out
    log = tmp_path / "logs" / "failed" / "runs.bad.log"
    assert f"left out: runs bad: failed; to try again, delete its log {log}" in call.table()
    assert "left out: runs after: needs" in call.table()
    assert "gpu: complete" in call.table()
    assert call.run()
    assert "it broke" not in capsys.readouterr().out
    log.unlink()
    assert "2 steps are left" in call.table()


# What is wrong


def test_a_wrong_kernel_is_named_and_nothing_of_it_is_timed(tmp_path, monkeypatch, tiny, capsys):
    right = kernels.load
    monkeypatch.setattr(
        kernels, "load", lambda *name: wrong_keys if name == ("linear", "chunked") else right(*name)
    )
    folder = tmp_path / "checks"
    for name in ("linear/chunked", "softmax/flash", "linear", "softmax"):
        said = checks.check(checks_file(tmp_path, name), [name], 0)
        assert ("wrong" in said) == name.startswith("linear/"), said
    here = environment.complete(0)
    assert "dk of integers is not exact" in faults(folder, "linear/chunked", here)
    assert faults(folder, "softmax/flash", here) == ""
    made = grid.expand(study_file.read_study([Path(f) for f in tiny]))
    planned = sweeps.expand(made.study).values()
    sweep = next(sweep for sweep in planned if sweep.kind == "time_step")
    write_json(tmp_path / "sweep.json", dump(sweep))
    runner.measure(tmp_path / "sweep.json", "time_step", tmp_path / "out", None, folder)
    statuses = json.loads((tmp_path / "out" / "sweep.json").read_text())["statuses"]
    assert statuses["linear.chunked-b1-ctx16"] == "wrong"
    assert statuses["softmax.flash-b1-ctx32"] == "done"
    run = step(tmp_path, "run", WRITE, attention="linear/chunked")
    call = Session(tmp_path, [run], here, 60)
    assert call.run()
    assert not run.done
    assert "left out: runs run: linear/chunked" in call.table()


def test_a_kernel_that_ends_its_process_is_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "load", lambda *_: lambda *_: os._exit(3))
    said = checks.check(tmp_path / "checks" / "x.jsonl", ["linear/state"], 0)
    assert "failed" in said
    assert "exit code 3" in faults(tmp_path / "checks", "linear/state", environment.complete(0))


def test_what_was_not_checked_here_is_not_timed(tmp_path):
    checks.check(tmp_path / "x.jsonl", ["softmax/flash"], 0)
    here = environment.complete(0)
    assert not faults(tmp_path, "softmax/flash", here)
    assert "was not checked" in faults(tmp_path, "softmax/no_flash", here)
    other = here | {"versions": here["versions"] | {"torch": "0"}}
    assert "was not checked" in faults(tmp_path, "softmax/flash", other)


def test_another_ptxas_is_another_setup(tmp_path):
    checks.check(tmp_path / "checks" / "x.jsonl", ["softmax/flash"], 0)
    here = environment.complete(0)
    other = here | {"versions": here["versions"] | {"ptxas": "13.5.37"}}
    assert "was not checked" in faults(tmp_path / "checks", "softmax/flash", other)
    with pytest.raises(UserError, match=r"ptxas none and this is .* ptxas 13\.5\.37"):
        measure.check_setup(tmp_path, other)


def test_the_version_of_ptxas_is_that_of_triton(monkeypatch):
    compiler = pytest.importorskip("triton.backends.nvidia.compiler")
    path = compiler.get_ptxas(90).path
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    assert f", V{environment.ptxas(9, 0)['ptxas']}\n" in said
    monkeypatch.setitem(sys.modules, "triton.backends.nvidia.compiler", None)
    assert environment.ptxas(9, 0) == {}


# What must be there


def test_a_folder_of_another_setup_is_refused(tmp_path):
    checks.check(tmp_path / "checks" / "x.jsonl", ["softmax/flash"], 0)
    measure.check_setup(tmp_path, environment.complete(0))
    other = environment.complete(0) | {"device": "NVIDIA H100"}
    with pytest.raises(UserError, match="and this is NVIDIA H100"):
        measure.check_setup(tmp_path, other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_says_so_before_anything_is_measured(tmp_path):
    with pytest.raises(UserError, match="this machine has none"):
        measure.measure(FILES[:2], tmp_path / "d", [], 1)
    assert not (tmp_path / "d").exists()


def test_a_missing_vocabulary_is_said_before_anything_is_measured(tiny, tmp_path, monkeypatch):
    def offline(name):
        raise OSError("no network")

    monkeypatch.setattr("tiktoken.get_encoding", offline)
    (tmp_path / "gpt2.yaml").write_text("tokenizer: gpt2")
    files = [Path(f) for f in [*tiny, str(tmp_path / "gpt2.yaml")]]
    with pytest.raises(UserError, match="TIKTOKEN_CACHE_DIR"):
        measure.measure(files, tmp_path / "d", [], 1)
    assert not (tmp_path / "d").exists()


def test_a_missing_package_is_one_sentence(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pydantic'] = None\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", str(ROOT / "src"))])
    done = lmscaling("gpu", env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 1
    assert done.stderr.startswith("error: this Python has no pydantic; ")
    assert len(done.stderr.splitlines()) == 1


def test_versions_do_not_need_an_installed_package(monkeypatch):
    def version(name):
        assert name != "lmscaling"
        return "1"

    monkeypatch.setattr(environment, "version", version)
    assert environment.versions()["lmscaling"]


def test_given_documents_are_the_validation_set_of_later_calls_too(tiny, tmp_path, monkeypatch):
    (tmp_path / "v.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    monkeypatch.setattr(Session, "run", lambda self: True)
    for given in ([str(tmp_path / "v.jsonl")], []):
        measure.measure([Path(f) for f in tiny], tmp_path / "d", given, 1)
        values = json.loads((tmp_path / "d" / "study.json").read_text())["study"]
        assert values["datasets"]["sources"]["validation"] == [str(tmp_path / "v.jsonl")]


def test_a_device_is_a_folder_name():
    assert measure.folder_name("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"


def test_make_gpu_neither_installs_nor_connects():
    done = subprocess.run(
        ["make", "-n", "gpu", "PRESET=cpu"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "pip" not in done.stdout
    assert "venv" not in done.stdout
    assert "PYTHONPATH=src:wheels python3 -m lmscaling gpu" in done.stdout


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
