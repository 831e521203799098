"""The studies that come with the product."""

import hashlib
import json
from collections import Counter

import pytest
from conftest import ROOT, refused

from lmscaling.config import grid, study_file, sweeps
from lmscaling.config.study import schema
from lmscaling.errors import UserError
from lmscaling.plan import calibrations


def shipped(*names: str, overrides: tuple[str, ...] = ()) -> grid.Grid:
    paths = [ROOT / "config" / f"{name}.yaml" for name in ("study", *names)]
    return grid.expand(study_file.read_study(paths, overrides=overrides))


SHIPPED = {
    # Cells, those that are skipped, branched and evaluated, and GPUs of a cell.
    "c4": (72, 8, 360, 72, {8}), "demo": (12, 20, 8, 2, {0}), "lr_sweep": (10, 0, 0, 0, {8}),
    "long": (10, 0, 0, 10, {8, 4}), "gpu": (4, 0, 0, 0, {1}), "my_attention": (4, 0, 0, 0, {0}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_a_study_has_the_cells_that_it_promises(name):
    made = shipped(*[name] * (name != "c4"))
    assert made.study.study == name
    parts = (made.cells, made.skipped, made.branches, made.evaluated)
    assert (*map(len, parts), {cell.gpus for cell in made.cells.values()}) == SHIPPED[name]


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """Books of PG-19: their number is part of no name."""
    folder = tmp_path_factory.mktemp("books")
    for split, n in (("train", 600), ("validation", 50)):
        (folder / "pg19" / split).mkdir(parents=True)
        for i in range(n):
            (folder / "pg19" / split / f"{i}.txt").touch()
    return folder


@pytest.fixture(autouse=True)
def beside_books(books, monkeypatch):
    monkeypatch.chdir(books)


def test_the_study_of_long_documents_has_shards_of_512_books():
    made = shipped("long")
    assert list(made.corpora) == [made.tokens]
    assert [made.n_shards(made.tokens, split) for split in ("train", "validation")] == [2, 1]


def test_a_small_study_compares_attentions_and_nothing_else():
    made = shipped("my_attention")
    assert Counter(cell.attention for cell in made.cells.values()) == {"softmax": 2, "linear": 2}
    assert (made.checked, calibrations.chosen(made), sweeps.expand(made.study)) == ({}, {}, {})
    assert {corpus.source.is_fetched for corpus in made.corpora.values()} == {False}


def names(made):
    """Folders of tokens without those of tasks, first run, and a hash of the names of all runs of
    the grid and calibrations."""
    of_tasks = {cell.data.folder for cell in made.tasks.values()} - {made.tokens}
    runs = [*made.cells, *made.branches, *(cell.calibration for cell in made.cells.values())]
    digest = hashlib.sha256("\n".join(runs).encode()).hexdigest()[:8]
    return [tokens for tokens in made.corpora if tokens not in of_tasks], runs[0], digest


# Another name of a run or a folder makes every user train, tokenize or measure it again.
# The cells of 124M have had others since they read C4 twice (exceptions of config/study.yaml).
NAMES = [
    ([], "c4-gpt2-7d1e0c42", "softmax-124M-ctx256-s0-67d90cc4", "2eb2b1ae"),
    (["demo"], "stdlib-bytes-707d5a0e", "softmax-2k-ctx64-s0-6f0ad619", "5b650ea4"),
    (["gpu"], "sources-gpt2-f3800c72", "softmax-124M-ctx1024-s0-356238a2", "c2b7540d"),
    (["gpu", "gpu_cpu"], "sources-bytes-be05fe95", "softmax-25k-ctx64-s0-ae860aac", "14b04d33"),
    (["long"], "pg19-gpt2-f20c27fc", "softmax-124M-ctx1024-s0-5afd4d1c", "04c5eea8"),
    (["lr_sweep"], "c4-gpt2-7d1e0c42", "softmax-124M-ctx1024-s0-lr0.25-1496c9d4", "d03d8093"),
]


@pytest.mark.parametrize(("files", "tokens", "run", "digest"), NAMES)
def test_names_of_runs_and_tokens_never_change_between_versions(files, tokens, run, digest):
    assert names(shipped(*files)) == ([tokens], run, digest)


def test_names_of_the_task_and_the_sweeps_of_the_demo_never_change_between_versions():
    made = shipped("demo")
    assert list(made.corpora)[1:] == ["recall-bytes-df8a90d3"]
    assert next(iter(made.tasks)) == "recall-softmax-recall-ctx65-s0-e29c1248"
    assert sorted(sweeps.expand(made.study)) == [
        "time_decode/100k-9f91407e", "time_layer/tiny-bed2ca3b", "time_step/100k-9f91407e",
        "time_step/copy-e94b5b83",
    ]  # fmt: skip


TEMPLATES = {"train": "t{shard}.json.gz", "validation": "v{shard}.json.gz"}
HUB = {
    **TEMPLATES, "repository": "a/b", "revision": "rrr", "shards": 3, "mirror": "/data",
    "documents": [5], "expected_tokens": 1e6, "expected_bytes": 4e6, "text": "body",
}  # fmt: skip
KINDS = [
    ("hub", HUB, "0aaa067d", "d735273f"),
    ("hub", {**TEMPLATES, "repository": "./x", "shards": 1}, "43fbc5a9", "ea4b755e"),
    ("jsonl", {"train": ["a.jsonl", "b.jsonl"], "holdout": 0.02}, "f03f64fb", "44376463"),
    ("text", {"train": ["a.txt"], "validation": ["b.txt"]}, "66025f7f", "3a6e06f6"),
    ("stdlib", {"packages": True, "holdout": 0.1}, "f5df6a8b", "9c695826"),
]


@pytest.mark.parametrize(("kind", "row", "tokens", "run"), KINDS)
def test_names_of_each_kind_of_dataset_never_change(values, kind, row, tokens, run):
    values |= {"datasets": {"d": {"kind": kind, **row}}, "dataset": "d"}
    folders, first, _ = names(grid.expand(values))
    assert (folders, first) == ([f"d-bytes-{tokens}"], f"softmax-s-ctx16-s0-{run}")


def test_the_schema_for_editors_is_up_to_date():
    """If this fails: lmscaling schema config/study.schema.json."""
    assert json.loads((ROOT / "config" / "study.schema.json").read_text()) == schema()


def test_a_record_writes_each_cell_once_and_again_only_if_it_differs(tmp_path, values):
    path, record = tmp_path / "study.json", {"command": "snakemake", "study": values}
    made = study_file.write_record(path, record)
    other, spoiled = (tmp_path / "cells" / f"{run}.json" for run in made.cells)
    spoiled.write_text("{}")
    times = {file: file.stat().st_mtime_ns for file in (path, other)}
    study_file.write_record(path, record)
    assert {file: file.stat().st_mtime_ns for file in times} == times
    texts = [cell.to_json() + "\n" for cell in made.cells.values()]
    assert [other.read_text(), spoiled.read_text()] == texts
    assert study_file.read_record(path).command == "snakemake"


def test_an_incomplete_record_is_named_with_the_remedy(tmp_path):
    for text in ("[]", "{}", '{"study": {}}'):
        (tmp_path / "study.json").write_text(text)
        with refused(UserError, "study.json"):
            study_file.read_record(tmp_path / "study.json")
