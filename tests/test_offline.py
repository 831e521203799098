"""What compilers make of the kernels is no worse than benchmarks/offline.csv says."""

import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import offline
import pytest
import sass
import torch
from conftest import ROOT, sentence
from hypothesis import given
from hypothesis import strategies as st

from lmscaling.kernels.chunked_triton import plan as plans
from lmscaling.kernels.chunked_triton.plan import Shape, configured, segments

OTHERS = offline.others()
SHAPE = Shape(heads=12, key=64, value=64, feature_map="softplus", normalize=True)
FIRST = "HGMMA.64x64x16.F32.BF16 R56, R144, gdesc[UR4], RZ, !UPT"
LAST = "HGMMA.64x64x16.F32.BF16 R56, R148, gdesc[UR8], R56, gsb0"
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"


def check(*arguments):
    """Kernels compile no worse than the table says; returns their devices."""
    pytest.importorskip("triton", reason="Triton is not installed: extra test, on Linux")
    command = [sys.executable, ROOT / "benchmarks" / "offline.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return set(re.findall(r"target (\w+),", done.stdout))


@pytest.mark.ci
def test_each_kernel_compiles_no_worse_than_the_table():
    assert check("--triton", offline.INSTALLED, "--sample") == set(offline.SHARED_BYTES)


@pytest.mark.ci
@pytest.mark.skipif(not OTHERS, reason="no versions of Triton in .triton/: make compilers")
@pytest.mark.parametrize("version", OTHERS)
def test_every_version_compiles_no_worse_than_the_table(version):
    """A part of the kernels: a forward pass with gates, on Hopper."""
    given = "--triton", version, "--target", "sm_90", "--only", "forward_kept_bf16_64_mamba2"
    assert check(*given) == {"sm_90"}


def rows(target="", *kernels):
    return [row for row in offline.read().values()
            if target in ("", row.target) and (not kernels or row.kernel in kernels)]  # fmt: skip


def test_the_table_has_the_same_kernels_of_every_version():
    keys = set(offline.read())
    versions, kernels = {key[0] for key in keys}, {key[1:] for key in keys}
    assert (len(versions), len(keys)) == (3, 3 * len(kernels))
    assert {target for target, _ in kernels} == set(offline.SHARED_BYTES)


def test_what_is_worse_or_not_in_the_table_is_said():
    row = next(row for row in rows() if row.tensor_instructions)
    loop = row.loop_instructions
    for change, *values in (
        ({"stack_bytes": row.stack_bytes + 8}, "stack", row.stack_bytes + 8),
        ({"loop_instructions": 2 * loop}, "loop", 2 * loop, loop),
        ({"tensor_instructions": 0}, "tensor"),
        ({"shared_bytes": 2**20}, 2**20, "shared"),
        ({"fault": "RuntimeError: no"}, "RuntimeError: no"),
        ({"kernel": "mine"}, "mine "),
    ):
        now = replace(row, **change)
        (said,) = offline.worse(now, row) + offline.missing([now], offline.read())
        assert all(str(value) in said for value in values)
        sentence("offline", said)
    assert offline.worse(row, row) == []
    assert offline.worse(replace(row, ptxas="0", loop_instructions=2 * loop), row) == []
    assert offline.missing([replace(row, triton="0.0")], offline.read()) == []


def test_plans_without_measurements_are_those_that_compile_well():
    """One stage where two cannot be pipelined."""
    blackwell = configured(100, torch.bfloat16, SHAPE)
    assert {c.stages for c in (blackwell.forward, blackwell.backward)} == {1}
    # The backward pass: of 64 tokens, each of 128 threads computes 64 features and
    # 64 slopes, once, and hardly spills.
    on_hopper, other = (rows(sm, "chunked_backward_bf16_64") for sm in ("sm_90", "sm_100"))
    assert len(on_hopper) == 3
    assert max(row.loop_mufu for row in on_hopper) <= 130
    assert max(row.stack_bytes for row in on_hopper + other) <= 128


def test_gated_attentions_on_hopper_have_chunks_that_warpgroups_multiply():
    gated = replace(SHAPE, key=32, gate="head")
    assert configured(90, torch.bfloat16, gated).chunk == 64
    assert configured(90, torch.bfloat16, replace(gated, key=64)).chunk == 32
    assert configured(80, torch.bfloat16, gated).chunk == 32
    kernels = (f"chunked_backward_bf16_64_{name}" for name in ("mamba2", "retention"))
    stacks = [row.stack_bytes for row in rows("sm_90", *kernels)]
    assert len(stacks) == 6
    assert max(stacks) <= 224


@given(
    heads=st.sampled_from([12, 16, 20, 25]),
    size=st.sampled_from([(16, 1024), (8, 1024), (4, 4096), (1, 16384), (1, 65536), (1, 131072)]),
)
def test_programs_of_cut_sequences_fill_more_than_half_of_a_device_and_run_at_once(heads, size):
    sequences, T = size[0] * heads, size[1]
    parts = segments(sequences, T, 132)
    plan = configured(90, torch.bfloat16, replace(SHAPE, heads=heads), parts)
    programs = sequences * -(-T // plan.segment_tokens(T))
    assert (plan.segments > 1) == (sequences <= 132)
    assert programs == sequences if sequences > 132 else 132 < programs <= 264


def test_a_device_gets_the_plan_of_its_architecture(monkeypatch):
    device = SimpleNamespace(multi_processor_count=132, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    given: Any = SimpleNamespace(
        is_cuda=True, device="cuda", dtype=torch.bfloat16, shape=(1, 2048, 3 * 64 * 12)
    )
    assert plans.choose(given, SHAPE) == configured(90, torch.bfloat16, SHAPE, 4)
    assert [segments(1, T, 132) for T in (1, 1023, 1024, 2048)] == [1, 1, 2, 4]  # 512 at least
    monkeypatch.setattr(torch.version, "hip", "6.3")  # no AMD device is taken for Hopper
    amd = plans.numbered(9, 4)
    assert configured(amd, torch.float32, SHAPE) == plans.SAFE
    assert configured(amd, torch.bfloat16, SHAPE) == configured(80, torch.bfloat16, SHAPE)


OTHER = LAST.replace("R56", "R24").replace("R148", "R152")
PARTLY = WAIT.replace("0x0", "0x1")
JUMP = "BRA .L_x_1"
RACES = [
    # whether there is a race, instructions
    (False, ["MOV R144, R1", FIRST, LAST, WAIT, "MOV R144, R56", "FADD R57, R56, R2"]),
    (False, [FIRST, "MOV R9, R10", LAST, "STS [R3], R4", "LDS.128 R140, [R3]", WAIT]),
    (True, [FIRST, "F2FP.BF16.PACK_AB R145, R1, R2", LAST, WAIT]),  # a factor
    (True, [FIRST, LAST, "LDS.128 R148, [R3]", WAIT]),
    (True, [FIRST, LAST, "LDS.128 R145, [R3]", WAIT]),
    (True, [FIRST, LAST, "FMUL R60, R60, R2", WAIT]),  # unfinished sums
    (True, [FIRST, LAST, "STS [R3], R87", WAIT]),
    (False, [FIRST, LAST, "STS [R3], R88", WAIT]),
    (False, [FIRST, LAST, OTHER, PARTLY, "MOV R56, R1", WAIT]),  # a wait that leaves one group
    (True, [FIRST, LAST, OTHER, PARTLY, "MOV R24, R1", WAIT]),
    (False, ["MOV R148, R1", FIRST, LAST, WAIT]),
    (True, ["MOV R148, R1", FIRST, LAST, JUMP]),  # with the next iteration
    (False, ["MOV R148, R1", FIRST, LAST, WAIT, JUMP]),
]


@pytest.mark.parametrize(("races", "lines"), RACES)
def test_a_race_with_products_in_flight_is_found(races, lines):
    words = (line.partition(" ") for line in lines)
    code = [sass.Instruction(name, tuple(rest.split(", ")), False) for name, _, rest in words]
    said = sass.hazards(code, [(0, len(lines))] if JUMP in lines else [])
    assert bool(said) == races
    for text in said:
        sentence("race", text)
        assert "HGMMA" in text


def test_instructions_and_loops_are_read_from_a_listing():
    listing = """
.L_x_1:
        /*0010*/              @!P0 MUFU.EX2 R5, R6 ;          /* 0x00000a00ff017b82 */
                                                              /* 0x000e620000000800 */
        /*0020*/                   HMMA.16816.F32.BF16 R8, R4, R6, RZ ;  /* 0x00000a00ff017b82 */
                                                              /* 0x002e620000000800 */
        /*0030*/              @P1  BRA `(.L_x_1) ;            /* 0x00000a00ff017b82 */
                                                              /* 0x000e620000000800 */
"""
    code, loops = sass.parsed(listing)
    assert loops == [(0, 3)]
    assert [(i.name, i.waits, sass.multiplications(i)) for i in code] == [
        ("MUFU.EX2", False, 0), ("HMMA.16816.F32.BF16", True, 16 * 8 * 16), ("BRA", False, 0),
    ]  # fmt: skip
