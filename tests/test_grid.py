"""Which values reach which cells: exceptions, branches, parts of the grid, and limits of shapes."""

import copy
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from conftest import STUDY, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from lmscaling.config import grid
from lmscaling.errors import UserError
from lmscaling.plan import calibrations

AXES: dict[str, list[Any]] = {
    "attention": ["softmax", "linear"], "size": ["s", "m"], "context": [16, 32], "seed": [0, 3],
}  # fmt: skip
PARTS = st.fixed_dictionaries({}, optional={
    axis: st.sampled_from(values) | st.lists(st.sampled_from(values), min_size=1, unique=True)
    for axis, values in AXES.items()
}).filter(len)  # fmt: skip
"""Some axes, with a value or several."""


def wide_study() -> dict[str, Any]:
    return copy.deepcopy(STUDY) | {"axes": AXES}


@pytest.fixture
def wide():
    """With one more context."""
    return wide_study() | {"axes": AXES | {"context": [16, 32, 64]}, "gpus": 1}


def cells(values):
    return list(grid.expand(values).cells.values())


def test_every_combination_is_one_cell_in_the_order_of_the_axes(wide):
    found = [(c.attention, c.size, c.context, c.seed) for c in cells(wide)]
    assert found == list(product(("softmax", "linear"), ("s", "m"), (16, 32, 64), (0, 3)))


def matches(cell, part) -> bool:
    lists = {axis: v if isinstance(v, list) else [v] for axis, v in part.items()}
    return all(getattr(cell, axis) in allowed for axis, allowed in lists.items())


@settings(max_examples=30)
@given(st.lists(PARTS, min_size=1, max_size=3))
def test_skip_leaves_out_the_cells_that_match_all_axes_of_an_entry_and_keeps_the_reason(parts):
    values = wide_study()
    every = cells(values)
    values["skip"] = [part | {"reason": str(i)} for i, part in enumerate(parts)]
    left = [cell for cell in every if not any(matches(cell, part) for part in parts)]
    if not left:
        with pytest.raises(UserError, match="skip"):
            grid.expand(values)
        return
    found = grid.expand(values)
    assert list(found.cells.values()) == left
    assert len(found.skipped) == len(every) - len(left)
    for cell, why in found.skipped:
        assert why == next(str(i) for i, part in enumerate(parts) if matches(cell, part))


@settings(max_examples=30)
@given(st.lists(PARTS, min_size=1, max_size=3))
def test_of_several_exceptions_that_match_all_axes_of_a_cell_the_last_counts(parts):
    given = [{"epochs": 2 + i, "gpus": i, "update_tokens": 128} for i in range(3)]
    entries = [part | own | {"reason": "x"} for part, own in zip(parts, given, strict=False)]
    for cell in cells(wide_study() | {"exceptions": entries}):
        own = [own for part, own in zip(parts, given, strict=False) if matches(cell, part)]
        expected = [{"epochs": 1, "gpus": 0, "update_tokens": 64}, *own][-1]
        assert {key: getattr(cell, key) for key in expected} == expected


def test_an_exception_gives_cells_a_learning_rate_of_their_own(wide):
    plain = cells(wide)
    wide["exceptions"] = [{"attention": "linear", "context": 32, "lr": 0.5, "reason": "searched"}]
    for before, after in zip(plain, cells(wide), strict=True):
        own = (before.attention, before.context) == ("linear", 32)
        assert after.lr == (0.5 * before.lr_scale if own else before.lr)


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_.]{0,8}", fullmatch=True).filter(lambda x: x != "m"))
def test_another_name_of_a_size_changes_the_names_of_its_cells_and_nothing_else(name):
    values = wide_study()
    before = cells(values)
    values["sizes"] = {name: STUDY["sizes"]["s"], "m": STUDY["sizes"]["m"]}
    values["axes"] = AXES | {"size": [name, "m"]}
    for cell, other in zip(before, cells(values), strict=True):
        assert replace(other, size=cell.size) == cell
        assert other.name == cell.name.replace("-s-", f"-{other.size}-")


