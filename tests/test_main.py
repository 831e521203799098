"""The command line as people type it: one sentence and exit code 1, and no heavy imports."""

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import ROOT

from lmscaling import __version__, cli, files, registry
from lmscaling.cli import runs
from lmscaling.config import sweeps
from lmscaling.records import ledger
from lmscaling.runtime import lock
from lmscaling.train.ledger import Ledger

VERBS = [verb for group in cli.GROUPS for verb in import_module(f"lmscaling.cli.{group}").VERBS]
FOREIGN = {
    "cli.devices": {"torch", "duckdb", "snakemake"},
    "config.grid": {"torch", "tiktoken", "tokenizers", "duckdb", "pandas", "matplotlib", "seaborn"},
    "store.build": {"torch", "tiktoken"},
    "store.published": {"torch", "tiktoken"},
    "claims": {"torch", "tiktoken", "matplotlib"},
    "report": {"torch", "tiktoken"},
    "figures.learning_curves": {"torch", "tiktoken"},
    "train.run": {"duckdb", "seaborn"},
    "evaluate.loss_by_position": {"duckdb", "seaborn"},
    "runtime.doctor": {"torch", "triton", "rich", "snakemake"},
    "runtime.console": {"torch", "rich"},
}


def lmscaling(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "lmscaling", *arguments], capture_output=True, text=True, **options
    )


@pytest.mark.parametrize("module", FOREIGN)
def test_training_and_analysis_never_load_packages_of_the_other(module):
    code = f"import sys, lmscaling.{module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not FOREIGN[module] & set(loaded.stdout.split())


