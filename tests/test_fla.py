"""Layers of flash-linear-attention as variants; what computes is in fla_cases.py."""

import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import refused

from lmscaling import attention
from lmscaling.attention import fla
from lmscaling.config import code
from lmscaling.errors import UserError
from lmscaling.model import sizing

HERE = Path(__file__).parent
installed = pytest.mark.skipif(
    not (find_spec("fla") and find_spec("triton")),
    reason="flash-linear-attention or Triton is not installed",
)


@installed
@pytest.mark.ci
def test_layers_and_kernels_are_right_in_the_interpreter():
    given = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, HERE / "fla_cases.py"], env=given, capture_output=True)
    assert done.returncode == 0, done.stdout.decode()


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch):
    loaded = import_module("lmscaling.attention.fla")  # another test may have read it anew
    monkeypatch.setattr(loaded, "find_spec", lambda name: None)
    with refused(UserError, "flash-linear-attention", "lmscaling[fla]"):
        attention.build("fla", 64, 2, layer="GatedLinearAttention")


@installed
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layer": "GatedLinearAtention"}, ("GatedLinearAtention", "GatedLinearAttention")),
        ({"layer": "GatedDeltaNet", "expand": 2}, ("GatedDeltaNet", "'expand'", "expand_v")),
        ({"layer": "GatedDeltaNet", "hidden_size": 2}, ("GatedDeltaNet", "'hidden_size'")),
        ({"layer": "GatedDeltaNet", "head_dim": 3, "expand_v": 1.5}, ("GatedDeltaNet", "expand_v")),
    ],
)
def test_a_layer_or_an_option_that_it_does_not_have_is_named(options, said):
    with refused(UserError, *said):
        attention.build("fla", 64, 2, **options)


@installed
def test_without_a_gpu_it_is_refused_by_plan_and_check(cell):
    layer = attention.build("fla", 64, 2, layer="GatedLinearAttention")
    with refused(UserError, "fla", "gpus: 1"):
        layer(torch.zeros(1, 8, 64))
    with refused(UserError, "fla", "gpus: 1"):
        sizing.shape(replace(cell, attention="fla"))


@installed
def test_its_version_is_a_part_of_the_code_on_gpus():
    file = Path(fla.__file__)
    assert code.packages([file], 0) == {}
    (version,) = code.packages([file], 1).values()
    assert code.fingerprint([file]) != code.fingerprint([file], {"flash-linear-attention": version})
