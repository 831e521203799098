"""The tutorial: its files and commands, in a copy of the sources, lead to a report that answers."""

import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise

import pytest
from conftest import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"(?:`([^`\n]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
"""A fenced block: the file that the line before it names, language and text."""

SHOWN = {"AMD EPYC": r"[^,]+?"}
"""What the page shows of one machine."""


def blocks():
    """Blocks of the page in order as (file, language, text)."""
    return BLOCK.findall(PAGE.read_text())


def form(text):
    """A pattern of printed text: any numbers, any spaces, and anything for three dots."""
    tokens = re.findall(r"\.\.\.|\d[\d,.]*|\s+|[━─]+|[^\s\d.─━]+|\.", text.strip())
    parts = []
    for token in tokens:
        if token == "...":
            parts.append(r".*?")
        elif token[0].isdigit():
            parts.append(r"\d[\d,.]*")
        elif token.isspace():
            parts.append(r"\s+" if parts[-1:] != [r".*?"] else r"\s*")
        elif token[0] in "━─":
            parts.append("[━─]+")
        else:
            parts.append(re.escape(token))
    pattern = "".join(parts).replace(r".*?\s+", r".*?\s*")
    for shown, found in SHOWN.items():
        pattern = pattern.replace(r"\s+".join(map(re.escape, shown.split())), found)
    return re.compile(pattern, re.DOTALL)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of the sources, and the environment in which commands of the page run there."""
    folder = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (source := ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
        elif source.is_symlink():  # to a folder
            (folder / name).symlink_to(os.readlink(source))
    command = folder / "bin" / "lmscaling"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lmscaling "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.path.dirname(sys.executable)}:/usr/bin:/bin"
    environment = {"PATH": path, "PYTHONPATH": str(folder / "src")}
    return folder, os.environ | environment


def run(clone, command):
    """What a command prints."""
    folder, environment = clone
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_the_form_of_a_text_allows_other_numbers_and_nothing_else():
    assert form("a 1.5 s\n...\nend 3").search("a  20 s\nmore\nlines\nend 4,000\n")
    assert form("4 cells: 4 done").fullmatch("12 cells: 12 done")
    assert not form("4 cells: 4 done").search("4 cells: 4 failed")
    assert not form("a\nb").search("ab")
    assert form("right on AMD EPYC, with").search("right on NVIDIA H100 80GB HBM3, with")


def test_the_page_has_files_and_commands_with_what_they_print():
    names = [name for name, language, _ in blocks() if language in ("python", "yaml")]
    assert names == ["src/lmscaling/attention/mine.py", "mine.yaml"]
    languages = [language for _, language, _ in blocks()]
    assert languages.count("bash") >= 5
    for here, following in pairwise(languages):
        assert here != "bash" or following == "text"


@pytest.mark.ci
def test_the_tutorial_leads_from_a_file_to_a_report_that_answers(clone):
    folder, _ = clone
    printed = ""
    for name, language, text in blocks():
        if language in ("python", "yaml"):
            (folder / name).write_text(text)
        elif language == "bash":
            code, printed = run(clone, text)
            assert code == 0, f"{text}\n{printed}"
        elif language == "text" and not text.startswith("error: "):
            assert form(text).search(printed), f"the page shows\n{text}\nand it was\n{printed}"
    report = (folder / "results" / "my_attention" / "report.html").read_text()
    assert "mine" in report

    source = folder / "src" / "lmscaling" / "attention" / "mine.py"
    source.write_text(source.read_text().replace("is_causal=True", "is_causal=False"))
    code, printed = run(clone, "lmscaling check attention mine")
    (shown,) = (text for _, _, text in blocks() if text.startswith("error: "))
    assert code == 1
    assert form(shown).search(printed), printed
