"""The tutorial: its files and commands, in an empty folder, lead to a report that answers."""

import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from conftest import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
"""A fenced block: language and text."""

SHOWN = {"AMD EPYC": r"[^,]+?"}
"""What the page shows of one machine."""

VERDICT = re.compile(
    r"After equal updates, mine "
    r"(is ahead of softmax|is behind softmax|cannot be told from softmax) at 25k at context 64\."
)
"""The heading of the report; which of the three is left to the two seeds."""


def blocks():
    """Blocks of the page in order as (language, text)."""
    return BLOCK.findall(PAGE.read_text())


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty folder, in which commands of the page run as those of an installation do."""
    folder = tmp_path_factory.mktemp("empty")
    command = tmp_path_factory.mktemp("bin") / "lmscaling"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lmscaling "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.path.dirname(sys.executable)}:/usr/bin:/bin"
    return folder, os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src")}


def run(folder, command):
    """What a command prints."""
    path, environment = folder
    done = subprocess.run(
        ["bash", "-ec", command], cwd=path, env=environment, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def with_keys(study, text):
    """A study file whose keys have the values of a block."""
    for part in re.findall(r"^\w+:.*\n(?:  .*\n)*", text, re.MULTILINE):
        key = part.partition(":")[0]
        study, found = re.subn(rf"^{key}:.*\n(?:  .*\n)*", part, study, flags=re.MULTILINE)
        assert found == 1, key
    return study


FORMS = [
    ("a 1.5 s\n...\nend 3", "a  20 s\nmore\nlines\nend 4,000\n", True),
    ("4 cells: 4 done", "12 cells: 12 done", True),
    ("4 cells: 4 done", "4 cells: 4 failed", False),
    ("a\nb", "ab", False),
    ("right on AMD EPYC, with", "right on NVIDIA H100 80GB HBM3, with", True),
]


def test_the_form_of_a_text_allows_other_numbers_and_nothing_else():
    for shown, printed, fits in FORMS:
        assert bool(form(shown).search(printed)) == fits, shown


def test_the_page_has_files_and_commands_with_what_they_print():
    languages = [language for language, _ in blocks()]
    assert (languages.count("python"), languages.count("yaml")) == (1, 1)
    assert languages.count("bash") >= 5
    for here, following in pairwise(languages):
        assert here != "bash" or following == "text"


@pytest.mark.ci
def test_the_tutorial_leads_from_an_empty_folder_to_a_report_that_answers(folder):
    path, _ = folder
    attention, study = path / "attention" / "mine.py", path / "config" / "my_study.yaml"
    printed = ""
    for language, text in blocks():
        if language == "python":
            assert attention.read_text() == text  # what `new` writes
        elif language == "yaml":
            study.write_text(with_keys(study.read_text(), text))
        elif language == "bash":
            code, printed = run(folder, text)
            assert code == 0, f"{text}\n{printed}"
        elif language == "text" and not text.startswith("error: "):
            assert form(text).search(printed), f"the page shows\n{text}\nand it was\n{printed}"

    report = (path / "results" / "my_study" / "report.html").read_text()
    (heading,) = re.findall(r"<h1[^>]*>(.*?)</h1>", report, re.DOTALL)
    assert VERDICT.fullmatch(" ".join(re.sub(r"<[^>]+>", "", heading).split())), heading

    attention.write_text(attention.read_text().replace("is_causal=True", "is_causal=False"))
    code, printed = run(folder, "lmscaling check attention mine")
    (shown,) = (text for _, text in blocks() if text.startswith("error: "))
    assert code == 1
    assert form(shown).search(printed), printed
