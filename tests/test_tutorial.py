"""The tutorial: its files and commands, in an empty folder, lead to a report that answers."""

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
"""Fenced blocks in order: language and text."""

SHOWN = {"AMD EPYC": r"[^,]+?"}
"""What the page shows of one machine."""

VERDICT = re.compile(
    r"After equal steps, mine "
    r"(is ahead of|is behind|does not differ significantly from) softmax at 25k at context 64\."
)
"""The heading of the report; which of the three is left to the two seeds."""


def form(text):
    """A pattern of printed text: any numbers, any spaces, and anything for three dots."""
    tokens = re.findall(r"\.\.\.|-?\d[\d,.]*|\s+|[^\s\d.]+|\.", text.strip())
    parts = []
    for token in tokens:
        if token == "...":
            parts.append(r".*?")
        elif token.lstrip("-")[:1].isdigit():
            parts.append(r"-?\d[\d,.]*")
        elif token.isspace():
            parts.append(r"\s+" if parts[-1:] != [r".*?"] else r"\s*")
        else:
            parts.append(re.escape(token))
    pattern = "".join(parts).replace(r".*?\s+", r".*?\s*")
    for shown, found in SHOWN.items():
        pattern = pattern.replace(r"\s+".join(map(re.escape, shown.split())), found)
    return re.compile(pattern, re.DOTALL)


@pytest.fixture
def run(tmp_path):
    """Runs a command of the page in an empty folder, as those of an installation run."""
    command = tmp_path / "bin" / "lmscaling"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lmscaling "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.path.dirname(sys.executable)}:/usr/bin:/bin"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src")}
    (tmp_path / "empty").mkdir()

    def run(command):
        done = subprocess.run(
            ["bash", "-ec", command], cwd=tmp_path / "empty", env=environment, check=False,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout

    return run


def with_keys(study, text):
    """A study file whose keys have the values of a block."""
    for part in re.findall(r"^\w+:.*\n(?:  .*\n)*", text, re.MULTILINE):
        key = part.partition(":")[0]
        study, found = re.subn(rf"^{key}:.*\n(?:  .*\n)*", part, study, flags=re.MULTILINE)
        assert found == 1, key
    return study


@pytest.mark.ci
def test_the_tutorial_leads_from_an_empty_folder_to_a_report_that_answers(run, tmp_path):
    path = tmp_path / "empty"
    attention, study = path / "attention" / "mine.py", path / "config" / "my_study.yaml"
    printed = ""
    for language, text in BLOCKS:
        if language == "python":
            assert attention.read_text() == text  # what `new` writes
        elif language == "yaml":
            study.write_text(with_keys(study.read_text(), text))
        elif language == "bash":
            code, printed = run(text)
            assert code == 0, f"{text}\n{printed}"
        elif language == "text" and not text.startswith("error: "):
            assert form(text).search(printed), f"the page shows\n{text}\nand it was\n{printed}"

    report = (path / "results" / "my_study" / "report.html").read_text()
    (heading,) = re.findall(r"<h1[^>]*>(.*?)</h1>", report, re.DOTALL)
    assert VERDICT.fullmatch(" ".join(re.sub(r"<[^>]+>", "", heading).split())), heading

    attention.write_text(attention.read_text().replace("is_causal=True", "is_causal=False"))
    code, printed = run("lmscaling check attention mine")
    (shown,) = (text for _, text in BLOCKS if text.startswith("error: "))
    assert code == 1
    assert form(shown).search(printed), printed
