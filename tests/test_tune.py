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
        # The kernel of dk and dv likes the longer chunk; the one for all gradients is slow.
        chunk = getattr(plan, role).chunk
        return {"backward_kv": 1 / cost[chunk], "backward": 5.0}.get(role, cost[chunk])

    begin = Plan(forward=Config(chunk=16), backward_q=Config(chunk=16))
    plan, times = tune.search(begin, [SLOW, WRONG, HUGE, FAST], fault, seconds)
    assert (plan.forward, plan.backward_q, plan.backward_kv) == (FAST, FAST, SLOW)
    assert times == {"forward": 1.0, "backward_q": 1.0, "backward_kv": 0.5, "backward": 5.0}
    assert not plan.one_pass
    said = capsys.readouterr().out
    assert "dv of integers is not exact" in said
    assert "out of resource: shared memory\n" in said


class OutOfResources(Exception):
    """As Triton's, which is no RuntimeError."""


def test_a_candidate_that_asks_for_too_much_is_left_out(capsys):
    def fault(plan):
        if plan.forward == HUGE:
            raise OutOfResources("out of resource: shared memory, Required: 239616")

    plan, _ = tune.search(Plan(), [HUGE, FAST], fault, lambda *_: 1.0)
    assert plan.forward == FAST
    assert "Required: 239616" in capsys.readouterr().out


def test_a_fault_of_the_machine_ends_the_search():
    def fault(_):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    with pytest.raises(RuntimeError, match="ECC"):
        tune.search(Plan(), [FAST], fault, lambda *_: 1.0)


def test_a_plan_stays_where_no_candidate_is_right():
    begin = Plan(forward=Config(chunk=16))
    assert tune.search(begin, [FAST], lambda _: "wrong", lambda *_: 0.0) == (begin, {})


def test_one_backward_kernel_is_chosen_if_it_is_faster_than_two():
    def seconds(role, plan):
        return 0.4 if role == "backward" and plan.backward == FAST else 1.0

    plan, _ = tune.search(Plan(), [SLOW, FAST], lambda _: None, seconds)
    assert (plan.one_pass, plan.backward, plan.forward.chunk) == (True, FAST, FAST.chunk)


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


def test_points_are_measured_again_with_another_ptxas(entry, tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    measured = []

    def measure(shape, batch, tokens, compilers):
        measured.append(tokens)
        return replace(entry, heads=batch * shape.heads, tokens=tokens, **compilers)

    path = tmp_path / "tuned.json"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(tune, "_measure", measure)
    for ptxas, expected in (("12.8.93", 5), ("12.8.93", 0), ("13.5.37", 5)):
        monkeypatch.setattr(tune.environment, "ptxas", lambda *_, found=ptxas: {"ptxas": found})
        measured.clear()
        tune.tune(path)
        assert len(measured) == expected
    assert {known.ptxas for known in tuned.read(path)} == {"13.5.37"}


def test_entries_of_earlier_versions_have_no_ptxas(entry, tmp_path):
    old = {name: value for name, value in asdict(entry).items() if name != "ptxas"}
    write_json(tmp_path / "tuned.json", [old])
    assert tuned.read(tmp_path / "tuned.json") == [entry]


def test_without_a_gpu_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="measures a CUDA device, and this machine has none"):
        tune.tune(tmp_path / "tuned.json")
