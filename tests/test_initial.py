"""Models that begin with the final weights of the runs of another study."""

from dataclasses import replace

import pytest
import torch
from conftest import refused
from test_train import trained

from lmscaling.config import grid
from lmscaling.config.cell import Initial
from lmscaling.errors import UserError
from lmscaling.model import finished_run


@pytest.fixture
def first(cell):
    return replace(cell, position="rope")


def longer(cell, **wanted):
    """A cell of another context that hardly learns."""
    origin = Initial(**{"study": "first", "context": cell.context} | wanted)
    return replace(cell, context=2 * cell.context, lr=1e-12, initial=origin)


def test_a_cell_begins_with_the_weights_of_a_run_of_another_context_and_says_of_which(
    first, tokens, tmp_path
):
    made, log = trained(tmp_path / "first", first, tokens)
    again, other = trained(tmp_path / "second", longer(first), tokens)
    assert f"begins with {made.run}, SHA-256 " in again.remarks
    before, after = (finished_run.model(path.parent).state_dict() for path in (log, other))
    assert all(torch.allclose(after[name], before[name], atol=1e-9) for name in before)
    assert made.remarks == ""
    assert again.updates == made.updates


@pytest.mark.parametrize(("wanted", "change", "said"), [
    ({"seed": 7}, {}, ["no finished run", "seed 7"]),
    ({"study": "none"}, {}, ["study none", "run that study first"]),
    ({}, {"model": {"d_model": 16}}, ["another model", "size mismatch"]),
])  # fmt: skip
def test_weights_that_are_not_there_or_of_another_shape_are_refused_in_one_sentence(
    first, tokens, tmp_path, wanted, change, said
):
    trained(tmp_path / "first", first, tokens)
    cell = longer(first, **wanted)
    if change:
        cell = replace(cell, model=replace(cell.model, **change["model"]))
    with refused(UserError, *said):
        trained(tmp_path / "second", cell, tokens)


def test_learned_positions_end_with_their_context(values):
    origin = {"study": "first", "context": 8}
    made = grid.expand(values | {"initial": origin, "position": "rope"})
    assert {cell.initial for cell in made.cells.values()} == {Initial(**origin)}
    with refused(UserError, "initial", "position: rope"):
        grid.expand(values | {"initial": origin, "position": "learned"})
