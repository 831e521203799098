"""The command line as people type it: one sentence and exit code 1, and no heavy imports."""

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT, calibration, sentence

from lmscaling import __version__, cli, files, registry
from lmscaling.config import sweeps
from lmscaling.records import ledger
from lmscaling.runtime import lock
from lmscaling.train.ledger import Ledger

VERBS = [verb for group in cli.GROUPS for verb in import_module(f"lmscaling.cli.{group}").VERBS]


def lmscaling(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "lmscaling", *arguments], capture_output=True, text=True, **options
    )


class Said(NamedTuple):
    """How a command has ended."""

    code: int
    out: str
    err: str


Typed = Callable[..., Said]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Typed:
    """Types a command in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Said:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["lmscaling", *map(str, words)])
        code: object = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        err = said.err + (f"{code}\n" if isinstance(code, str) else "")  # as Python prints it
        return Said(1 if isinstance(code, str) else int(str(code or 0)), said.out, err)

    return run


TRAIN = ["--manifest", "m", "--scratch", "s", "--record", "r"]
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


@pytest.mark.parametrize("command", [["tokenize", "train-00000-00000", "o"], ["study", "s.json"]])
def test_input_that_is_no_json_is_one_sentence_and_exit_code_1(tmp_path, command):
    done = lmscaling(*command, cwd=tmp_path, input="")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert re.match(r"error: \w+ .*JSON", done.stderr)
    assert not list(tmp_path.iterdir())


def test_every_verb_is_listed_and_explains_itself(typed):
    listed = typed().out
    for verb in VERBS:
        assert verb.name.split()[0] in listed
        assert verb.summary in " ".join(typed(*verb.name.split(), "--help").out.split())


def test_the_help_lists_what_people_type_before_what_the_workflow_types(typed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = typed("--help").out
    assert text == typed().out
    assert max(map(len, text.splitlines())) <= 100
    first, last = text.split("what you type:")[1].split("what the workflow types:")
    listed = [
        set(re.findall(r"^  (\w\S*(?: \w+)?)  ", part, re.MULTILINE))
        for part in (first, last.split("options:")[0])
    ]
    assert {"plan", "status", "doctor", "reset", "figures", "export", "check attention"} < listed[0]
    assert {"train", "tokenize", "build-store", "check cell", "time_step"} < listed[1]
    rules = " ".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    for verb in VERBS:
        if verb.by_workflow and verb.name not in {*sweeps.KINDS, "fork"}:  # forks.py starts it
            assert f"lmscaling {verb.name} " in rules, verb.name


def test_the_version_names_what_is_installed_and_imports_none_of_it():
    code = (
        "import sys, lmscaling.cli as cli\nsys.argv[1:] = ['--version']\ntry: cli.main()\n"
        "finally: print('torch' in sys.modules, 'triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    first, python, torch, triton, *_, imported = done.stdout.splitlines()
    assert (done.returncode, first) == (0, f"lmscaling {__version__}")
    assert python.startswith("Python 3.")
    assert torch == f"torch {version('torch')}"
    assert triton.startswith("triton ")
    assert imported == "False False"


def test_a_shell_completes_verbs_options_and_files(typed):
    script = typed("--print-completion", "bash").out
    asked = "COMP_WORDS=({}); COMP_CWORD={}; _shtab_lmscaling; echo ${{COMPREPLY[@]}}"
    for words, reply in (
        ("lmscaling sta", "status"),
        ("lmscaling check att", "attention"),
        ("lmscaling reset --go", "--go-on"),
    ):
        line = asked.format(words, len(words.split()) - 1)
        done = subprocess.run(
            ["bash", "-c", f"{script}\n{line}"], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [reply], done.stderr
    assert typed("--print-completion", "zsh").out.startswith("#compdef")


def test_a_folder_that_cannot_be_written_is_one_sentence(typed, monkeypatch):
    def refuse(path, text):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(files, "write_text", refuse)
    said = typed("new", "my_study")
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert said.err.startswith("error: ")
    sentence("error", said.err.strip())


def test_a_reader_that_has_read_enough_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m lmscaling --help | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""


def test_make_alone_lists_its_targets_and_does_nothing(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make"], cwd=tmp_path, env=outside, capture_output=True, text=True, check=True
    )
    targets = re.findall(r"^([a-z]+):.*## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(targets) > 8
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert lines == [["make", target, sentence] for target, sentence in targets]
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]


def test_helpers_and_private_files_are_neither_variants_nor_figures():
    assert {"linear", "softmax"} <= set(registry.attentions())
    assert not {"__init__", "_recurrent", "_completed"} & set(registry.attentions())
    assert "style" not in registry.figures()
    assert "__init__" not in registry.figures()


def record(run, status):
    """A record with all fields."""
    numbers = dict.fromkeys(("attempts", "updates", "tokens", "params", "params_total"), 1)
    numbers |= dict.fromkeys(
        ("train_seconds", "attempt_seconds", "lost_seconds", "gpu_hours", "flops_per_token"), 1.0
    )
    texts = dict.fromkeys(("name", "message", "started", "ended"), "")
    parts = {key: {} for key in ("cell", "data", "calibration", "environment")}
    return {"run": run, "status": status, **numbers, **texts, **parts}


@pytest.fixture
def results(tmp_path):
    for study, run, status in (
        ("a", "linear-s-ctx16-s0-11111111", "oom"),
        ("a", "softmax-s-ctx16-s0-22222222", "done"),
        ("b", "linear-s-ctx16-s0-33333333", "done"),
    ):
        folder = tmp_path / "results" / study / "runs" / run
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(record(run, status)))
        (folder / "log.jsonl").write_text(run)
        scratch = tmp_path / "results" / study / "scratch" / run
        scratch.mkdir(parents=True)
        (scratch / "checkpoint").write_text(run)
        evaluations = tmp_path / "results" / study / "evaluations" / run
        evaluations.mkdir(parents=True)
        (evaluations / "text.jsonl").write_text(run)
    return tmp_path


A, B = "results/a/runs", "results/b/runs"


def test_reset_moves_all_that_a_run_has_left_to_the_attic(results, typed):
    said = typed("reset", "softmax-s-ctx16-s0")
    assert said.code == 0, said.err
    kept = {p.name: p for p in (results / "results/a/attic").glob("*/*/*/*")}
    assert set(kept) == {"run.json", "log.jsonl", "checkpoint", "text.jsonl"}
    assert kept["log.jsonl"].read_text() == "softmax-s-ctx16-s0-22222222"
    assert [p.name for p in (results / A).iterdir()] == ["linear-s-ctx16-s0-11111111"]


def test_reset_of_a_trunk_takes_its_branches_with_it(results, typed, cell):
    branch, other = replace(cell, branch=0.5), replace(cell, branch=0.5, seed=1)
    study = results / "results" / "c"
    (study / "cells").mkdir(parents=True)
    for made in (cell, branch, other):
        (study / "cells" / f"{made.run}.json").write_text(made.to_json())
        (study / "runs" / made.run).mkdir(parents=True)
    assert typed("reset", cell.run).code == 0
    assert [p.name for p in (study / "runs").iterdir()] == [other.run]


def test_reset_by_status_takes_every_such_run(results, typed):
    assert typed("reset", "--status", "oom").code == 0
    left = {p.name for p in (results / "results").glob("*/runs/*")}
    assert left == {"softmax-s-ctx16-s0-22222222", "linear-s-ctx16-s0-33333333"}


def test_reset_by_context_takes_every_run_of_it_and_with_a_status_those_of_both(
    results, typed, cell
):
    for run in ("linear-s-ctx16-s0-11111111", "softmax-s-ctx16-s0-22222222"):
        path = results / "results" / "a" / "cells" / f"{run}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(cell.to_json())
    both = ["--study", "a", "--context", "16", "--status"]
    none = typed("reset", *both, "diverged")
    assert re.search("'diverged'.*context 16", none.err)
    assert typed("reset", *both, "oom").code == 0
    assert [p.name for p in (results / A).iterdir()] == ["softmax-s-ctx16-s0-22222222"]
    assert typed("reset", "--context", "16").code == 0
    assert not list((results / A).iterdir())
    assert len(list((results / "results/a/attic").glob("*/runs/*"))) == 2


def test_reset_leaves_a_run_that_is_being_trained(results, typed):
    with lock.hold(results / "results/b/scratch/linear-s-ctx16-s0-33333333", ""):
        said = typed("reset", "linear-s-ctx16-s0-33333333")
    assert said.code == 1
    assert f"process {os.getpid()}" in said.err
    assert (results / B / "linear-s-ctx16-s0-33333333/run.json").exists()


def test_reset_lets_a_held_run_go_on_and_keeps_its_checkpoints(results, typed):
    held = results / "results/a/scratch/linear-s-ctx16-s0-11111111"
    (results / A / "linear-s-ctx16-s0-11111111/run.json").unlink()
    for attempt in (1, 2):
        with Ledger(held, attempt) as book:
            book.write("failed", 5, 1.0, reason="KeyError: 'bug'", host="node7")
    assert ledger.hold(ledger.entries(held / ledger.NAME))
    said = typed("reset", "--go-on", "--status", "held")
    assert "linear-s-ctx16-s0-11111111" in said.out
    sentence("reset", said.out.strip())
    assert ledger.hold(ledger.entries(held / ledger.NAME)) is None
    assert (held / "checkpoint").exists()
    assert typed("reset", "--go-on", "softmax-s-ctx16-s0").code == 1
    assert not list(results.glob("results/*/attic"))


RESET_MISTAKES = [
    (["linear-s-ctx16-s0"], ["--study", "a, b"]),
    (["linear-s-ctx16-s1", "--study", "a"], ["'linear-s-ctx16-s1'", "'linear-s-ctx16-s0'"]),
    (["x", "--study", "c"], ["results/c", "a, b"]),
    (["--status", "diverged"], ["a, b", "'diverged'"]),
    (["--status", "oon"], ["'oon'", "'oom'"]),
]


@pytest.mark.parametrize(("arguments", "named"), RESET_MISTAKES)
def test_reset_of_nothing_moves_nothing(results, typed, arguments, named):
    said = typed("reset", *arguments)
    assert said.code == 1
    assert [value for value in named if value not in said.err] == []
    assert not list(results.glob("results/*/attic"))
    sentence("error", said.err.removeprefix("error: ").strip())


def test_a_folder_of_the_node_that_is_not_set_is_said_and_not_used(
    typed, tmp_path, monkeypatch, cell, tokens
):
    """Shards are copied to the node's disk where its variable is set."""
    monkeypatch.setenv("NODE_DISK", str(tmp_path / "disk"))
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    (tmp_path / "cell.json").write_text(cell.to_json())
    calibration(tmp_path, cell)
    for i, (folder, is_set) in enumerate((("$NODE_DISK/x", True), ("$SLURM_TMPDIR", False))):
        said = typed(
            "train", "cell.json", "--manifest", tokens, "--scratch", f"scratch/{i}", "--record",
            f"runs/{i}/run.json", "--calibration", "calibration.json", "--node-scratch", folder,
        )  # fmt: skip
        assert said.code == 0, said.err
        assert ("$SLURM_TMPDIR" in said.err) == (not is_set)
    assert (tmp_path / "disk").is_dir()
