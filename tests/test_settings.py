"""Axes of any value of a study: which cells they make, how these are named and compared."""

import law_study
import pytest
from conftest import refused

from lmscaling import Study
from lmscaling.config import grid
from lmscaling.errors import UserError

SIZED = {"n_layer": 1, "n_head": 1, "d_model": 8, "lr": 1e-2}


def expanded(values, **axes):
    return grid.expand(values | {"axes": values["axes"] | axes})


def test_cells_of_the_studys_own_values_keep_their_names_and_the_others_say_what_differs(values):
    plain = expanded(values).cells
    found = expanded(
        values, **{"optimizer.weight_decay": [0.1, 0.3], "position": ["learned", "rope"]}
    ).cells
    assert len(found) == 4 * len(plain)
    assert plain.items() <= found.items()
    cells = {cell.attention: cell for cell in found.values()}
    both = cells["linear.weight_decay0.3.position_rope"]
    assert (both.optimizer.weight_decay, both.position, both.variants) == (0.3, "rope", ["linear"])
    assert (cells["linear.weight_decay0.3"].position, cells["linear"].position) == (
        "learned", "learned",
    )  # fmt: skip


def test_a_name_may_be_a_path_of_keys_and_its_value_one_that_no_file_gives(values):
    nested = expanded(values, optimizer={"eps": [1e-8, 1e-6]}).cells
    assert nested == expanded(values, **{"optimizer.eps": [1e-8, 1e-6]}).cells
    masked = expanded(values, documents=["mixed", "masked"]).cells.values()
    assert {cell.attention for cell in masked if cell.is_masked} == {
        "softmax.documents_masked", "linear.documents_masked",
    }  # fmt: skip
    betas = expanded(values, **{"optimizer.betas": [[0.9, 0.95], [0.9, 0.99]]}).cells.values()
    assert {cell.optimizer.betas[1] for cell in betas} == {0.95, 0.99}


def test_a_value_of_one_size_changes_that_size_only(values):
    wide = values | {"axes": values["axes"] | {"size": ["s", "m"]}}
    found = expanded(wide, **{"sizes.m.init_std": [0.02, 0.1]}).cells.values()
    assert {cell.size for cell in found if cell.attention.endswith("init_std0.1")} == {"m"}
    assert len(found) == 2 * 2 + 2


def test_an_ablation_changes_one_value_at_a_time(values):
    recipe = {"optimizer.weight_decay": 0.0, "position": "none", "sizes": {"s": {"init_std": 0.1}}}
    found = grid.expand(values | {"ablate": recipe}).cells.values()
    assert {cell.attention for cell in found if "linear" in cell.variants} == {
        "linear", "linear.weight_decay0", "linear.position_none", "linear.init_std0.1",
    }  # fmt: skip


@pytest.mark.parametrize(("recipe", "told"), [
    ({"optimizer.weight_decay": 0.1}, "is 0.1, the study's own"),
    ({"optimiser.weight_decay": 0.0}, "nearest is 'optimizer.weight_decay'"),
    ({"position": ["none"]}, "allowed: learned, rope, none"),
])  # fmt: skip
def test_an_ablation_that_cannot_be_is_refused_in_one_sentence(values, recipe, told):
    with refused(UserError, told):
        grid.expand(values | {"ablate": recipe})


@pytest.mark.parametrize(("name", "found", "told"), [
    ("optimizer.weight_dcay", [0.1], "nearest is 'optimizer.weight_decay'"),
    ("dataset", ["lines", "other"], "no value that cells can differ in"),
    ("sizes.s.d_model", [8, 16], "write a row under sizes"),
    ("sizes.s.lr", [0.01, 0.02], "axes.lr_scale"),
    ("optimizer.weight_decay", [0.3, 1.0], "leaves out 0.1"),
    ("optimizer.weight_decay", 0.3, "a list of different values"),
    ("optimizer.weight_decay", [0.1, 0.1], "a list of different values"),
    ("position", ["learned", "ropes"], "nearest is 'rope'"),
    ("update_tokens", [64, 40], "40"),
])  # fmt: skip
def test_an_axis_that_cannot_be_is_refused_in_one_sentence(values, name, found, told):
    with refused(UserError, told):
        expanded(values, **{name: found})


def test_settings_are_compared_as_attentions_are(values, tmp_path):
    made = law_study.values_of(values, **{"optimizer.weight_decay": [0.1, 0.3]})
    made["axes"] |= {"size": ["s"], "context": [1024]}
    law_study.write(tmp_path / "decay", made | {"branches": None})
    study = Study(tmp_path / "decay")
    assert study.attentions == [
        "softmax", "linear", "linear.weight_decay0.3", "softmax.weight_decay0.3",
    ]  # fmt: skip
    gap = study.gap("linear.weight_decay0.3", "linear")
    assert gap.seeds.tolist() == [1]
    assert gap.gap.notna().all()


def test_a_wrong_name_of_an_axis_is_named_before_a_value_that_stands_in_for_it(values):
    with refused(UserError, "'contexts'", "nearest is 'context'"):
        expanded(values, contexts=[16], context=[7])