def test_branches_are_cells_of_their_trunks_in_growing_order(wide):
    wide["branches"] = {"size": "s", "attention": ["linear"], "shares": [1.0, 0.25]}
    found = grid.expand(wide)
    for cell in found.cells.values():
        chosen = cell.size == "s" and cell.attention == "linear"
        assert (cell.keep, cell.branch) == ((0.25, 1.0) if chosen else (), None)
        assert cell.trunk == cell.run
    assert len(found.branches) == 2 * 6
    for run, branch in found.branches.items():
        assert branch.run == run != branch.trunk
        assert found.cells[branch.trunk].context == branch.context
        assert branch.keep == ()
        assert f"-b{branch.branch:g}" in branch.name


def test_names_show_a_rate_only_if_it_is_not_that_of_the_size(values):
    values["axes"]["lr_scale"] = [1.0, 0.5]
    rates = {c.name: c.lr for c in cells(values) if c.attention == "softmax"}
    assert rates == {"softmax-s-ctx16-s0": 1e-2, "softmax-s-ctx16-s0-lr0.5": 5e-3}


def test_parts_of_the_grid_are_evaluated_and_calibrated(wide):
    wide["evaluate"] = {"context": 64, "seed": 0, "datasets": ["lines"]}
    wide["calibrate"] = {"size": "s"}
    found = grid.expand(wide)
    chosen = [found.cells[run] for run in found.evaluated]
    assert [(c.context, c.seed) for c in chosen] == [(64, 0)] * 4
    calibrated = calibrations.chosen(found)
    assert len(calibrated) == 6  # one for both seeds
    for name, cell in calibrated.items():
        assert name == cell.calibration
        assert (cell.size, cell.seed) == ("s", 0)
    plain = {key: value for key, value in wide.items() if key not in ("calibrate", "evaluate")}
    for every in ({"calibrate": "all"}, {"calibrate": {}}, {}):
        assert len(calibrations.chosen(grid.expand(plain | every))) == 12
    off = grid.expand(plain | {"calibrate": None})
    assert (off.evaluated, calibrations.chosen(off)) == ([], {})


def test_a_calibration_follows_what_speed_depends_on_and_nothing_else(wide):
    one = cells(wide)[0]
    wide["optimizer"]["weight_decay"] = 0.3
    wide["budget"] = "9 updates"
    assert cells(wide)[0].calibration == one.calibration
    wide["update_tokens"] = 128
    assert cells(wide)[0].calibration != one.calibration


def test_text_to_evaluate_on_has_no_training_shards(wide):
    other = {"kind": "jsonl", "train": ["x.jsonl", "y.jsonl"], "validation": ["z.jsonl"]}
    wide["datasets"]["others"] = other
    wide["evaluate"] = {"datasets": ["others"]}
    found = grid.expand(wide)
    (folder,) = set(found.corpora) - {found.tokens}
    assert (found.n_shards(folder, "train"), found.n_shards(folder, "validation")) == (0, 1)
    assert found.n_shards(found.tokens, "train") == 1


SHAPES = [
    ({"update_tokens": 48}, "128", "144"),  # every_tokens 128
    ({"validation": {"tokens": 120, "every_tokens": 128}},
     "validation.tokens", "120", "nearest is 128"),
    ({"gpus": 3, "update_tokens": 128}, "3 gpus", "gpus: 2", "update_tokens: 384"),
    ({"gpus": 1, "clock": "processor"}, "clock: wall", "gpus: 0"),
    ({"gpus": 9, "update_tokens": 144, "validation": {"tokens": 16, "every_tokens": 144}},
     "9", "up to 8"),
]  # fmt: skip


def test_a_shape_that_does_not_fit_is_refused_with_the_nearest_that_does(values):
    for change, *named in SHAPES:
        with refused(UserError, *named):
            grid.expand(values | change)


def test_a_shape_at_the_limit_is_accepted(values):
    for change in ({"gpus": 8, "update_tokens": 128}, {"gpus": 4}, {"gpus": 1}, {"gpus": 0},
                   {"update_tokens": 128}, {"validation": {"tokens": 16, "every_tokens": 64}},
    ):  # fmt: skip
        assert len(cells(values | change)) == 2


def test_rotated_heads_have_an_even_width(values):
    values["sizes"]["s"] |= {"n_head": 8}
    assert cells(values)
    with refused(UserError, "size s"):
        grid.expand(values | {"position": "rope"})
    values["sizes"]["s"] |= {"n_head": 4}
    assert {c.position for c in cells(values | {"position": "rope"})} == {"rope"}
