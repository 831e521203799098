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
    "optimizer={eps: 1, eps: 2}": ("eps",), "axes.seed=0": ("[0]",),
    "axes.context=[]": ("one value",), "budget=300": ("updates",), "dataset=[lines]": ("text",),
    "baseline=flash": ("'flash'", "softmax"),
}  # fmt: skip


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_on_the_command_line_says_where(override):
    with refused(UserError, f"--set {override}", *MISTAKES[override]):
        plan(STUDY, override)


def shipped(*names, overrides=()):
    paths = [ROOT / "config" / f"{name}.yaml" for name in ("study", *names)]
    return study_file.read_study(paths, overrides=overrides)


def test_what_is_set_is_laid_over_a_whole_study_as_over_its_files():
    texts = ["axes.context=[64]", "skip=[{seed: 1, size: [6k, 25k, 100k], reason: a}]"]
    off = ["calibrate=null", "branches=null", "evaluate={}"]
    values = shipped("demo", overrides=[*texts, *off])
    assert values == study_file.overridden(shipped("demo"), [*texts, *off])
    assert len(grid.expand(values).cells) == 10


PARTS = {
    "skip=[]": "skip", "exceptions=[]": "exceptions", "calibrate=null": "calibrate",
    "branches=null": "branches", "evaluate=null": "evaluate",
}  # fmt: skip


def test_a_part_of_the_grid_that_matches_no_cell_says_what_to_type():
    text = STUDY.replace("size: s}", "context: 16}")
    done = []
    for remedy, key in PARTS.items():
        with refused(UserError, "study.yaml:", key, "context", "64", f"--set {remedy}"):
            plan(text, "axes.context=[64]", *done)
        done.append(remedy)
    assert {cell.context for cell in plan(text, "axes.context=[64]", *done).cells.values()} == {64}


def test_a_value_of_a_list_that_is_on_no_axis_is_a_mistake_with_its_place():
    over = "skip: [{context: 16, reason: a}, {context: [32, 99], reason: c}]"
    with refused(UserError, "over.yaml:1:", "context 99", "32"):
        plan(STUDY, over=over)


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
