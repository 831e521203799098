"""Tuning of the fused kernels: only right configurations are timed, the nearest entry is used."""

from dataclasses import asdict, replace

import pytest

from lmscaling.bench import tune
from lmscaling.errors import UserError
from lmscaling.files import write_json
from lmscaling.kernels.chunked_triton import tuned
from lmscaling.kernels.chunked_triton.config import Config
from lmscaling.kernels.chunked_triton.plan import Plan

FAST, SLOW, WRONG, HUGE = (Config(chunk=c) for c in (32, 64, 128, 256))


class TooLarge(Exception):
    """As Triton's OutOfResources, neither a RuntimeError nor a ValueError."""


def test_a_fault_of_the_machine_ends_the_tuning():
    def fault(plan):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    with pytest.raises(RuntimeError, match="uncorrectable ECC"):
        tune.search(Plan(), [FAST], fault, lambda *_: 0.0)


def test_each_kernel_gets_the_fastest_configuration_that_is_right(capsys):
    cost = {32: 1.0, 64: 2.0, 128: 0.1, 256: 0.1, 16: 9.0}

    def fault(plan):
        chunks = {getattr(plan, role).chunk for role in tune.ROLES}
        if 256 in chunks:
            raise TooLarge("out of resource: shared memory\nmore")
        return "dv of integers is not exact" if 128 in chunks else None

    def seconds(role, plan):
        # The kernel of dk and dv likes the longer chunk.
        chunk = getattr(plan, role).chunk
        return 1 / cost[chunk] if role == "backward_kv" else cost[chunk]

    begin = Plan(forward=Config(chunk=16), backward_q=Config(chunk=16))
    plan, times = tune.search(begin, [SLOW, WRONG, HUGE, FAST], fault, seconds)
    assert (plan.forward, plan.backward_q, plan.backward_kv) == (FAST, FAST, SLOW)
    assert times == {"forward": 1.0, "backward_q": 1.0, "backward_kv": 0.5}
    said = capsys.readouterr().out
    assert "dv of integers is not exact" in said
    assert "out of resource: shared memory\n" in said


def test_a_plan_stays_where_no_candidate_is_right():
    begin = Plan(forward=Config(chunk=16))
    assert tune.search(begin, [FAST], lambda _: "wrong", lambda *_: 0.0) == (begin, {})


@pytest.fixture
def entry():
    return tuned.Entry(
        architecture=90, dtype="bfloat16", width=64, heads=12, tokens=1024, forward=FAST,
        backward_q=SLOW, backward_kv=SLOW, seconds={"forward": 1e-5}, device="d", triton="3.9.0",
    )  # fmt: skip


def test_the_nearest_entry_of_the_same_kind_is_taken(entry):
    long = replace(entry, tokens=131072)
    full = replace(entry, heads=1536)
    known = (entry, long, full)
    assert tuned.find(known, 90, "bfloat16", 64, 16, 2048) is entry
    assert tuned.find(known, 90, "bfloat16", 64, 25, 65536) is long
    assert tuned.find(known, 90, "bfloat16", 64, 1024, 1024) is full
    assert tuned.find(known, 80, "bfloat16", 64, 12, 1024) is None
    assert tuned.find(known, 90, "bfloat16", 128, 12, 1024) is None


def test_entries_come_back_as_they_went(entry, tmp_path):
    write_json(tmp_path / "tuned.json", [asdict(entry)])
    assert tuned.read(tmp_path / "tuned.json") == [entry]
    assert tuned.read(tmp_path / "none.json") == []


def test_without_a_gpu_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="measures a CUDA device, and this machine has none"):
        tune.tune(tmp_path / "tuned.json")
