"""The command line as people type it: one sentence and exit code 1, and no heavy imports."""

import errno
import io
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT, sentence
from product import leave
from test_store import record

from lmscaling import __version__, cli, files, registry
from lmscaling.cli.verb import VERBS
from lmscaling.records import ledger
from lmscaling.runtime import lock

for group in cli.GROUPS:
    import_module(f"lmscaling.cli.{group}")


def lmscaling(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "lmscaling", *arguments], capture_output=True, text=True, **options
    )


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """Types a command in an empty folder, in this process; returns how it has ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run(*words: object) -> SimpleNamespace:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["lmscaling", *map(str, words)])
        code: object = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        if isinstance(code, str):  # as Python prints it
            return SimpleNamespace(code=1, out=said.out, err=f"{said.err}{code}\n")
        return SimpleNamespace(code=code or 0, out=said.out, err=said.err)

    return run


TRAIN = ["--manifest", "m", "--scratch", "s", "--out", "r"]
MISTAKES = [
    (["train", "no.json", *TRAIN], ["no.json"]),
    (["figures", "results/nothing"], ["study.json"]),
    (["figure", "s", "parameter_scalin"], ["'parameter_scaling'"]),
    (["reset", "softmax-124M-ctx256-s0"], ["results"]),
    (["manifest", "m.json", "1", "1"], ["train-00000.json"]),
    (["reset"], []),
    (["statsu"], ["'statsu'", "'status'"]),
    (["check", "attentoin"], ["'check attentoin'", "'check attention'"]),
    (["plan", "--devcie", "x"], ["plan", "'--devcie'"]),
    (["reset", "--context", "x"], ["'x'", "reset"]),
    (["export"], ["run, folder", "export"]),
    (["check"], ["WHAT", "check"]),
    (["tokenize", "train-00000-00000", "o"], ["JSON"]),
    (["record", "s.json"], ["JSON"]),
]


@pytest.mark.parametrize(("arguments", "named"), MISTAKES)
def test_a_mistake_is_one_sentence_and_moves_nothing(typed, tmp_path, arguments, named):
    said = typed(*arguments)
    assert said.code == (2 if "required" in said.err or "invalid" in said.err else 1)
    assert said.err.startswith("error: ")
    assert [value for value in named if value not in said.err] == []
    assert (said.err.count("\n"), said.out) == (1, "")
    assert not list(tmp_path.iterdir())
    sentence("error", said.err.removeprefix("error: ").strip())


def test_the_help_lists_what_people_type_and_names_what_the_workflow_types(typed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = typed("--help").out
    assert text == typed().out
    assert max(map(len, text.splitlines())) <= 100
    told, rows = text.split("VERB\n")[-2:]
    listed = set(re.findall(r"^    (\w\S*)", rows, re.MULTILINE))
    assert {"plan", "status", "doctor", "reset", "check", "verify"} < listed
    assert not {"train", "build-store", "measure"} & listed
    rules = " ".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    for verb in VERBS:
        assert verb.by_workflow or verb.name.split()[0] in listed
        assert verb.summary in " ".join(typed(*verb.name.split(), "--help").out.split())
        if verb.by_workflow:
            assert verb.name in " ".join(told.split())
            assert re.search(rf'lmscaling {verb.name} |verb="{verb.name}"', rules), verb.name


def test_the_version_names_what_is_installed_and_imports_none_of_it():
    code = (
        "import sys, lmscaling.cli as cli\nsys.argv[1:] = ['--version']\ntry: cli.main()\n"
        "finally: print('torch' in sys.modules, 'triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    first, python, torch, triton, *_, imported = done.stdout.splitlines()
    assert (done.returncode, first) == (0, f"lmscaling {__version__}")
    assert (python[:9], triton[:7], imported) == ("Python 3.", "triton ", "False False")
    assert torch == f"torch {version('torch')}"


def test_a_shell_completes_verbs_options_and_files(typed):
    script = typed("--print-completion", "bash").out
    asked = "COMP_WORDS=({}); COMP_CWORD={}; _shtab_lmscaling; echo ${{COMPREPLY[@]}}"
    for words, reply in (("sta", "status"), ("check att", "attention"), ("reset --go", "--go-on")):
        line = asked.format(f"lmscaling {words}", len(words.split()))
        said = subprocess.check_output(["bash", "-c", f"{script}\n{line}"], text=True)
        assert said.split() == [reply]
    assert typed("--print-completion", "zsh").out.startswith("#compdef")


def test_a_file_where_a_folder_must_be_is_one_sentence(typed):
    Path("config").touch()
    said = typed("new", "my_study")
    assert (said.code, said.err[:14], said.err.count("\n")) == (1, "error: config:", 1)


def test_a_folder_that_cannot_be_written_is_one_sentence(typed, monkeypatch):
    def refuse(path, text):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(files, "write_text", refuse)
    said = typed("new", "my_study")
    assert (said.code, said.err[:7], said.err.count("\n")) == (1, "error: ", 1)
    sentence("error", said.err.strip())


def test_a_reader_that_has_read_enough_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m lmscaling --help | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""


def test_helpers_and_private_files_are_neither_variants_nor_figures():
    everything = {*registry.attentions(), *registry.figures()}
    assert {"linear", "softmax", "surface"} <= everything
    assert not {"__init__", "_recurrent", "_completed", "style"} & everything


OOM, DONE = "linear-s-ctx16-s0-11111111", "softmax-s-ctx16-s0-22222222"
OTHER = "linear-s-ctx16-s0-33333333"


@pytest.fixture
def results(tmp_path):
    made = tmp_path / "results"
    for study, run, status in (("a", OOM, "oom"), ("a", DONE, "done"), ("b", OTHER, "done")):
        record(made / study, run, run.encode(), status)
        leave(made / study / "scratch" / run / "checkpoint")
        leave(made / study / "evaluations" / run / "text.jsonl")
    return made


def runs(results):
    return {path.name for path in results.glob("*/runs/*")}


def test_reset_moves_all_that_a_run_has_left_to_the_attic(results, typed):
    said = typed("reset", "softmax-s-ctx16-s0")
    assert said.code == 0, said.err
    kept = {p.name: p for p in (results / "a/attic").glob("*/*/*/*")}
    assert set(kept) == {"run.json", "log.jsonl", "checkpoint", "text.jsonl"}
    assert kept["log.jsonl"].read_text() == DONE
    assert runs(results) == {OOM, OTHER}


def test_reset_of_a_trunk_takes_its_branches_with_it(results, typed, cell):
    branch, other = replace(cell, branch=0.5), replace(cell, branch=0.5, seed=1)
    for made in (cell, branch, other):
        leave(results / "c" / "cells" / f"{made.run}.json", made.to_json())
        (results / "c" / "runs" / made.run).mkdir(parents=True)
    copies = [results / "c" / "runs" / f"{made.run}-branches-1.json" for made in (cell, other)]
    for path, run in zip(copies, (branch.run, other.run), strict=True):
        leave(path, json.dumps({run: {}}))
    assert typed("reset", cell.run).code == 0
    assert [path.exists() for path in copies] == [False, True]
    assert runs(results) - {copies[1].name} == {OOM, DONE, OTHER, other.run}


def test_reset_by_status_or_context_takes_every_run_of_both(results, typed, cell):
    for run in (OOM, DONE):
        leave(results / "a" / "cells" / f"{run}.json", cell.to_json())
    both = ["--study", "a", "--context", "16", "--status"]
    none = typed("reset", *both, "diverged")
    assert re.search("'diverged'.*context 16", none.err)
    for words, left in (
        ([*both, "oom"], {DONE, OTHER}),
        (["--context", "16"], {OTHER}),
        (["--status", "done"], set()),
    ):
        assert typed("reset", *words).code == 0
        assert runs(results) == left
    assert len(list((results / "a/attic").glob("*/runs/*"))) == 2


@pytest.mark.race
def test_reset_leaves_a_run_that_is_being_trained(results, typed):
    with lock.hold(results / "b/scratch" / OTHER, ""):
        said = typed("reset", OTHER)
    assert (said.code, OTHER in runs(results)) == (1, True)
    assert f"process {os.getpid()}" in said.err


def test_reset_lets_a_held_run_go_on_and_keeps_its_checkpoints(results, typed):
    held = results / "a/scratch" / OOM
    (results / "a/runs" / OOM / "run.json").unlink()
    for attempt in (1, 2):
        entry = ledger.Entry(
            kind="failed", attempt=attempt, update=5, train_seconds=1.0, attempt_seconds=1.0,
            reason="KeyError: 'bug'", host="node7",
        )  # fmt: skip
        ledger.append(held / ledger.NAME, entry)
    assert ledger.hold(ledger.entries(held / ledger.NAME))
    said = typed("reset", "--go-on", "--status", "held")
    assert OOM in said.out
    sentence("reset", said.out.strip())
    assert ledger.hold(ledger.entries(held / ledger.NAME)) is None
    assert (held / "checkpoint").exists()
    assert typed("reset", "--go-on", "softmax-s-ctx16-s0").code == 1
    assert not list(results.glob("*/attic"))


RESET_MISTAKES = [
    (["linear-s-ctx16-s0"], ["--study", "a, b"]),
    (["linear-s-ctx16-s1", "--study", "a"], ["'linear-s-ctx16-s1'", "'linear-s-ctx16-s0'"]),
    (["x", "--study", "c"], ["results/c", "a, b"]),
    (["--status", "diverged"], ["a, b", "'diverged'"]),
    (["--status", "oon"], ["'oon'", "'oom'"]),
]


def test_reset_of_nothing_moves_nothing(results, typed):
    for words, named in RESET_MISTAKES:
        said = typed("reset", *words)
        assert (said.code, [value for value in named if value not in said.err]) == (1, [])
        sentence("error", said.err.removeprefix("error: ").strip())
    assert not list(results.glob("*/attic"))
