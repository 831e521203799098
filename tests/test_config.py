"""A wrong study is refused in one sentence; a right one becomes cells with stable names."""

from typing import Any

import pytest

from lmscaling import registry
from lmscaling.config import grid, study_file
from lmscaling.config.budget import BudgetAmount, parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.study import Study
from lmscaling.config.types import dump
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.plan.calibrations import chosen


def put(values: dict[str, Any], path: str, value: Any) -> None:
    *parents, key = path.split("/")
    for parent in parents:
        values = values[parent]
    values[key] = value


MISTAKES = [
    ("budgt", 1, "unknown key 'budgt'; nearest is 'budget'; allowed: study, datasets"),
    ("sizes/s/n_layers", 1, "unknown key 'n_layers' in sizes.s; nearest is 'n_layer'"),
    (
        "sizes/m/n_head",
        3,
        "sizes.m: d_model 16 is not a multiple of n_head 3; nearest widths are 15",
    ),
    ("sizes/s/lr", "fast", "sizes.s.lr is 'fast'"),
    ("sizes/s", {"n_layer": 1, "n_head": 1, "d_model": 8}, "sizes.s.lr is missing"),
    ("sizes", 3, "sizes is 3; allowed: keys with values"),
    ("datasets/lines/kind", "jsonlines", "datasets.lines.kind is 'jsonlines'; nearest is 'jsonl'"),
    ("datasets/lines/trian", [], "unknown key 'trian' in datasets.lines.jsonl; nearest is 'train'"),
    ("tokenizers/bytes/encoding", "byte", "encoding is 'byte'; nearest is 'bytes'"),
    ("tokenizers/bytes/vocab_size", 256, "bytes has 257 tokens, but its row states vocab_size 256"),
    ("tokenizers/bytes/backend", "tokenizers", "no encoding 'bytes'; write backend: tiktoken"),
    ("tokenizers/bytes/file", "a.json", "found encoding and file; allowed: one of encoding, file"),
    ("tokenizers/bytes/sha256", "0" * 64, "; allowed: the 64 hexadecimal digits of a file"),
    ("tokenizers/x", {"vocab_size": 9}, "found no tokenizer; allowed: one of encoding, file and"),
    ("tokenizers/x", {"file": "a b.json"}, "vocabulary copy.json --file 'a b.json'` prints"),
    ("tokenizers/x", {"file": "a", "sha256": "0" * 64}, "needs its sha256 and vocab_size in the"),
    ("tokenizers/x", {"file": "a", "sha256": "0", "vocab_size": 9}, "sha256 is '0'; allowed"),
    (
        "tokenizers/x",
        {"file": "a", "sha256": "0" * 64, "vocab_size": 9, "backend": "gigatoken"},
        "backend gigatoken has no encoding 'file'; write backend: tokenizers",
    ),
    (
        "tokenizers/x",
        {"train_bpe": {"vocab_size": 256}},
        "vocab_size is 256; allowed: a whole number from 257",
    ),
    ("tokenizers/x", {"train_bpe": {}}, "tokenizers.x.train_bpe.vocab_size is missing"),
    (
        "tokenizers/x",
        {"train_bpe": {"vocab_size": 300}, "vocab_size": 299},
        "train_bpe has 300 tokens, but its row states vocab_size 299; write vocab_size: 300",
    ),
    ("axes/size", ["M"], "axes.size 'M' has no row under sizes; nearest is 'm'"),
    ("axes/size", ["S", "s"], "axes.size 'S' has no row"),
    ("axes/attention", ["sofmax"], "axes.attention 'sofmax' has no file in attention/; nearest is"),
    ("axes/context", [24], "axes.context 24 does not divide update_tokens 64; nearest is 16"),
    ("axes/context", [16, 16], "axes.context: 16 is listed more than once"),
    ("position", "rotary", "position is 'rotary'; allowed: learned, rope, none"),
    (
        "datasets/lines/kind",
        None,
        "datasets.lines.kind is 'None'; allowed: bin, copy, folder, hub, images",
    ),
    ("branches", {"share": [1]}, "unknown key 'share' in branches; nearest is 'shares'"),
    ("axes/seeds", [1], "unknown key 'seeds' in axes; nearest is 'seed'"),
    (
        "gpus",
        3,
        "4 sequences per update of 64 tokens, which 3 gpus cannot share evenly; write gpus: 2",
    ),
    ("skip", [{"context": 17, "reason": "x"}], "skip {context: 17} matches no cell; context"),
    ("skip", [{"reason": "x"}], "skip.0: no axis is given"),
    ("skip", [{"context": 16, "reason": "x"}], "every cell is skipped"),
    ("budget", "24 h", "budget: '24 h' is not a budget; allowed: a positive number and hours"),
    ("budget", "0 hours", "'0 hours' is not a budget"),
    ("study", "a b", "study: 'a b' cannot be a folder name; allowed: letters"),
    ("study", "..", "study: '..' cannot be a folder name"),
    ("study", "measured", "study 'measured' is the name of a folder of results/"),
    ("dataset", "line", "dataset 'line' has no row under datasets; nearest is 'lines'"),
    ("protocol", {"liner": 2}, "protocol 'liner' has no file in attention/; nearest is 'linear'"),
    ("validation/every_tokens", 100, "every_tokens 100 is not a multiple of update_tokens 64"),
    ("axes/context", [16, 63], "context 63 does not divide update_tokens 64; nearest is 64"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_with_what_is_allowed(values, path, value, sentence):
    put(values, path, value)
    with pytest.raises(UserError) as caught:
        grid.expand(values)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_row_must_pin_its_revision_and_number_its_files(values):
    row = {"kind": "hub", "repository": "a/b", "train": "{shard}", "validation": "{v}", "shards": 1}
    values["datasets"]["hub"] = row
    with pytest.raises(UserError, match=r"validation '{v}' does not number its files"):
        grid.expand(values)
    row["validation"] = "{shard}"
    with pytest.raises(UserError, match="revision is missing for 'a/b'"):
        grid.expand(values)


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [("24 hours", 24, "hours"), ("1 update", 1, "updates"), ("1e9 tokens", 1e9, "tokens")],
)
def test_a_budget_is_an_amount_and_a_unit(text, amount, unit):
    assert parse_budget(text) == BudgetAmount(amount, unit)


def test_equal_budgets_written_differently_are_one_run(values, cell):
    values["budget"] = "4.0 updates"
    assert cell.run in grid.expand(values).cells


def test_a_cell_survives_its_json(cell):
    assert checked(Cell, dump(cell), "cell") == cell


def test_the_hash_of_a_run_ignores_defaults_and_follows_every_other_value(values, cell):
    values["optimizer"]["weight_decay"] = 0.1  # the default, now written out
    assert cell.run in grid.expand(values).cells
    values["optimizer"]["weight_decay"] = 0.2
    runs = grid.expand(values).cells
    assert cell.run not in runs
    assert cell.name in {c.name for c in runs.values()}


def test_the_hash_of_a_run_never_changes_between_versions(cell):
    # A new hash for old values would train every study of every user again.
    assert cell.run == "linear-s-ctx16-s0-0b1a29e8"


def test_protocol_changes_only_the_cells_it_names(values):
    before = grid.expand(values).cells
    values["protocol"]["linear"] = 2
    after = grid.expand(values).cells
    assert {c.attention for run, c in after.items() if run not in before} == {"linear"}
    assert {c.attention for run, c in after.items() if run in before} == {"softmax"}


def test_more_training_files_change_no_run(values):
    before = list(grid.expand(values).cells)
    values["datasets"]["lines"]["train"].append("b.jsonl")
    assert list(grid.expand(values).cells) == before
    values["datasets"]["lines"]["train"] = ["b.jsonl"]
    assert list(grid.expand(values).cells) != before


def test_skip_leaves_out_what_agrees_with_all_its_axes_and_keeps_the_reason(values):
    values["axes"]["context"] = [16, 32]
    values["skip"] = [{"context": 32, "attention": "softmax", "reason": "too slow"}]
    made = grid.expand(values)
    assert [(c.name, why) for c, why in made.skipped] == [("softmax-s-ctx32-s0", "too slow")]
    assert len(made.cells) == 3


def test_the_learning_rate_of_a_cell_is_that_of_its_size_times_its_scale(values):
    values["axes"]["lr_scale"] = [0.5, 1.0]
    rates = {c.name: c.lr for c in grid.expand(values).cells.values()}
    assert rates["linear-s-ctx16-s0"] == 1e-2
    assert rates["linear-s-ctx16-s0-lr0.5"] == 5e-3


def test_files_are_laid_over_each_other_key_by_key(tmp_path):
    (tmp_path / "a.yaml").write_text("sizes: {s: 1, m: 2}\nskip: [1]\n")
    (tmp_path / "b.yaml").write_text("sizes: {m: 3}\nskip: []\n")
    paths = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    assert study_file.read_study(paths) == {"sizes": {"s": 1, "m": 3}, "skip": []}


BASE = """
study: big
dataset: c4
sizes: {s: 1}
skip: [1]
exceptions: [2]
calibrate: all
branches: {shares: [1.0], size: s}
evaluate: {datasets: [c4]}
speed: {repeats: 3, time_layer: [5]}
tasks: {recall: {size: w}}
"""


def laid_over(folder, *texts, **changes):
    """The study of files with these texts."""
    paths = [folder / f"{i}.yaml" for i in range(len(texts) + 1)]
    for path, text in zip(paths, (BASE, *texts), strict=True):
        path.write_text(text)
    return study_file.read_study(paths, changes)


def test_a_study_with_another_name_inherits_tables_and_no_jobs(tmp_path):
    made = laid_over(tmp_path, "study: small\nspeed: {repeats: 5}\n")
    off = dict.fromkeys(("calibrate", "branches", "evaluate"))
    own = {"study": "small", "speed": {"repeats": 5}, "skip": [], "exceptions": []}
    assert made == {"sizes": {"s": 1}} | own | off
    assert laid_over(tmp_path, "study: small\n") == laid_over(tmp_path, study="small")


def test_a_study_says_what_it_inherits(tmp_path):
    keys = ["dataset", "skip", "exceptions", "calibrate", "branches", "evaluate", "speed", "tasks"]
    text = "".join(f"{key}: inherit\n" for key in keys)
    big = laid_over(tmp_path)
    assert laid_over(tmp_path, "study: small\n" + text) == big | {"study": "small"}
    assert laid_over(tmp_path, text) == big


@pytest.mark.parametrize("empty", ["{}", "null"])
@pytest.mark.parametrize("section", ["calibrate", "branches", "evaluate", "speed"])
def test_an_empty_section_is_off_wherever_it_stands(tmp_path, section, empty):
    off = f"{section}: {empty}\n"
    assert laid_over(tmp_path, off) == laid_over(tmp_path) | {section: None}
    assert laid_over(tmp_path, "study: x\nspeed: {a: 1}\n", off)[section] is None
    (tmp_path / "whole.yaml").write_text(off)
    assert study_file.read_study([tmp_path / "whole.yaml"]) == {section: None}


@pytest.mark.parametrize("empty", ["{}", "null"])
def test_tasks_are_switched_off_like_a_section(tmp_path, empty):
    given = "tasks: {recall: {dataset: recall}}\n"
    assert "tasks" in laid_over(tmp_path, given)
    assert "tasks" not in laid_over(tmp_path, given, f"tasks: {empty}\n")


def test_all_cells_are_calibrated_by_the_word_and_by_what_older_records_hold(values):
    every = set(chosen(grid.expand(values | {"calibrate": "all"})))
    assert every == set(chosen(grid.expand(values | {"calibrate": {}})))
    assert len(every) == 2
    assert not chosen(grid.expand(values | {"calibrate": None}))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [(None, "does not exist"), ("a: [", "is not valid YAML"), ("- 1", "allowed: keys with values")],
)
def test_a_broken_study_file_is_named(tmp_path, text, sentence):
    path = tmp_path / "study.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=sentence) as caught:
        study_file.read_study([path])
    assert str(path) in str(caught.value)


def test_every_field_of_a_study_is_described():
    from pydantic import TypeAdapter

    schema = TypeAdapter(Study).json_schema()
    kinds = {stem.capitalize() for stem in registry.sources("data/kinds")}
    assert kinds <= schema["$defs"].keys()
    undescribed = [
        f"{name}.{key}"
        for name, part in schema["$defs"].items()
        if name in {"Size", "Tokenizer", "Validation", *kinds}
        for key, field in part["properties"].items()
        if "description" not in field and key != "kind"
    ]
    assert undescribed == []
