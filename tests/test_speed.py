"""Measuring kernels: what is right is timed, what is not is named, an end is a row."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from test_main import lmscaling

from lmscaling import kernels
from lmscaling.bench import clock
from lmscaling.bench import kernels as speed
from lmscaling.bench.checks import exactness
from lmscaling.bench.memory import Memory
from lmscaling.records.timing import KERNEL_STATUSES, KernelTime

TINY = replace(
    speed.CPU,
    contexts=(4, 8, 16),
    tokens=(1, 16),
    n_heads=(1,),
    d_head=16,
    most_repeats=3,
    budget_seconds=0.0,
    copy_bytes=2**10,
    matmul_width=16,
)
CPU = torch.device("cpu")


def right(q, k, v, feature_map, normalize):
    return exactness.linear(q, k, v, feature_map, normalize)


def measured(monkeypatch, folder: Path, attend, preset=TINY) -> list[dict]:
    """Rows of a measurement of one implementation, without the header."""
    monkeypatch.setattr(speed, "CPU", preset)
    monkeypatch.setattr(speed, "implementations", lambda device: iter([("linear", "one", attend)]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    speed.bench(folder / "rows.jsonl", [])
    header, *rows = map(json.loads, (folder / "rows.jsonl").read_text().splitlines())
    assert header["record"] == "bench"
    assert header["copy_bytes_per_second"] > 0
    assert header["matmul_flops"] > 0
    return rows


def test_every_shape_is_a_whole_row(monkeypatch, tmp_path):
    rows = measured(monkeypatch, tmp_path, right)
    # One sequence at three contexts, 16 tokens at the two contexts that need several; two passes.
    assert [(r["context"], r["batch"]) for r in rows] == 2 * [
        (4, 1),
        (8, 1),
        (16, 1),
        (4, 4),
        (8, 2),
    ]
    assert {r["passes"] for r in rows} == set(speed.PASSES)
    for row in rows:
        assert set(row) == {"record", *(f.name for f in fields(KernelTime))}
        assert row["status"] == "done"
        assert 0 < row["least_seconds"] <= row["median_seconds"] <= row["most_seconds"]
        rows_of_heads = row["batch"] * row["context"] * row["n_head"]
        assert row["ns_per_token_head"] == pytest.approx(
            row["median_seconds"] / rows_of_heads * 1e9
        )
        assert row["repeats"] == 3


def test_a_wrong_implementation_is_named_and_not_timed(monkeypatch, tmp_path):
    def off_by_one(q, k, v, feature_map, normalize):
        return right(q, k, v, feature_map, normalize) + 1

    (row,) = measured(monkeypatch, tmp_path, off_by_one)
    assert row["status"] == "wrong"
    assert row["message"] == "y of integers is not exact: off by up to 1"
    assert row["median_seconds"] is None


def test_a_wrong_gradient_is_found():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, k):
            return k.clone()

        @staticmethod
        def backward(ctx, *dk):
            return 2 * dk[0]

    def attend(q, k, v, *options):
        return right(q, Doubled.apply(k), v, *options)

    said = exactness.fault("linear", attend, CPU, torch.float32, 16)
    assert said is not None
    assert said.startswith("dk of integers")
    said = exactness.fault("peer", attend, CPU, torch.float32, 16)
    assert said == "dk is 1 from float64; allowed: 0.0001"


@pytest.mark.parametrize("kind", ["linear", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ours_are_right(kind, dtype):
    for name in kernels.names(kind):
        assert exactness.fault(kind, kernels.load(kind, name), CPU, dtype, 16) is None, name


def test_running_out_of_memory_ends_a_series_with_a_row(monkeypatch, tmp_path):
    def hungry(q, k, v, feature_map, normalize):
        if q.shape[1] == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB.\nmore")
        return right(q, k, v, feature_map, normalize)

    rows = measured(monkeypatch, tmp_path, hungry)
    assert [(r["context"], r["status"]) for r in rows] == 4 * [(4, "done"), (8, "oom")]
    assert rows[1]["message"] == "CUDA out of memory. Tried to allocate 1 TiB."
    assert rows[1]["median_seconds"] is None
    assert {r["status"] for r in rows} <= set(KERNEL_STATUSES)


def test_an_error_is_a_row(monkeypatch, tmp_path):
    def broken(*_):
        raise RuntimeError("no kernel image")

    (row,) = measured(monkeypatch, tmp_path, broken)
    assert (row["status"], row["message"]) == ("failed", "no kernel image")


def test_a_slow_series_ends_before_it_takes_too_long(monkeypatch, tmp_path):
    rows = measured(monkeypatch, tmp_path, right, replace(TINY, limit_seconds=0.0))
    assert [(r["context"], r["status"]) for r in rows] == 4 * [(4, "done"), (8, "slow")]


def test_the_floor_moves_every_tensor_once():
    row = KernelTime(
        **{f.name: None for f in fields(KernelTime)}
        | {"passes": "forward", "d_head": 64, "dtype": "bfloat16"}  # pyright: ignore
    )
    assert speed.floor_bytes(row) == 516
    assert speed.floor_bytes(replace(row, passes="forward+backward")) == 516 + 900


def test_a_call_is_measured_at_least_three_times():
    calls = []
    timing = clock.timed(lambda: calls.append(0), Memory(CPU), 0.0, 50)
    assert len(timing.seconds) == clock.LEAST_REPEATS
    assert len(calls) == clock.LEAST_REPEATS + timing.warm_up
    assert timing.seconds == sorted(timing.seconds)


def test_an_unknown_name_is_refused_in_one_sentence(tmp_path):
    out = tmp_path / "rows.jsonl"
    done = lmscaling("bench", "kernels", "attention_paralel", "--out", out)
    assert done.returncode == 1
    assert "nearest is 'attention_parallel'" in done.stderr
    assert not out.exists()
