"""What the command line lays over a study: ``--set``, targets, and the record that repeats it."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, refused
from snakemake.cli import parse_config
from snakemake.settings.types import dict_to_key_value_args
from test_study_files import STUDY, plan
from test_study_files import place as place

from lmscaling.config import grid, study_file
from lmscaling.errors import UserError


def test_what_is_set_survives_the_way_through_snakemake():
    texts = ["axes.context=[128]", "a={b: 'c', d: \"e\"}", "s=it's 5% & ü", "x=1"]
    *_, option, first = shlex.split(study_file.with_overrides("snakemake", texts))
    assert option == "--config"
    assert study_file.passed(parse_config([first])["set"]) == texts
    (again,) = dict_to_key_value_args(parse_config([first]), repr_obj=True)
    assert study_file.passed(parse_config([again])["set"]) == texts


MISTAKES = {
    "axes.context=[24]": ("24", "16"), "axes.contxt=[16]": ("'contxt'", "'context'"),
    "axs.context=[16]": ("'axs'", "'axes'"), "budget.hours=1": ("budget",),
    "axes.seed=[010]": ("010", "8"), "axes.seed=[0": ("YAML",), "gpus": (), "axes..seed=1": (),
    "optimizer={eps: 1, eps: 2}": ("eps",),
}  # fmt: skip


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_on_the_command_line_says_where(override):
    with refused(UserError, f"--set {override}", *MISTAKES[override]):
        plan(STUDY, override)


def shipped(*names, overrides=()):
    paths = [ROOT / "config" / f"{name}.yaml" for name in ("study", *names)]
    return study_file.read_study(paths, overrides=overrides)


@pytest.mark.parametrize(
    ("files", "override", "skipped"),
    [
        ([], "axes.context=[1024]", []),
        ([], "axes.context=[131072, 1024]", [{"context": 131072}]),
        (["demo"], "axes.size=[2k, 6k, 100k]", [{"size": "100k", "context": 1024},
                                                {"seed": 1, "size": "6k"},
                                                {"seed": 1, "context": 256}]),
        (["demo"], "axes.context=[64]", [{"seed": 1, "size": "6k"},
                                         {"seed": 1, "size": "25k", "context": 64}]),
    ],
)  # fmt: skip
def test_an_axis_of_the_command_line_needs_no_other_parts(files, override, skipped):
    values = shipped(*files, overrides=[override])
    kept = [{k: v for k, v in entry.items() if k != "reason"} for entry in values["skip"]]
    assert kept == skipped
    assert values == study_file.overridden(shipped(*files), [override])
    made = grid.expand(values)
    assert made.cells
    assert bool(made.branches) == ("[64]" not in override)


def test_an_axis_of_the_command_line_needs_no_parts_of_tasks_that_inherit_it():
    def tasks(*overrides):
        return grid.expand(shipped("tasks", overrides=overrides)).tasks

    every = tasks()
    rows = {
        "[softmax, linear]": {"softmax", "linear"},
        "[{local: {window: 16}}, {pattern: [softmax, linear]}]":
            {"local.window16", "softmax.linear"},
    }  # fmt: skip
    for row, labels in rows.items():
        left = tasks(f"axes.attention={row}")
        own = {run for run, cell in every.items() if cell.attention in labels}
        assert own <= left.keys()
        assert {left[run].task for run in left.keys() - own} <= {"copying_long"}  # has its own axis
    assert {cell.seed for cell in tasks("axes.seed=[1]").values()} == {1}


def test_a_skip_that_never_matched_is_a_mistake_with_its_place_all_the_same():
    over = "skip: [{context: 16, reason: a}, {context: 32, reason: b}, {context: 99, reason: c}]"
    with refused(UserError, "over.yaml:1:70", "{context: 99}", "32"):
        plan(STUDY, "axes.context=[32]", "exceptions=[]", over=over)
    skip = "skip=[{context: 32, reason: a}]"
    with refused(UserError, "{context: 32}"):
        plan(STUDY, "axes.context=[64]", skip, "exceptions=[]")


def test_the_command_of_a_record_reads_the_same_study():
    files = [Path("a b.yaml"), Path("c.yaml")]
    text = study_file.command("snakemake", files, {"gpus": 1}, ["axes.context=[64]"])
    words = "snakemake --configfile a_b.yaml c.yaml --config set=axes.context=[64] gpus=1"
    assert [word.replace(" ", "_") for word in shlex.split(text)] == words.split()
    more = study_file.with_overrides(text, ["axes.seed=[0,1]"])
    assert "set=axes.context=[64]&axes.seed=[0,1]" in shlex.split(more)


@pytest.mark.ci
def test_snakemake_reads_what_the_command_line_says_records_it_and_names_a_wrong_file(place):
    for name in ("workflow", "config", "profiles"):
        (place / name).symlink_to(ROOT / name)

    def snakemake(*words: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-m", "snakemake", "--cores", "1", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        return done.stderr

    over, given = "config/my_attention.yaml", ["--config", "set=axes.context=[128]", "epochs=2"]
    record = Path("results/my_attention/study.json")
    snakemake(str(record), "--configfile", over, *given)
    found = json.loads(record.read_text())
    assert found["study"]["axes"]["context"] == [128]
    words = shlex.split(found["command"])[3:]
    assert words == ["--configfile", over, *given]
    assert "has changed" not in snakemake("-n", *words)
    Path("over.yaml").write_bytes(b"study: x\ndataset: c4\ngpus: 010\n")
    with refused(UserError, "over.yaml:3", "010") as caught:
        study_file.read_study([Path("config/study.yaml"), Path("over.yaml")])
    assert f"error: {caught.value}\n" in snakemake("-n", "--configfile", "over.yaml")
