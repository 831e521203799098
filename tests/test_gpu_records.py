"""What a call that measures a device leaves, what it needs, and what its numbers say."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import gradient_error
import pytest
import targets
import torch
from conftest import ROOT, refused
from test_gpu import FILES, STEP, ceilings, lines_of, measure, read, study  # noqa: F401
from test_main import lmscaling

from lmscaling import kernels
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.gpu import archive
from lmscaling.kernels.linear import forms
from lmscaling.model.gpt import GPT
from lmscaling.runtime import environment, gpus


@pytest.fixture
def begun(ceilings: Path, tmp_path: Path) -> Path:  # noqa: F811
    return Path(shutil.copytree(ceilings, tmp_path / "d"))


@pytest.fixture
def packed(begun: Path) -> Path:
    return begun / "kept" / "lmscaling-gpu.zip"


def with_device(path: Path, **values) -> Path:
    """A copy of an archive with other values in its first line, which is of the device."""
    new = path.with_name("new.zip")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(new, "w") as copy:
        for name in old.namelist():
            content = old.read(name)
            if name == "records.jsonl":
                first, rest = content.split(b"\n", 1)
                content = json.dumps(json.loads(first) | values).encode() + b"\n" + rest
            copy.writestr(name, content)
    return new


def test_an_archive_of_another_version_and_records_of_another_one_are_refused(
    packed, tmp_path, monkeypatch
):
    out = tmp_path / "m" / "d"
    with refused(UserError, "format 99"):
        archive.unpack(with_device(packed, format=99), out)
    assert not out.parent.exists()
    with zipfile.ZipFile(packed, "a") as file:
        file.writestr("runs/../../../evil.json", "{}")
    archive.unpack(packed, out)
    assert not list(tmp_path.rglob("evil.json"))
    with refused(UserError, out, "--out"):
        archive.unpack(with_device(packed, id="another"), out)
    monkeypatch.chdir(tmp_path)
    archive.unpack(packed, None)
    (name,) = os.listdir("results/measured")  # by the name of the device
    assert re.fullmatch(r"[a-z0-9-]+", name)


DAMAGE = {
    "empty": lambda p: p.write_bytes(b""),
    "text": lambda p: p.write_bytes(b"no archive"),
    "cut": lambda p: os.truncate(p, p.stat().st_size // 2),
    "bits": lambda p: p.write_bytes(
        bytes(x if i < 100 else 255 - x for i, x in enumerate(p.read_bytes()))
    ),
    "folder": lambda p: (p.unlink(), p.mkdir()),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_missing_archive_is_refused(packed, tmp_path, damage):
    DAMAGE[damage](packed)
    with pytest.raises(UserError, match=packed.name):  # zipfile has words of its own
        archive.unpack(packed, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def wrong_keys(q, k, v, feature_map, normalize, chunk=64):
    """Right forward; the gradient by the keys is lost."""
    return forms.chunked(q, k.detach(), v, feature_map, normalize) + 0 * k.sum()


def test_a_wrong_kernel_is_named_and_its_times_are_not_used(tmp_path, monkeypatch):
    chosen, load = {("linear", "chunked"): wrong_keys}, kernels.load
    monkeypatch.setattr(kernels, "load", lambda *name: chosen.get(name) or load(*name))
    measure(tmp_path / "d", study(), parts=["right", "step"])
    lines = lines_of(tmp_path / "d")
    assert lines["right/linear/chunked"]["value"]["message"].startswith("dk of integers")
    assert not lines["right/softmax/flash"]["value"]["message"]
    archive.unpack(tmp_path / "d" / "kept" / "lmscaling-gpu.zip", tmp_path / "m" / "d")
    paths = (tmp_path / "m" / "d").glob("speed/time_step/*/*.json")
    rows = {path.stem: json.loads(path.read_text()) for path in paths}
    assert (rows[STEP]["status"], rows[STEP]["median_seconds"]) == ("wrong", None)
    assert rows["softmax.flash-b2-ctx16"]["status"] == "done"
    # One that ends its process is a line, too.
    monkeypatch.setattr(kernels, "load", lambda *_: lambda *_: os._exit(3))
    measure(tmp_path / "other", study(), parts=["right"])
    assert "exit code 3" in lines_of(tmp_path / "other")["right/softmax/flash"]["message"]


def test_records_of_another_device_version_study_or_call_are_not_continued(begun):
    path = begun / "records.jsonl"
    whole = path.read_text()
    first, rest = whole.split("\n", 1)
    for key, value in (("device", "NVIDIA H200"), ("torch", "1.0"), ("ptxas", "12.0")):
        line = json.loads(first)
        said = line["environment"] if key == "device" else line["environment"]["versions"]
        said[key] = value
        path.write_text(json.dumps(line) + "\n" + rest)
        with pytest.raises(UserError, match=f"{value}.*--out"):  # names this machine
            measure(begun, study(), parts=["ceiling"])
    path.write_text(whole)
    with gpus.locked(begun / "lock"), refused(UserError, begun):
        measure(begun, study(), parts=["ceiling"])
    with refused(UserError, begun, "--out"):
        measure(begun, study({"budget": "7 updates"}), parts=["ceiling"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_says_so_before_anything_is_measured(tmp_path):
    with refused(UserError, "PRESET=cpu"):
        measure(tmp_path / "d", read(2))
    assert not (tmp_path / "d").exists()


MISSING_TEXT = {"datasets": {"sources": {"kind": "stdlib", "validation": ["c4.jsonl"]}}}


@pytest.mark.parametrize(("overlay", "values"), [
    ({"tokenizer": "gpt2"}, ["TIKTOKEN_CACHE_DIR"]), (MISSING_TEXT, ["c4.jsonl", "sources"]),
    ({}, ["xxhash", "wheels/"]),
])  # fmt: skip
def test_what_is_missing_is_said_before_anything_is_measured(
    tmp_path, monkeypatch, overlay, values
):
    def offline(name):
        raise OSError("no network")

    monkeypatch.setattr("tiktoken.get_encoding", offline)
    if not overlay:  # a package that cannot be used
        monkeypatch.setitem(sys.modules, "xxhash", None)
    with refused(UserError, *values):
        measure(tmp_path / "d", study(overlay))
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(("module", "said"), [
    ("sys.modules['pydantic'] = None", "pydantic"),
    ("import typing_extensions; del typing_extensions.Sentinel", "typing_extensions"),
])  # fmt: skip
def test_a_missing_or_old_package_is_one_sentence(tmp_path, module, said):
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{module}\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", str(ROOT / "src"))])
    command = ["gpu", *map(str, FILES), "--out", str(tmp_path / "d"), "--minutes", "0.01"]
    done = lmscaling(*command, env=os.environ | {"PYTHONPATH": path}, cwd=ROOT)
    assert done.returncode == 1
    assert said in done.stderr
    assert "wheels/" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_version_of_ptxas_is_that_of_triton(monkeypatch):
    compiler = pytest.importorskip("triton.backends.nvidia.compiler")
    path = compiler.get_ptxas(90).path
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    assert f", V{environment.ptxas(9, 0)['ptxas']}\n" in said
    monkeypatch.setitem(sys.modules, "triton.backends.nvidia.compiler", None)
    assert environment.ptxas(9, 0) == {}


def test_make_gpu_neither_installs_nor_connects():
    done = subprocess.check_output(["make", "-n", "gpu", "PRESET=cpu"], cwd=ROOT, text=True)
    assert not {"pip", "venv"} & {*re.findall(r"\w+", done)}
    assert "PYTHONPATH=src:wheels" in done


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


def test_layers_see_what_training_shows_them(cell, tokens):
    ids = torch.from_numpy(Stream(tokens, "train").read(0, cell.context + 1).astype("int64"))
    (q, k, v, dy), *rest = gradient_error.inputs(GPT(cell), ids)
    assert not rest  # one block
    assert q.shape == k.shape == v.shape == dy.shape == (1, cell.context, 1, 8)
    assert dy.float().abs().sum() > 0
    v = torch.randn(1, 4000, 2, 8, generator=torch.Generator().manual_seed(0)) * 2 + 6
    assert gradient_error.mean_over_sd(v) == pytest.approx(3, rel=0.02)


def test_a_target_that_is_missed_says_by_how_much():
    least = next(t for t in targets.TARGETS if t.bound == "at least" and t.value == 35)
    assert least.verdict(35.0) == "reached"
    assert least.verdict(28.0).endswith("20%")
    most = next(t for t in targets.TARGETS if t.value == 600)
    assert most.verdict(900.0).endswith("50%")
    assert most.verdict(None) == "not measured"
