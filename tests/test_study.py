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
    """The study of ``config/study.yaml`` with files over it."""
    paths = [ROOT / "config" / f"{name}.yaml" for name in ("study", *names)]
    return grid.expand(study_file.read_study(paths, overrides=overrides))


def counted(made, *fields):
    """How many cells have each combination of values."""
    return Counter(tuple(getattr(cell, field) for field in fields) for cell in made.cells.values())


def test_the_real_study_runs_72_cells_of_the_sizes_of_gpt2_and_skips_8():
    made = shipped()
    assert {cell.context for cell, _ in made.skipped} == {131072}
    assert len(made.skipped) == 8
    assert counted(made, "update_tokens", "budget", "gpus") == {(2**19, "24 hours", 8): 72}
    assert counted(made, "size", "lr") == dict.fromkeys(
        [("124M", 6e-4), ("355M", 3e-4), ("774M", 2.5e-4), ("1558M", 2e-4)], 18
    )
    models = (cell.model for cell in made.cells.values())
    shapes = {(12, 12, 768), (24, 16, 1024), (36, 20, 1280), (48, 25, 1600)}
    assert {(model.n_layer, model.n_head, model.d_model) for model in models} == shapes


def test_the_demo_is_a_small_grid_of_both_attentions():
    made = shipped("demo")
    assert (made.study.study, len(made.skipped), counted(made, "gpus")) == ("demo", 18, {(0,): 30})
    repeated = {(c.size, c.context) for c in made.cells.values() if c.seed == 1}
    assert repeated == {("2k", 64), ("2k", 1024), ("25k", 1024), ("100k", 64)}


def test_the_sweep_gives_each_attention_the_same_five_rates_around_the_studys():
    made = shipped("lr_sweep")
    assert (made.study.study, made.skipped, made.branches) == ("lr_sweep", [], {})
    assert made.evaluated == []
    every = counted(made, "size", "context", "seed", "budget", "gpus")
    assert every == {("124M", 1024, 0, "1 hours", 8): 10}
    rates = {(name, 2.0**n): 1 for name in ("softmax", "linear") for n in range(-2, 3)}
    assert counted(made, "attention", "lr_scale") == rates


def test_the_study_of_long_documents_plans_its_shards_before_the_books_are_there():
    made = shipped("long")
    assert (made.study.study, made.skipped) == ("long", [])
    assert counted(made, "position") == {("rope",): 10}
    assert {c.gpus for c in made.cells.values() if c.context == 131072} == {4}
    assert list(made.corpora) == [made.tokens]
    # 55 of 512 books and one of 442.
    assert [made.n_shards(made.tokens, split) for split in ("train", "validation")] == [56, 1]


def test_a_small_study_compares_attentions_and_nothing_else():
    made = shipped("my_attention")
    assert counted(made, "attention") == {("softmax",): 2, ("linear",): 2}
    assert (made.branches, made.evaluated, made.checked) == ({}, [], {})
    assert (calibrations.chosen(made), sweeps.expand(made.study)) == ({}, {})
    assert {corpus.source.is_fetched for corpus in made.corpora.values()} == {False}


def names(made):
    """Folders of tokens without those of tasks, first run, and a hash of the names of all runs of
    the grid and calibrations."""
    of_tasks = {cell.data.folder for cell in made.tasks.values()} - {made.tokens}
    runs = [*made.cells, *made.branches, *(cell.calibration for cell in made.cells.values())]
    digest = hashlib.sha256("\n".join(runs).encode()).hexdigest()[:8]
    return [tokens for tokens in made.corpora if tokens not in of_tasks], runs[0], digest


# Another name of a run or a folder makes every user train, tokenize or measure it again.
NAMES = [
    ([], "c4-gpt2-7d1e0c42", "softmax-124M-ctx256-s0-9cfb08e1", "f445d308"),
    (["demo"], "stdlib-bytes-707d5a0e", "softmax-2k-ctx64-s0-6f0ad619", "cd3640d6"),
    (["gpu"], "sources-gpt2-f3800c72", "softmax-124M-ctx1024-s0-356238a2", "c2b7540d"),
    (["gpu", "gpu_cpu"], "sources-bytes-be05fe95", "softmax-25k-ctx64-s0-ae860aac", "14b04d33"),
    (["long"], "pg19-gpt2-fb64ec4f", "softmax-124M-ctx1024-s0-8d55048f", "0e6a6897"),
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
        "copy_task/copy-1050f016", "time_decode/100k-9f91407e", "time_layer/tiny-bed2ca3b",
        "time_step/100k-9f91407e", "tune_chunk/100k-9f91407e",
    ]  # fmt: skip


TEMPLATES = {"train": "t{shard}.json.gz", "validation": "v{shard}.json.gz"}
HUB = {
    **TEMPLATES, "repository": "a/b", "revision": "rrr", "shards": 3, "mirror": "/data",
    "documents": [5], "expected_tokens": 1e6, "expected_bytes": 4e6, "text": "body",
}  # fmt: skip
FOLDER = {"train": "t", "n_files": 1000, "files_per_shard": 100, "expected_tokens": 1e6}
KINDS = [
    ("hub", HUB, "0aaa067d", "d735273f"),
    ("hub", {**TEMPLATES, "repository": "./x", "shards": 1}, "43fbc5a9", "ea4b755e"),
    ("jsonl", {"train": ["a.jsonl", "b.jsonl"], "holdout": 0.02}, "f03f64fb", "44376463"),
    ("text", {"train": ["a.txt"], "validation": ["b.txt"]}, "66025f7f", "3a6e06f6"),
    ("folder", FOLDER, "1a871dda", "45b7a872"),
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


@pytest.mark.parametrize("text", ["[]", "{}", '{"study": {}}'])
def test_an_incomplete_record_is_named_with_the_remedy(tmp_path, text):
    (tmp_path / "study.json").write_text(text)
    with refused(UserError, "study.json"):
        study_file.read_record(tmp_path / "study.json")
