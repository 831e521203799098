"""What a newcomer types first: `lmscaling new` in an empty folder."""

import sys

import pytest
import torch
import yaml
from conftest import ROOT

from lmscaling import attention, workflow
from lmscaling.bench.checks import variant
from lmscaling.cli import main
from lmscaling.config import grid, study_file

FILES = {
    "README.md", "Snakefile", "attention/mine.py", "config/first.yaml", "config/study.schema.json",
    "config/study.yaml", "profiles/default/config.yaml", "profiles/slurm/config.yaml",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "__path__", list(attention.__path__))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def type_(monkeypatch, *words):
    """The exit message of a command; empty if it succeeds."""
    monkeypatch.setattr(sys, "argv", ["lmscaling", *words])
    try:
        main()
    except SystemExit as end:
        return str(end.code)
    return ""


def files(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_new_writes_a_study_that_can_be_planned_and_an_attention_that_is_right(
    folder, monkeypatch, capsys
):
    assert type_(monkeypatch, "new", "first") == ""
    assert capsys.readouterr().out.endswith("next: snakemake -n --configfile config/first.yaml\n")
    made = {name for name in files(folder) if not name.startswith(("results/", "slurm/"))}
    assert made == FILES
    assert (folder / "slurm").resolve() == folder / "profiles" / "slurm"
    published = ROOT / "results" / "published"
    for path in [*published.glob("*.csv"), published / "README.md"]:
        assert (folder / "results" / "published" / path.name).read_bytes() == path.read_bytes()
    text = (folder / "config" / "first.yaml").read_text()
    (folder / "config" / "first.yaml").write_text(text.replace("linear] # mine", "linear, mine]"))
    values = study_file.read_study([folder / "config" / "study.yaml", folder / "config/first.yaml"])
    assert grid.expand(values).results == "results/first"
    assert {cell.attention for cell in grid.expand(values).cells.values()} == {
        "softmax", "linear", "mine",
    }  # fmt: skip
    for masked in (False, True):
        mine = variant.Variant(name="mine", rotated=True, masked=masked)
        variant.check(mine, torch.device("cpu"))
    readme = (folder / "README.md").read_text()
    assert "config/first.yaml" in readme
    assert "my_attention" not in readme


def test_new_overwrites_nothing_and_another_study_shares_the_folder(folder, monkeypatch):
    (folder / "README.md").write_text("mine")
    assert type_(monkeypatch, "new", "first") == ""
    (folder / "attention" / "mine.py").write_text("edited")
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    said = "error: config/first.yaml exists and stays as it is; type lmscaling new with another "
    assert type_(monkeypatch, "new", "first") == f"{said}name"
    assert type_(monkeypatch, "new", "second") == ""
    assert files(folder) - before.keys() == {"config/second.yaml"}
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert yaml.safe_load((folder / "config/second.yaml").read_text())["study"] == "second"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a b", "'a b' cannot be a folder name; .*nearest is 'a_b'"),
        ("../x", "cannot be a folder name"),
        ("demo", "demo is a study of the package; type lmscaling new with another name"),
        ("study", "study is a study of the package"),
        ("published", "published"),
        ("010", "010 is no text in YAML; .* such as my_010"),
        ("true", "true is no text in YAML"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_before_anything_is_written(
    folder, monkeypatch, name, reason
):
    monkeypatch.setattr(sys, "argv", ["lmscaling", "new", name])
    with pytest.raises(SystemExit, match=reason):
        main()
    assert files(folder) == set()


def test_the_report_of_the_demo_says_what_repeats_it(folder, monkeypatch):
    demo = ROOT / "config" / "demo.yaml"
    assert '"lmscaling demo"' in workflow.study_record({}, [demo])
    monkeypatch.chdir(ROOT)
    repeated = '"snakemake --cores all --configfile config/demo.yaml"'
    assert repeated in workflow.study_record({}, [demo])
