"""Layers and ceilings: what is right may be timed, and views set a time beside its floor."""

import json
from pathlib import Path

import pytest
import torch
from speed_points import point, write

from lmscaling import kernels
from lmscaling.bench import clock, layer, sweep
from lmscaling.bench.checks import exactness
from lmscaling.bench.memory import Memory
from lmscaling.config import grid, sweeps
from lmscaling.config.types import dump
from lmscaling.files import write_json
from lmscaling.store import build as store

CPU = torch.device("cpu")
COPY = {"copy_bytes": 1024, "matmul_width": 16}


def right(q, k, v, feature_map, normalize):
    return exactness.linear(q, k, v, feature_map, normalize)


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


@pytest.mark.parametrize("kind", ["linear", "softmax", "gated", "gated_delta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ours_are_right(kind, dtype):
    for name in kernels.names(kind):
        assert exactness.fault(kind, kernels.load(kind, name), CPU, dtype, 16) is None, name


def test_a_call_is_measured_at_least_three_times():
    calls = []
    timing = clock.timed(lambda: calls.append(0), Memory(CPU), 0.0, 50)
    assert len(timing.seconds) == clock.LEAST_REPEATS
    assert len(calls) == clock.LEAST_REPEATS + timing.warm_up
    assert timing.seconds == sorted(timing.seconds)


def measured(values: dict, tmp_path: Path, kind: str, **section) -> list[dict]:
    """The records of a sweep of a study with one section of one kind."""
    values["speed"] = {"timeout_seconds": 20, "repeats": 3, "target_seconds": 1e-4} | section
    (one,) = sweeps.expand(grid.expand(values).study).values()
    write_json(tmp_path / "sweep.json", dump(one))
    sweep.measure(tmp_path / "sweep.json", kind, tmp_path / "out", None)
    paths = [path for path in (tmp_path / "out").glob("*.json") if path.name != "sweep.json"]
    return [json.loads(path.read_text()) for path in paths]


def test_a_copy_and_a_product_are_timed(values, tmp_path):
    rows = measured(values, tmp_path, "time_ceiling", time_ceiling=COPY)
    assert {(row["attention"], row["context"]) for row in rows} == {("copy", 1024), ("matmul", 16)}
    for row in rows:
        assert (row["status"], row["n_head"], row["dtype"]) == ("done", None, "float32")


def test_a_layer_of_a_library_that_is_not_installed_is_a_record(values, tmp_path, monkeypatch):
    monkeypatch.setattr(layer.peers, "installed", dict)
    preset = {
        "name": "one", "n_head": 1, "d_head": 16, "batch": 1, "passes": ["forward"],
        "contexts": [8], "implementations": ["peer/fla_chunk"], "repeats": 3,
    }  # fmt: skip
    (row,) = measured(values, tmp_path, "time_layer", time_layer=[preset])
    assert row["status"] == "failed"
    assert row["message"] == "flash-linear-attention is not installed"


def test_a_time_stands_beside_the_floor_of_its_own_setup(tmp_path, values):
    (tmp_path / "study.json").write_text(json.dumps({"command": "", "study": values}))
    shape = {"n_head": 2, "d_head": 64, "batch": 4, "n_layer": None, "size": "one"}
    write(
        tmp_path,
        point("time_ceiling", "copy", 10**9, 1e-3),
        point("time_ceiling", "matmul", 1000, 1e-3),
        point("time_ceiling", "copy", 10**9, 1.0, device="another"),
        *(
            point("time_layer", "linear chunked", 100, 8e-7, passes=passes, **shape)
            for passes in ("forward", "forward+backward")
        ),
    )
    store.build(tmp_path)
    with store.connect(tmp_path / "store") as db:
        ceilings = db.sql("SELECT copy_bytes_per_second, matmul_flops FROM ceilings ORDER BY ALL")
        assert ceilings.fetchall() == [(2e9, None), (2e12, pytest.approx(2e12))]
        rows = db.sql("SELECT kind, ns_per_token_head, floor_fraction FROM kernel_times ORDER BY 3")
        # A token of a head moves 516 bytes forward and 900 more backward, at 2 TB/s, in 1 ns.
        assert rows.fetchall() == [
            ("linear", pytest.approx(1), pytest.approx(0.258)),
            ("linear", pytest.approx(1), pytest.approx(0.708)),
        ]
