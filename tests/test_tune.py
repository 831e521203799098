"""Tuning of the fused kernels: only right configurations are timed, the nearest entry is used."""

from dataclasses import asdict, replace
from unittest.mock import Mock

import pytest
import torch
from conftest import refused

from lmscaling.bench import tune
from lmscaling.errors import UserError
from lmscaling.files import write_json
from lmscaling.kernels.chunked_triton import tuned
from lmscaling.kernels.chunked_triton.config import Config
from lmscaling.kernels.chunked_triton.plan import Plan

FAST, SLOW, WRONG, HUGE = (Config(chunk=c) for c in (32, 64, 128, 256))
BEGIN = Plan(forward=Config(chunk=16), backward_q=Config(chunk=16))


class TooLarge(Exception):
    """As Triton's OutOfResources, neither a RuntimeError nor a ValueError."""


def test_each_kernel_gets_the_fastest_configuration_that_is_right(capsys):
    cost = {32: 1.0, 64: 2.0, 128: 0.1, 256: 0.1, 16: 9.0}

    def fault(plan):
        chunks = {getattr(plan, role).chunk for role in tune.ROLES}
        if 256 in chunks:
            raise TooLarge("out of resource\nmore")
        return "not exact" if 128 in chunks else None

    def seconds(role, plan):
        # The kernel of dk and dv likes the longer chunk; the one for all gradients is slow.
        chunk = getattr(plan, role).chunk
        return {"backward_kv": 1 / cost[chunk], "backward": 5.0}.get(role, cost[chunk])

    plan, times = tune.search(BEGIN, [SLOW, WRONG, HUGE, FAST], fault, seconds)
    assert (plan.forward, plan.backward_q, plan.backward_kv) == (FAST, FAST, SLOW)
    assert times == {"forward": 1.0, "backward_q": 1.0, "backward_kv": 0.5, "backward": 5.0}
    assert not plan.one_pass
    said = capsys.readouterr().out
    assert "not exact" in said
    assert "out of resource\n" in said


def test_one_backward_kernel_is_chosen_if_it_is_faster_than_two():
    def seconds(role, plan):
        return 0.4 if role == "backward" and plan.backward == FAST else 1.0

    plan, _ = tune.search(Plan(), [SLOW, FAST], lambda _: None, seconds)
    assert (plan.one_pass, plan.backward, plan.forward.chunk) == (True, FAST, FAST.chunk)
    assert tune.search(BEGIN, [FAST], lambda _: "wrong", lambda *_: 0.0) == (BEGIN, {})
    broken = Mock(side_effect=RuntimeError("uncorrectable ECC error"))
    with pytest.raises(RuntimeError, match="ECC"):  # a fault of the machine ends the search
        tune.search(BEGIN, [FAST], broken, lambda *_: 0.0)


def test_entries_come_back_as_they_went_and_the_nearest_of_the_same_kind_is_taken(tmp_path):
    entry = tuned.Entry(
        architecture=90, dtype="bfloat16", width=64, heads=12, tokens=1024, forward=FAST,
        backward_q=SLOW, backward_kv=SLOW, seconds={"forward": 1e-5}, device="d", triton="3.9.0",
    )  # fmt: skip
    long, full = replace(entry, tokens=131072), replace(entry, heads=1536)
    known = (entry, long, full)
    for heads, tokens, expected in ((16, 2048, entry), (25, 65536, long), (1024, 1024, full)):
        assert tuned.find(known, 90, "bfloat16", 64, heads, tokens) is expected
    for architecture, width in ((80, 64), (90, 128)):
        assert tuned.find(known, architecture, "bfloat16", width, 12, 1024) is None
    old = {name: value for name, value in asdict(entry).items() if name != "ptxas"}
    write_json(tmp_path / "tuned.json", [asdict(entry), old])
    assert tuned.read(tmp_path / "tuned.json") == [entry, entry]
    assert tuned.read(tmp_path / "none.json") == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_tuned(tmp_path):
    with refused(UserError, "CUDA"):
        tune.tune(tmp_path / "tuned.json")
