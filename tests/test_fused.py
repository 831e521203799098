"""All kernels, by their ``*_cases.py`` in a process of their own; see kernel_device.py."""

import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from xml.etree import ElementTree

import offline
import pytest
import torch

HERE = Path(__file__).parent
KERNELS = ("fused", "fused_state", "quadratic")
OTHERS = offline.others()
WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from lmscaling import kernels
from lmscaling.kernels import cross_entropy
x = torch.ones(1, 3, 1, 4)
for name in ("chunked", "attention_parallel"):
    assert torch.equal(kernels.load("linear", name)(x, x, x, "softplus", True), x)
assert torch.equal(kernels.load("gated_delta", "plain")(x, x / 2, 4 * x, x[..., 0])[0], 4 * x)
assert cross_entropy.mean(x[0, :, 0], x[0, :, 0], torch.zeros(3, dtype=int), 2).isfinite()
"""


@cache
def ran(*options, interpret=True, triton=offline.INSTALLED):
    """Names of the cases that run with these options and what was wrong with them, by the file."""
    given = {n: x for n, x in offline.environment(triton).items() if not n.startswith("PYTEST_")}
    given["PYTHONPATH"] += os.pathsep + str(HERE)
    given |= {"TRITON_INTERPRET": str(int(interpret)), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider"]
    files = [HERE / f"{kernel}_cases.py" for kernel in KERNELS]
    with NamedTemporaryFile(suffix=".xml") as out:
        command += ["-p", "kernel_device", f"--junitxml={out.name}", *options]
        done = subprocess.run([*command, *files], env=given, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        cases = [*ElementTree.parse(out.name).iter("testcase")]
    found = {kernel: [] for kernel in KERNELS}
    for case in cases:
        kernel = case.attrib["classname"].split(".")[-1].removesuffix("_cases")
        faults = [case.find("failure"), case.find("error")]
        wrong = "\n".join(x.text or done.stdout for x in faults if x is not None)
        found[kernel].append((case.attrib["name"], wrong))
    return found


def check(cases):
    assert cases
    assert [(name, wrong) for name, wrong in cases if wrong] == []


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("marked", ["not ci", pytest.param("ci", marks=pytest.mark.ci)])
def test_kernels_are_right_in_the_interpreter(marked, kernel):
    check(ran("-m", marked)[kernel])


@pytest.mark.ci
@pytest.mark.skipif(not OTHERS, reason="no versions of Triton in .triton/: make compilers")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("triton", OTHERS)
def test_a_sample_is_right_by_every_triton_that_a_pytorch_asks_for(triton, kernel):
    check(ran("-m", "", "-k", "sample", triton=triton)[kernel])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_are_right_on_a_device(kernel):
    check(ran("-m", "", interpret=False)[kernel])


def test_plain_pytorch_needs_no_triton():
    subprocess.run([sys.executable, "-c", WITHOUT_TRITON], check=True)
