"""The tests themselves: they judge behaviour, not wording or private names."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from conftest import ROOT

MOST_SENTENCES = 60
"""Asserts that hold a text of four words or more; other sentences are in ``golden/``."""
PRIVATE: dict[str, str] = {}
"""Test files that use a private name, and why."""
PATCHED: dict[str, str] = {}
"""Test files that replace a name of the program, and the fault or machine that needs it."""
PUBLIC = {"_replace", "_asdict", "_fields", "_exit", "_exit_code"}
"""Names with an underscore that their documentation gives to everyone."""


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            yield path.name, node


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
    assert set(used) == set(PRIVATE)


def test_no_name_is_replaced_without_a_fault_that_needs_it():
    patched = {
        file
        for file, node in nodes()
        if isinstance(node, ast.Attribute) and node.attr in ("setattr", "setitem", "delattr")
    }
    assert patched == set(PATCHED)
