"""What a comparison of gradients does if one of the implementations fails."""

import pytest
import torch

from lmscaling import kernels
from lmscaling.evaluate import gradient_error


@pytest.fixture
def rows(monkeypatch):
    """Rows by implementation, of which one raises an error."""
    load = kernels.load

    def rows(error):
        def fail(*_):
            raise error

        monkeypatch.setattr(
            kernels, "load", lambda kind, name: fail if name == "chunked" else load(kind, name)
        )
        found = gradient_error.compared(*torch.randn(4, 1, 4, 1, 8).bfloat16())
        return {row["implementation"]: row for row in found}

    return rows


@pytest.mark.parametrize(
    ("error", "status"),
    [(RuntimeError("no plan\nmore"), "failed"), (torch.OutOfMemoryError("no plan"), "oom")],
)
def test_an_implementation_that_fails_is_a_row_and_the_others_still_run(rows, error, status):
    found = rows(error)
    broken = found.pop("chunked")
    assert (broken["status"], broken["message"]) == (status, "no plan")
    assert len(found) >= 3
    assert {row["status"] for row in found.values()} == {"done"}


def test_a_fault_of_the_machine_is_no_row(rows):
    with pytest.raises(RuntimeError, match="uncorrectable ECC"):
        rows(RuntimeError("CUDA error: uncorrectable ECC error encountered"))


def test_a_device_that_no_longer_computes_leaves_no_row(rows, monkeypatch):
    monkeypatch.setattr(gradient_error.faults, "is_result", lambda error, device: False)
    with pytest.raises(RuntimeError, match="illegal memory"):
        rows(RuntimeError("CUDA error: an illegal memory access was encountered"))
