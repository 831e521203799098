"""All kernels, by their ``*_cases.py`` in processes of their own; see kernel_device.py.

The quick cases of all kernels share one process of Triton's interpreter, and so do the others.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

KERNELS = ("fused", "fused_state", "quadratic", "delta", "cross_entropy", "masked")
FILES = [Path(__file__).with_name(f"{kernel}_cases.py") for kernel in KERNELS]
WITH_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
ON_A_DEVICE = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from lmscaling import kernels
from lmscaling.kernels import cross_entropy
x = torch.ones(1, 3, 1, 4)
for name in ("chunked", "attention_parallel"):
    assert torch.equal(kernels.load("linear", name)(x, x, x, "softplus", True), x)
assert torch.equal(kernels.load("gated_delta", "chunked")(x, x / 2, 4 * x, x[..., 0])[0], 4 * x)
assert cross_entropy.mean(x[0, :, 0], x[0, :, 0], torch.zeros(3, dtype=int), 2).isfinite()
"""


def start(options: list[str], interpret: bool, environment: Mapping[str, str] = os.environ) -> str:
    """A run of cases that passes."""
    given = {name: x for name, x in environment.items() if not name.startswith("PYTEST_")}
    chosen = {"TRITON_INTERPRET": str(int(interpret)), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *options], env=given | chosen, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def run_cases(
    part: str,
    interpret: bool,
    cases: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Those of a file, or of all, whose name has a part must pass."""
    files = [str(file) for file in ([cases] if cases else FILES)]
    said = start(["-k", part, "-m", "", *files], interpret, environment)
    assert " passed" in said, said
    assert " failed" not in said, said
    assert " error" not in said, said


@cache
def ran(folder: Path, marked: str, interpret: bool) -> dict[str, list[tuple[str, str]]]:
    """Names of cases and what was wrong with them, by the file."""
    out = folder / f"{marked or 'all'}.xml"
    said = start(["-m", marked, f"--junitxml={out}", *map(str, FILES)], interpret)
    found = {kernel: [] for kernel in KERNELS}
    for case in ElementTree.parse(out).iter("testcase"):
        kernel = case.attrib["classname"].split(".")[-1].removesuffix("_cases")
        faults = [case.find("failure"), case.find("error")]
        wrong = "\n".join(x.text or said for x in faults if x is not None)
        found[kernel].append((case.attrib["name"], wrong))
    return found


def check(cases: list[tuple[str, str]]) -> None:
    assert cases
    assert [(name, wrong) for name, wrong in cases if wrong] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cases")


@WITH_TRITON
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_are_right_in_the_interpreter(folder: Path, kernel: str) -> None:
    check(ran(folder, "not ci", True)[kernel])


@pytest.mark.ci
@WITH_TRITON
@pytest.mark.parametrize("kernel", ["fused", "quadratic", "cross_entropy", "masked"])
def test_slower_cases_are_right_in_the_interpreter(folder: Path, kernel: str) -> None:
    check(ran(folder, "ci", True)[kernel])


@pytest.mark.gpu
@ON_A_DEVICE
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_are_right_on_a_device(folder: Path, kernel: str) -> None:
    check(ran(folder, "", False)[kernel])


def test_plain_pytorch_needs_no_triton() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TRITON], check=True)
