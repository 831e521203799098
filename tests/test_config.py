"""A study becomes cells with stable names; files and the command line lay values over it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from test_study_files import STUDY, changed, plan
from test_study_files import place as place

from lmscaling import registry
from lmscaling.config import grid, study_file
from lmscaling.config.budget import SECONDS, Budget, BudgetAmount, parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.study import Study
from lmscaling.config.validation import checked
from lmscaling.types import dump

IN_A_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(st.floats(1, 8e4), st.sampled_from(["hours", "minutes", "seconds", "updates", "tokens"]))
def test_a_budget_is_an_amount_and_a_unit_and_its_canonical_text_means_the_same(amount, unit):
    budget = TypeAdapter(Budget).validate_python
    assert SECONDS == {"hours": 3600, "minutes": 60, "seconds": 1}
    made = parse_budget(f"{amount!r} {unit}")
    assert made == BudgetAmount(amount, unit) == parse_budget(f" {amount!r}  {unit[:-1]}")
    assert parse_budget(budget(f"{amount!r} {unit}")) == made
    assert budget(f"{int(amount)}.0 {unit}") == f"{int(amount)} {unit}"
    assert made.seconds == (amount * SECONDS[unit] if unit in SECONDS else None)
    least = made.fraction(updates=1, tokens=64, seconds=10.0)
    assert least == {"updates": 1, "tokens": 64}.get(unit, 10.0) / (made.seconds or amount)


LEGAL = ("0.001 seconds", "3.2e8 seconds", "1 update", "1e9 updates", "1e15 tokens")
ILLEGAL = (
    "0.0009 seconds", "3.3e8 seconds", "88889 hours", "0.9 updates", "1.1e9 updates",
    "2e15 tokens", "-1 hours", "1 hour extra", "e hours",
)  # fmt: skip


def test_a_budget_is_within_its_bounds():
    for text in LEGAL:
        assert parse_budget(text).amount == float(text.split()[0])
    for text in ILLEGAL:
        with pytest.raises(ValueError, match=f"'{text}'"):
            parse_budget(text)


def test_the_hash_of_a_run_ignores_defaults_and_follows_every_other_value(values, cell):
    # A new hash for old values would train every study of every user again.
    assert cell.run == "linear-s-ctx16-s0-0b1a29e8"
    assert checked(Cell, dump(cell), "cell") == cell
    values["budget"] = "4.0 updates"
    values["optimizer"]["weight_decay"] = 0.1  # the default, now written out
    values["datasets"]["lines"]["train"].append("b.jsonl")  # more of the same
    assert cell.run in grid.expand(values).cells
    for change in (
        {"optimizer": {"warmup_updates": 2, "weight_decay": 0.2}},
        {"datasets": {"lines": values["datasets"]["lines"] | {"train": ["b.jsonl"]}}},
        {"protocol": {"all": 1, "linear": 2}},
    ):
        runs = grid.expand(values | change).cells
        assert cell.run not in runs
        assert cell.name in {c.name for c in runs.values()}
    kept = runs.keys() & grid.expand(values).cells.keys()
    assert {runs[run].attention for run in kept} == {"softmax"}


def shuffled(value: Any, chance: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(each, chance) for each in value]
    if not isinstance(value, dict):
        return value
    keys = chance.sample(list(value), len(value))
    return {key: shuffled(value[key], chance) for key in keys}


@settings(IN_A_FOLDER, max_examples=20)
@given(st.randoms(use_true_random=False))
def test_the_order_of_keys_changes_no_run(chance):
    made = plan(STUDY)
    other = plan(yaml.safe_dump(shuffled(yaml.safe_load(STUDY), chance), sort_keys=False))
    assert list(other.cells.items()) == list(made.cells.items())
    assert other.branches.keys() == made.branches.keys()
    assert other.evaluated == made.evaluated


def merged(base: Any, over: Any) -> Any:
    """Mappings are merged key by key, any other value is replaced."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    return {k: merged(base.get(k), over[k]) if k in over else base[k] for k in base | over}