MISTAKES = [
    (
        ["train", "no.json", "--manifest", "m", "--scratch", "s", "--record", "r"],
        "no.json does not exist",
    ),
    (["figures", "results/nothing"], "study.json does not exist; studies: none is defined"),
    (["figure", "s", "parameter_scalin"], "nearest is 'parameter_scaling'"),
    (["reset", "softmax-124M-ctx256-s0"], "results has no run; run snakemake first"),
    (["manifest", "m.json", "1", "1"], "sidecar train-00000.json does not exist"),
    (["tokenize", "train-00000-00000", "o"], "corpus is not valid JSON"),
    (["study", "study.json"], "study is not valid JSON"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_1(tmp_path, arguments, sentence):
    done = lmscaling(*arguments, cwd=tmp_path, input="")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_a_cell_with_an_unknown_key_is_refused(tmp_path, cell):
    values = json.loads(cell.to_json()) | {"contxt": 5}
    (tmp_path / "cell.json").write_text(json.dumps(values))
    done = lmscaling(
        "train", "cell.json", "--manifest", "m", "--scratch", "s", "--record", "r", cwd=tmp_path
    )
    assert done.returncode == 1
    assert "cell.json: unknown key 'contxt'; nearest is 'context'" in done.stderr


def test_every_verb_is_listed_and_explains_itself(capsys):
    parser = cli._parser()
    for verb in VERBS:
        assert verb.name.split()[0] in parser.format_help()
        with pytest.raises(SystemExit):
            parser.parse_args([*verb.name.split(), "--help"])
        assert verb.summary in " ".join(capsys.readouterr().out.split())


def test_the_help_lists_what_people_type_before_what_the_workflow_types(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = lmscaling("--help").stdout
    assert text == lmscaling().stdout
    assert max(map(len, text.splitlines())) <= 100
    first, last = text.split("what you type:")[1].split("what the workflow types:")
    listed = [
        set(re.findall(r"^  (\w\S*(?: \w+)?)  ", part, re.MULTILINE))
        for part in (first, last.split("options:")[0])
    ]
    assert {"plan", "status", "doctor", "reset", "figures", "export", "check attention"} < listed[0]
    assert {"train", "tokenize", "build-store", "check cell", "time_step"} < listed[1]
    typed = (ROOT / "workflow" / "rules").glob("*.smk")
    rules = " ".join(path.read_text() for path in typed)
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


def test_a_shell_completes_verbs_options_and_files():
    script = lmscaling("--print-completion", "bash").stdout
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
    assert lmscaling("--print-completion", "zsh").stdout.startswith("#compdef lmscaling")


UNKNOWN = [
    (["statsu"], "'statsu' is no verb; nearest is 'status'; "),
    (["check", "attentoin"], "'check attentoin' is no verb; nearest is 'check attention'; "),
    (["plan", "--devcie", "x"], "plan takes no '--devcie'; type lmscaling plan --help"),
    (["reset", "--context", "x"], "invalid int value: 'x'; type lmscaling reset --help"),
    (["export"], "required: run, folder; type lmscaling export --help"),
    (["check"], "required: WHAT; type lmscaling check --help"),
]


@pytest.mark.parametrize(("arguments", "sentence"), UNKNOWN)
def test_an_unknown_verb_or_option_is_one_line_that_says_what_to_type(
    capsys, monkeypatch, arguments, sentence
):
    monkeypatch.setattr(sys, "argv", ["lmscaling", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err or str(ended.value)
    assert said.startswith("error: ")
    assert sentence in said
    assert said.strip().count("\n") == 0
    assert "--help" in said


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    def refuse(path, text):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "write_text", refuse)
    monkeypatch.setattr(sys, "argv", ["lmscaling", "new", "my_study"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert re.match("error: [^ ]+: Read-only file system; ", str(ended.value))
    assert str(ended.value).endswith("then type lmscaling new again")


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


def test_reset_moves_all_that_a_run_has_left_to_the_attic(results):
    done = lmscaling("reset", "softmax-s-ctx16-s0", cwd=results)
    assert done.returncode == 0, done.stderr
    kept = {p.name: p for p in (results / "results/a/attic").glob("*/*/*/*")}
    assert set(kept) == {"run.json", "log.jsonl", "checkpoint", "text.jsonl"}
    assert kept["log.jsonl"].read_text() == "softmax-s-ctx16-s0-22222222"
    left = [p.name for p in (results / "results/a/runs").iterdir()]
    assert left == ["linear-s-ctx16-s0-11111111"]


def test_reset_of_a_trunk_takes_its_branches_with_it(results, cell):
    branch, other = replace(cell, branch=0.5), replace(cell, branch=0.5, seed=1)
    study = results / "results" / "c"
    (study / "cells").mkdir(parents=True)
    for made in (cell, branch, other):
        (study / "cells" / f"{made.run}.json").write_text(made.to_json())
        (study / "runs" / made.run).mkdir(parents=True)
    done = lmscaling("reset", cell.run, cwd=results)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in (study / "runs").iterdir()] == [other.run]


def test_reset_by_status_takes_every_such_run(results):
    assert lmscaling("reset", "--status", "oom", cwd=results).returncode == 0
    assert not (results / "results/a/runs/linear-s-ctx16-s0-11111111").exists()
    assert len(list((results / "results").glob("*/runs/*"))) == 2


def test_reset_by_context_takes_every_run_of_it_and_with_a_status_those_of_both(results, cell):
    for study, run in (("a", "linear-s-ctx16-s0-11111111"), ("a", "softmax-s-ctx16-s0-22222222")):
        path = results / "results" / study / "cells" / f"{run}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(cell.to_json())
    both = ["--study", "a", "--context", "16", "--status"]
    assert (
        "has status 'diverged' and has context 16"
        in lmscaling("reset", *both, "diverged", cwd=results).stderr
    )
    assert lmscaling("reset", *both, "oom", cwd=results).returncode == 0
    assert len(list((results / "results/a/runs").iterdir())) == 1
    assert lmscaling("reset", "--context", "16", cwd=results).returncode == 0
    assert not list((results / "results/a/runs").iterdir())
    assert len(list((results / "results/a/attic").glob("*/runs/*"))) == 2
    assert "name a cell, or give" in lmscaling("reset", cwd=results).stderr


def test_reset_leaves_a_run_that_is_being_trained(results):
    with lock.hold(results / "results/b/scratch/linear-s-ctx16-s0-33333333", ""):
        done = lmscaling("reset", "linear-s-ctx16-s0-33333333", cwd=results)
    assert done.returncode == 1
    assert "is in use by process" in done.stderr
    assert (results / "results/b/runs/linear-s-ctx16-s0-33333333/run.json").exists()


def test_reset_lets_a_held_run_go_on_and_keeps_its_checkpoints(results):
    held = results / "results/a/scratch/linear-s-ctx16-s0-11111111"
    (results / "results/a/runs/linear-s-ctx16-s0-11111111/run.json").unlink()
    for attempt in (1, 2):
        with Ledger(held, attempt) as book:
            book.write("failed", 5, 1.0, reason="KeyError: 'bug'", host="node7")
    assert ledger.hold(ledger.entries(held / ledger.NAME))
    done = lmscaling("reset", "--go-on", "--status", "held", cwd=results)
    assert done.stdout == ("free: linear-s-ctx16-s0-11111111; the next snakemake continues\n")
    assert ledger.hold(ledger.entries(held / ledger.NAME)) is None
    assert (held / "checkpoint").exists()
    again = lmscaling("reset", "--go-on", "softmax-s-ctx16-s0", cwd=results)
    assert (again.returncode, "is not held" in again.stderr) == (1, True)
    assert not list(results.glob("results/*/attic"))


RESET_MISTAKES = [
    (["linear-s-ctx16-s0"], "several studies have such a run; add --study;"),
    (
        ["linear-s-ctx16-s1", "--study", "a"],
        "no run of a is called 'linear-s-ctx16-s1'; nearest is",
    ),
    (["x", "--study", "c"], "has no run; studies: allowed: a, b"),
    (["--status", "diverged"], "no run of a, b has status 'diverged'"),
    (["--status", "oon"], "has status 'oon'; nearest is 'oom'"),
]


@pytest.mark.parametrize(("arguments", "sentence"), RESET_MISTAKES)
def test_reset_of_nothing_moves_nothing(results, arguments, sentence):
    done = lmscaling("reset", *arguments, cwd=results)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert not list(results.glob("results/*/attic"))


def test_a_folder_of_the_node_that_is_not_set_is_said_and_not_used(monkeypatch, capsys):
    monkeypatch.setenv("NODE_DISK", "/disk")
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    assert runs._on_this_node("$NODE_DISK/x") == Path("/disk/x")
    assert runs._on_this_node("") is None
    assert runs._on_this_node("$SLURM_TMPDIR") is None
    said = "node_scratch: $SLURM_TMPDIR is not set on this node; no shard is copied"
    assert capsys.readouterr().err == f"{said}\n"
