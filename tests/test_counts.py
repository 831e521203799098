"""Counted costs of the kernels: docs/kernels.md holds those of the table, by known bounds."""

from dataclasses import replace

import counts
import offline
import pytest


def test_the_document_holds_the_counts_of_the_table() -> None:
    assert "\n".join(counts.tables()) in counts.DOCUMENT.read_text(), "benchmarks/counts.py --write"


def test_a_kernel_takes_the_longer_of_its_memory_and_its_instructions() -> None:
    row = offline.Row(
        kernel="chunked_forward_bf16_64", target="sm_90", triton="3.7.1", ptxas="12.8", warps=4,
        registers=225, shared_bytes=59392, loop_instructions=1280, loop_tokens=64,
    )  # fmt: skip
    assert counts.slots(row) == 20
    copied, issued = 516 / 4.3e12, 20 / (132 * 1.755e9)
    low, high = counts.picoseconds(row, counts.DEVICES[0])
    assert (low, high) == pytest.approx((1.13 * copied * 1e12, 1.4 * copied * 1e12))
    low, _ = counts.picoseconds(replace(row, loop_instructions=12800), counts.DEVICES[0])
    assert low == pytest.approx(10 * issued / 0.85 * 1e12)
    assert counts.programs(row) == 2  # 65,536 registers of 4 x 7,424
    assert counts.programs(replace(row, registers=112)) == 3  # 233,472 bytes of 60,416
    assert counts.programs(replace(row, registers=16, shared_bytes=0, warps=16)) == 4
