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
from test_study_files import STUDY, place, plan

from lmscaling.config import grid, study_file
from lmscaling.errors import UserError
from snakemake_logger_plugin_lmscaling import rewritten, targets_first

__all__ = ["place"]


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--configfile a.yaml figures", "figures --configfile a.yaml"),
        ("-n --configfile a.yaml b.yml x --cores 2", "x -n --configfile a.yaml b.yml --cores 2"),
        ("--configfiles a.json results/a/b.json -p", "results/a/b.json --configfiles a.json -p"),
        ("--configfile a.yaml -- figures", "--configfile a.yaml -- figures"),
        ("figures --configfile a.yaml", "figures --configfile a.yaml"),
        ("--configfile figures", "--configfile figures"),
        ("--profile slurm figures", "--profile slurm figures"),
    ],
)  # fmt: skip
def test_targets_after_study_files_come_first_and_nothing_else_moves(typed, read):
    assert targets_first(typed.split()) == read.split()


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--set a.b=1 figures", """figures --config set=a.b=1"""),
        ("-n --set=a=1 --set b=2", """-n --config set=a=1&b=2"""),
        ("--config c=1 --set a=1 -n", """--config set=a=1 c=1 -n"""),
        ("--configfile x.yaml --set a=1 -- t", """--configfile x.yaml --config set=a=1 -- t"""),
        ("--configfile x.yaml t --set", """t --configfile x.yaml --config set=="""),
        ("-- --set a=1", "-- --set a=1"),
    ],
)  # fmt: skip
def test_overrides_reach_snakemake_in_one_value_of_its_configuration(typed, read):
    assert " ".join(rewritten(typed.split())) == read


def test_what_is_set_survives_the_way_to_the_jobs_of_snakemake():
    texts = ["axes.context=[128]", "a={b: 'c', d: \"e\"}", "s=it's 5% & ü", "x=1"]
    words = [word for text in texts for word in ("--set", text)]
    *_, option, first = rewritten(words)
    assert option == "--config"
    (again,) = dict_to_key_value_args(parse_config([first]), repr_obj=True)
    assert study_file.passed(parse_config([again])["set"]) == texts


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("axes.context=[24]", ("24", "16")),
        ("axes.contxt=[16]", ("'contxt'", "'context'")),
        ("axs.context=[16]", ("'axs'", "'axes'")),
        ("budget.hours=1", ("budget",)),
        ("axes.seed=[010]", ("010", "8")),
        ("axes.seed=[0", ("YAML",)),
        ("gpus", ()),
        ("axes..seed=1", ()),
        ("optimizer={eps: 1, eps: 2}", ("eps",)),
    ],
)
def test_a_mistake_on_the_command_line_says_where(override, named):
    with refused(UserError, f"--set {override}", *named):
        plan(STUDY, override)


@pytest.mark.parametrize(
    ("files", "override", "skipped"),
    [
        (["study"], "axes.context=[1024]", []),
        (["study"], "axes.context=[131072, 1024]", [{"context": 131072}]),
        (["study", "demo"], "axes.size=[2k, 6k, 100k]", [
            {"size": "100k", "context": 1024}, {"seed": 1, "size": "6k"},
            {"seed": 1, "context": 256},
        ]),
        (["study", "demo"], "axes.context=[64]", [
            {"seed": 1, "size": "6k"}, {"seed": 1, "size": "25k", "context": 64},
        ]),
    ],
)  # fmt: skip
def test_an_axis_of_the_command_line_needs_no_other_parts(files, override, skipped):
    paths = [ROOT / "config" / f"{name}.yaml" for name in files]
    values = study_file.read_study(paths, overrides=[override])
    kept = [{k: v for k, v in entry.items() if k != "reason"} for entry in values["skip"]]
    assert kept == skipped
    assert values == study_file.overridden(study_file.read_study(paths), [override])
    made = grid.expand(values)
    assert made.cells
    assert bool(made.branches) == ("[64]" not in override)


def test_an_axis_of_the_command_line_needs_no_parts_of_tasks_that_inherit_it():
    paths = [ROOT / "config" / f"{name}.yaml" for name in ("study", "tasks")]

    def made(*overrides):
        return grid.expand(study_file.read_study(paths, overrides=overrides))

    every = made().tasks
    for labels, rows in (
        ({"softmax", "linear"}, "[softmax, linear]"),
        (
            {"local.window16", "softmax.linear"},
            "[{local: {window: 16}}, {pattern: [softmax, linear]}]",
        ),
    ):
        left = made(f"axes.attention={rows}").tasks
        own = {run for run, cell in every.items() if cell.attention in labels}
        assert own <= left.keys()
        assert {left[run].task for run in left.keys() - own} <= {"copying_long"}  # has its own axis
    assert {cell.seed for cell in made("axes.seed=[1]").tasks.values()} == {1}


@pytest.mark.parametrize(
    ("overrides", "over", "named"),
    [
        (
            ["axes.context=[32]"],
            "skip: [{context: 16, reason: a}, {context: 32, reason: b}, {context: 99, reason: c}]",
            ("over.yaml:1:70", "{context: 99}", "32"),
        ),
        (["axes.context=[64]", "skip=[{context: 32, reason: a}]"], "", ("{context: 32}",)),
    ],
)
def test_a_skip_that_never_matched_is_a_mistake_with_its_place_all_the_same(overrides, over, named):
    with refused(UserError, *named):
        plan(STUDY, *overrides, "exceptions=[]", over=over)


def test_the_command_of_a_record_reads_the_same_study():
    text = study_file.command(
        "snakemake", [Path("a b.yaml"), Path("c.yaml")], {"gpus": 1}, ["axes.context=[64]"]
    )
    assert shlex.split(text) == [
        "snakemake", "--configfile", "a b.yaml", "c.yaml", "--config", "gpus=1",
        "--set", "axes.context=[64]",
    ]  # fmt: skip


@pytest.fixture
def product(place):
    """The product in the folder of the study, for a Snakemake of its own."""
    for name in ("Snakefile", "workflow", "config", "profiles"):
        (place / name).symlink_to(ROOT / name)
    return place


def snakemake(*words: str) -> str:
    """What Snakemake says to the user."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.ci
def test_snakemake_and_the_command_line_say_the_same_of_a_wrong_file(product):
    (product / "over.yaml").write_bytes(b"study: x\ndataset: c4\ngpus: 010\n")
    with refused(UserError, "over.yaml:3", "010") as caught:
        study_file.read_study([Path("config/study.yaml"), Path("over.yaml")])
    assert f"error: {caught.value}\n" in snakemake("-n", "--configfile", "over.yaml")


@pytest.mark.ci
def test_the_record_of_a_study_has_the_values_of_the_command_line_and_the_command(product):
    over, override = "config/my_attention.yaml", ["--set", "axes.context=[128]"]
    record = Path("results/my_attention/study.json")
    snakemake(str(record), "--configfile", over, *override, "--config", "epochs=2")
    found = json.loads(record.read_text())
    assert found["study"]["axes"]["context"] == [128]
    words = shlex.split(found["command"])[3:]
    assert words == ["--configfile", over, "--config", "epochs=2", *override]
    assert "has changed" not in snakemake("-n", *words)
