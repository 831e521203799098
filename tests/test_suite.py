"""The tests themselves: they judge behaviour, not wording or private names."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from conftest import ROOT

MOST_SENTENCES = 60
"""Asserts that hold a text of four words or more; other sentences are in ``golden/``."""
PRIVATE = """
interpreter.py         Triton's interpreter has no public hook for bounds of loops
strangers.py           an edited file must be read again in the same process
test_documentation.py  the argument parser reads the commands of the documentation
test_memory.py         one block is compiled with a backend that counts its graphs
"""
"""Test files that use a private name, and why."""
PATCHED = """
fla_cases.py              device: Triton's interpreter stands for a GPU; a layer that looks ahead
fused_cases.py            device: Triton's interpreter stands for a GPU
fused_state_cases.py      device: Triton's interpreter stands for a GPU
hub.py                    network: a server of this machine stands for the hub
quadratic_cases.py        device: Triton's interpreter stands for a GPU, with small tiles
test_api.py               disk: a file system without hard links
test_attention.py         device: GPUs with and without FlashAttention 4
test_backends.py          fault: a damaged download, a missing package, no network
test_branch.py            clock, and a fault in the midst of an update
test_calibrate.py         clock, memory and faults of a GPU
test_corpora.py           disk full while a shard is written; a hub that is switched off
test_damaged_logs.py      fault: a log is deleted while it is read
test_data.py              installation: packages missing; no network
test_doctor.py            disk nearly full; a damaged installation; a command that hangs
test_drawing.py           the most likely token instead of a random one
test_evaluate.py          fewer logits at once than a GPU's memory holds
test_faults.py            device: an allocation fails
test_few_calibrations.py  device memory; trials without waiting
test_fla.py               installation: a package is missing
test_gate.py              short sequences instead of a GPU's
test_gate_settled.py      device: kernels that are wrong or fail on a GPU
test_gpu.py               clock; jobs that hang, fail or lose the GPU
test_gpu_records.py       device: wrong kernels; missing packages; no network
test_held.py              faults in an update; a full and a slow disk
test_kernel_forms.py      device: Triton's interpreter stands for a GPU
test_kernels.py           device: GPUs of several kinds
test_ledger.py            clock
test_lock.py              clock; a process id used again; a machine with three GPUs
test_main.py              disk that cannot be written; the command line
test_masked.py            device: flash attention, a counting compiler
test_measure.py           watches the steps that are timed; a missing library
test_model.py             fewer logits at once than a GPU's memory holds
test_norms.py             a run that never logs norms
test_offline.py           device: GPUs of several kinds
test_outcomes.py          fault while a picture is written
test_plan.py              standard input and the command line
test_resume.py            clock, and a fault in the midst of an update
test_sampling.py          the command line
test_schema.py            records of a version to come
test_sequences.py         installation: a package is missing
test_start.py             the command line
test_stream.py            disk: short and failing reads; nearly full
test_sweep.py             measured in this process instead of a child
test_train.py             clock
test_train_ends.py        fault: a loss that is NaN, an error, a lock that comes late
test_variant.py           the command line
test_whole.py             disk: files that another user keeps for himself
"""
"""Test files that replace a name of the program, and the fault or machine that needs it."""
PUBLIC = {"_replace", "_asdict", "_fields", "_exit", "_exit_code"}
"""Names with an underscore that their documentation gives to everyone."""


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            yield path.name, node


def reasons(table: str) -> dict[str, str]:
    """The reason of each file of a table."""
    rows = [row.split(maxsplit=1) for row in table.strip().splitlines()]
    return dict(rows)  # a row without a reason is an error


def is_sentence(node: ast.AST) -> bool:
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and len(text.split()) >= 4


def test_few_asserts_repeat_a_sentence():
    found = []
    for file, node in nodes():
        checked = [node] if isinstance(node, ast.Assert) else []
        if isinstance(node, ast.keyword) and node.arg == "match":
            checked = [node.value]
        if any(is_sentence(part) for one in checked for part in ast.walk(one)):
            found.append(f"{file}:{checked[0].lineno}")
    assert len(found) < MOST_SENTENCES, "\n".join(found)


def test_no_private_name_is_used_without_a_reason():
    used = Counter(
        file
        for file, node in nodes()
        if isinstance(node, ast.Attribute)
        and re.match(r"_[a-z]", node.attr)
        and node.attr not in PUBLIC
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    )
    assert set(used) == reasons(PRIVATE).keys()


def test_no_name_is_replaced_without_a_fault_that_needs_it():
    patched = {
        file
        for file, node in nodes()
        if isinstance(node, ast.Attribute) and node.attr in ("setattr", "setitem", "delattr")
    }
    assert patched == reasons(PATCHED).keys()