KEYS = st.sampled_from(["s", "m", "l", "lr", "eps", "lines", "all", "tokens", "time_step"])
PLAIN = st.integers(0, 99) | st.floats(0.5, 9) | st.booleans() | st.sampled_from(["x", "linear"])
TREES = st.recursive(
    PLAIN | st.lists(PLAIN, max_size=3),
    lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=3),
    max_leaves=6,
)
SECTIONS = ["sizes", "optimizer", "validation", "gpus", "datasets", "protocol", "budget"]
OVERS = st.dictionaries(st.sampled_from(SECTIONS), TREES)
PARTS = {
    "sizes": {"s": {"lr": 1, "n_layer": 2}, "m": {"lr": {"linear": 3}}},
    "optimizer": {"eps": 0.5}, "gpus": 0, "datasets": {"lines": {"train": ["a"]}},
}  # fmt: skip


def written(*studies):
    """Files of studies, in the order in which they are laid over each other."""
    paths = [Path(f"{i}.yaml") for i in range(len(studies))]
    for path, values in zip(paths, studies, strict=True):
        path.write_text(json.dumps(values))
    return paths


@IN_A_FOLDER
@given(OVERS, OVERS)
def test_files_are_laid_over_each_other_key_by_key(first, second):
    made = study_file.read_study(written(PARTS, first, second))
    assert dict(made) == merged(merged(PARTS, first), second)


def leaves(over: Any, path: str = "") -> list[str]:
    if isinstance(over, dict):
        return [x for key, each in over.items() for x in leaves(each, f"{path}.{key}".lstrip("."))]
    return [f"{path}={json.dumps(over)}"]


@IN_A_FOLDER
@given(OVERS, OVERS)
def test_values_of_the_command_line_are_laid_over_a_study_and_its_files_in_the_same_way(over, last):
    paths = written(PARTS, over)
    expected = merged(merged(PARTS, over), last)
    assert dict(study_file.read_study(paths, overrides=leaves(last))) == expected
    assert dict(study_file.read_study(paths, changes=last)) == expected
    snakemakes = merged(PARTS, over)
    made = study_file.overridden(snakemakes | {"set": leaves(last)}, leaves(last))
    assert dict(made) == merged(snakemakes, last)


def test_the_last_of_several_values_of_one_key_counts_and_names_may_have_dots():
    made = plan(STUDY, "axes.context=[64]", "skip=[]", "exceptions=[]", "optimizer.eps=1e-9")
    assert {cell.context for cell in made.cells.values()} == {64}
    assert {cell.optimizer.eps for cell in made.cells.values()} == {1e-9}
    assert plan(STUDY, "gpus=4", "gpus=2", over="gpus: 1\n").study.gpus == 2
    assert plan(STUDY, "speed={}").study.speed is None
    dotted = changed("  s: {", "  s.1: {n_layer: 1, n_head: 1, d_model: 8, lr: 1.0e-2}\n  s: {")
    assert plan(dotted, "sizes.s.1.lr=0.02").study.sizes["s.1"].lr == 0.02


BASE = {
    "study": "big", "dataset": "c4", "sizes": {"s": 1}, "skip": [1], "exceptions": [2],
    "calibrate": "all", "branches": {"shares": [1.0], "size": "s"},
    "evaluate": {"datasets": ["c4"]}, "speed": {"repeats": 3, "time_layer": [5]},
    "tasks": {"recall": {"size": "w"}},
}  # fmt: skip


def laid_over(*studies, **changes):
    return study_file.read_study(written(BASE, *studies), changes)


def test_the_name_of_a_study_changes_nothing_else():
    made = laid_over({"study": "small", "speed": {"repeats": 5}, "skip": []})
    speed = {"repeats": 5, "time_layer": [5]}
    assert made == BASE | {"study": "small", "speed": speed, "skip": []}
    assert laid_over({"study": "small"}) == laid_over(study="small")


@pytest.mark.parametrize("empty", [{}, None])
@pytest.mark.parametrize("section", ["calibrate", "branches", "evaluate", "speed"])
def test_an_empty_section_is_off_wherever_it_stands(section, empty):
    off = {section: empty}
    assert laid_over(off) == BASE | {section: None}
    assert laid_over({"study": "x", "speed": {"a": 1}}, off)[section] is None
    assert study_file.read_study(written(off)) == {section: None}
    assert "tasks" in laid_over()
    assert "tasks" not in laid_over({"tasks": empty})


def test_every_field_of_a_study_is_described():
    parts = TypeAdapter(Study).json_schema()["$defs"]
    kinds = (stem.capitalize() for stem in registry.sources("data/kinds"))
    for name in ("Size", "Tokenizer", "Validation", *kinds):
        fields = parts[name]["properties"].items()
        assert [key for key, f in fields if "description" not in f and key != "kind"] == [], name
