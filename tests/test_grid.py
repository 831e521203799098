"""Which values reach which cells: exceptions, branches, parts of the grid, and limits of shapes."""

import pytest

from lmscaling.config import grid
from lmscaling.errors import UserError
from lmscaling.plan import calibrations


@pytest.fixture
def wide(values):
    """Two attentions, two sizes, three contexts and two seeds."""
    values["axes"] |= {"size": ["s", "m"], "context": [16, 32, 64], "seed": [0, 3]}
    values["gpus"] = 1
    return values


def cells(values):
    return list(grid.expand(values).cells.values())


def test_every_combination_is_one_cell_in_the_order_of_the_axes(wide):
    found = [(c.attention, c.size, c.context, c.seed) for c in cells(wide)]
    expected = [
        (attention, size, context, seed)
        for attention in ("softmax", "linear")
        for size in ("s", "m")
        for context in (16, 32, 64)
        for seed in (0, 3)
    ]
    assert found == expected


def test_an_exception_changes_the_cells_that_match_all_its_axes(wide):
    wide["exceptions"] = [
        {"size": "m", "context": [32, 64], "gpus": 2, "update_tokens": 128, "reason": "large"},
        {"seed": 3, "epochs": 2, "reason": "again"},
    ]
    for cell in cells(wide):
        large = cell.size == "m" and cell.context in (32, 64)
        assert (cell.gpus, cell.update_tokens) == ((2, 128) if large else (1, 64))
        assert cell.epochs == (2 if cell.seed == 3 else 1)


def test_of_two_exceptions_the_later_one_counts(wide):
    wide["exceptions"] = [
        {"size": "m", "epochs": 2, "reason": "x"},
        {"context": 16, "epochs": 3, "reason": "y"},
    ]
    epochs = {(c.size, c.context): c.epochs for c in cells(wide)}
    assert (epochs["m", 16], epochs["m", 32], epochs["s", 16], epochs["s", 32]) == (3, 2, 3, 1)


def test_branches_are_cells_of_their_trunks_in_growing_order(wide):
    wide["branches"] = {"size": "s", "attention": ["linear"], "shares": [1.0, 0.25]}
    found = grid.expand(wide)
    for cell in found.cells.values():
        chosen = cell.size == "s" and cell.attention == "linear"
        assert cell.keep == ((0.25, 1.0) if chosen else ())
        assert cell.branch is None
        assert cell.trunk == cell.run
    assert len(found.branches) == 2 * 6
    for run, branch in found.branches.items():
        assert branch.run == run != branch.trunk
        assert found.cells[branch.trunk].context == branch.context
        assert branch.keep == ()
        assert f"-b{branch.branch:g}" in branch.name


def test_names_show_a_rate_only_if_it_is_not_the_usual_one(values):
    values["axes"]["lr_scale"] = [1.0, 0.5]
    names = [c.name for c in cells(values) if c.attention == "softmax"]
    assert names == ["softmax-s-ctx16-s0", "softmax-s-ctx16-s0-lr0.5"]


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
    del wide["evaluate"], wide["calibrate"]
    plain = grid.expand(wide)
    assert plain.evaluated == []
    assert len(calibrations.chosen(plain)) == 12


def test_a_calibration_follows_what_speed_depends_on_and_nothing_else(wide):
    one = cells(wide)[0]
    assert len({c.calibration for c in cells(wide)}) == 12  # seeds share theirs
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


@pytest.mark.parametrize(
    ("change", "nearest"),
    [
        ({"update_tokens": 48}, "nearest is 144"),  # every_tokens 128
        ({"validation": {"tokens": 120, "every_tokens": 128}}, "nearest is 15"),
        ({"gpus": 3, "update_tokens": 128}, "gpus: 2"),
        ({"gpus": 1, "clock": "processor"}, "write clock: wall or gpus: 0"),
        ({"gpus": 3, "update_tokens": 128}, "update_tokens: 384"),
        ({"gpus": 9, "update_tokens": 144, "validation": {"tokens": 16, "every_tokens": 144}},
         "up to 8"),
    ],
)  # fmt: skip
def test_a_shape_that_does_not_fit_is_refused_with_the_nearest_that_does(values, change, nearest):
    with pytest.raises(UserError) as caught:
        grid.expand(values | change)
    assert nearest in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [{"gpus": 8, "update_tokens": 128}, {"gpus": 4}, {"gpus": 1}, {"gpus": 0},
     {"update_tokens": 128}, {"validation": {"tokens": 16, "every_tokens": 64}}],
)  # fmt: skip
def test_a_shape_at_the_limit_is_accepted(values, change):
    assert len(grid.expand(values | change).cells) == 2


def test_rotated_heads_have_an_even_width(values):
    values["sizes"]["s"] |= {"n_head": 8}
    assert grid.expand(values).cells
    with pytest.raises(UserError, match="size s"):
        grid.expand(values | {"position": "rope"})
    values["sizes"]["s"] |= {"n_head": 4}
    assert {c.position for c in cells(values | {"position": "rope"})} == {"rope"}
