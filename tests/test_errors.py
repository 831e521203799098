"""What all modules keep to: errors end with what to type, and training loads no analysis."""

import ast
import re
import subprocess
import sys

from conftest import ROOT

SOURCES = ROOT / "src" / "lmscaling"
REMEDY = re.compile(
    r"allowed|nearest|again|\b(add|check|choose|correct|create|delete|divide|download|fetch|get|give"
    r"|install|leave|lower|make|name|put|remove|restrict|run|set|start|stop|train|type"
    r"|write)\b|remedy|REMEDY|_unknown"
)
"""What to do, or a value of these names that says it."""


def messages():
    """Where each error is raised, and its text with the source of what is filled in."""
    for path in sorted(SOURCES.rglob("*.py")):
        if path.is_relative_to(SOURCES / "config"):  # its errors name the line of a study file
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "UserError":
                yield f"{path.relative_to(SOURCES)}:{node.lineno}", node.args[0]


def test_every_error_says_what_to_do_after_what_is_wrong():
    texts = {p: text for p, text in messages() if isinstance(text, ast.JoinedStr | ast.Constant)}
    assert len(texts) > 100
    wanting = []
    for place, text in texts.items():
        words = ast.unparse(text)
        if not re.fullmatch(r"f?['\"]+\{[^}]*\}['\"]+", words):  # made of other sentences
            _, *clauses = re.split(r"[;:] ", words)
            wanting += [] if REMEDY.search("; ".join(clauses)) else [f"{place}: {words}"]
    assert not wanting, "\n".join(wanting)


FOREIGN = {
    "cli.devices": {"torch", "duckdb", "snakemake"},
    "config.grid": {"torch", "tiktoken", "tokenizers", "duckdb", "pandas", "matplotlib", "seaborn"},
    "store.build": {"torch", "tiktoken"},
    "claims": {"torch", "tiktoken", "matplotlib"},
    "report": {"torch", "tiktoken"},
    "train.run": {"duckdb", "seaborn"},
    "runtime.doctor": {"torch", "triton", "rich", "snakemake"},
    "runtime.planned": {"torch", "rich", "snakemake"},
}


def test_training_and_analysis_never_load_packages_of_the_other():
    """Each module is imported by a fork of its own, so that none has loaded another's packages;
    what all may load is loaded once."""
    code = """
import os, sys, importlib, scipy.stats
for module in sys.argv[1:]:
    if not os.fork():
        importlib.import_module(f"lmscaling.{module}")
        os.write(1, (" ".join([module, *sys.modules]) + "\\n").encode())
        os._exit(0)
    assert os.wait()[1] == 0, module
"""
    command = [sys.executable, "-c", code, *FOREIGN]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.split()[0]: set(line.split()[1:]) for line in done.stdout.splitlines()}
    assert loaded.keys() == FOREIGN.keys()
    assert [module for module, names in loaded.items() if FOREIGN[module] & names] == []
