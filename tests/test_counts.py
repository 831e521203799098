"""Counted costs of the kernels, and that docs/kernels.md holds those of the table."""

from dataclasses import replace

import counts
import launched
import offline
import pytest

ROW = offline.Row(
    kernel="chunked_forward_bf16_64", target="sm_90", triton="3.7.1", ptxas="12.8", warps=4,
    registers=225, shared_bytes=59392, loop_instructions=1280, loop_tokens=64,
)  # fmt: skip
H200 = counts.DEVICES[0]


def test_the_document_holds_the_counts_of_the_table() -> None:
    text = "\n".join(counts.tables())
    assert text in counts.DOCUMENT.read_text(), "python benchmarks/counts.py --write"


def test_a_kernel_takes_the_longer_of_its_memory_and_its_instructions() -> None:
    assert counts.slots(ROW) == 20
    copied, issued = 516 / 4.3e12, 20 / (132 * 1.755e9)
    low, high = counts.picoseconds(ROW, H200)
    assert low == pytest.approx(1.13 * copied * 1e12)
    assert high == pytest.approx(1.4 * copied * 1e12)
    low, _ = counts.picoseconds(replace(ROW, loop_instructions=12800), H200)
    assert low == pytest.approx(10 * issued / 0.85 * 1e12)


def test_programs_are_limited_by_registers_memory_and_warps() -> None:
    assert counts.programs(ROW) == 2  # 65,536 registers of 4 x 7,424
    assert counts.programs(replace(ROW, registers=112)) == 3  # 233,472 bytes of 60,416
    assert counts.programs(replace(ROW, registers=16, shared_bytes=0, warps=16)) == 4


@pytest.mark.parametrize("one_pass", [False, True])
def test_bytes_are_those_of_the_tensors_that_a_kernel_reads_and_writes(one_pass: bool) -> None:
    a_row = {"qkv_ptr": 384, "y_ptr": 128, "dy_ptr": 128, "reciprocal_ptr": 4, "e_ptr": 4}
    a_chunk = {"kept_ptr": 2 * 64 * 64, "means_ptr": 4 * 128}
    written = {"chunked_backward_q": 128, "chunked_backward_kv": 256, "chunked_backward": 384}
    unread = {"sums_forward": 128, "sums_backward": 256}
    for launch in launched.attention(90, launched.linear, one_pass=one_pass):
        name = launch.name.removesuffix("_bf16_64")
        if name == "scan":
            continue
        size = sum(a_row.get(argument, 0) for argument in launch.signature)
        size += written.get(name, 0) - unread.get(name, 0)
        if one_pass and not name.startswith("sums"):
            size += sum(a_chunk.get(argument, 0) for argument in launch.signature) // 64
        assert counts.moved(name, 64, "bf16") == size, name


def test_the_tables_in_a_document_are_replaced(tmp_path) -> None:
    path = tmp_path / "kernels.md"
    path.write_text("a\n<!-- counts -->\nold\n<!-- end of counts -->\nb\n")
    counts.write(path, "new")
    counts.write(path, "new | \\1")
    assert path.read_text() == "a\n<!-- counts -->\nnew | \\1\n<!-- end of counts -->\nb\n"
