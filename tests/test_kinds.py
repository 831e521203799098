"""Every kind of measurement has a section, a sweep and a description."""

import json

import pytest
from conftest import refused
from test_sweep import SPEED, planned

from lmscaling.config import grid, sweeps
from lmscaling.config.study import schema
from lmscaling.errors import UserError
from lmscaling.files import write_json
from lmscaling.status import reset
from lmscaling.types import dump

__all__ = ["planned"]


def test_every_kind_has_a_section_in_the_schema_and_a_description():
    properties = schema()["$defs"]["Speed"]["properties"]
    assert set(sweeps.KINDS) <= set(properties)
    assert all(section["description"] for section in properties.values())


def folders_of(values):
    return {s.kind: s.folder for s in sweeps.expand(grid.expand(values).study).values()}


def test_another_model_or_other_tokens_are_another_sweep(values, planned):
    folders = {planned["time_step"].folder}
    for tokens in (64, 128):
        values["speed"] = SPEED | {"time_step": [SPEED["time_step"][0] | {"tokens": tokens}]}
        made = folders_of(values)
        assert made["time_decode"] == planned["time_decode"].folder
        folders.add(made["time_step"])
    assert len(folders) == 3
    values["sizes"]["s"]["d_model"] = 16
    assert folders_of(values | {"speed": SPEED})["time_step"] not in folders


@pytest.fixture
def results(tmp_path):
    """A study with two measured points of one sweep."""
    sweep = tmp_path / "tiny" / "speed" / "time_step" / "s-0123abcd"
    for name in ("linear-b1-ctx16", "linear-b1-ctx32", "sweep"):
        write_json(sweep / f"{name}.json", {})
    return tmp_path


def test_reset_moves_a_sweep_or_a_point_and_what_says_that_it_is_settled(results):
    study, paths = reset.select_measurements(results, None, "time_step/s/linear-b1-ctx16")
    attic = reset.move_measurements(study, paths)
    sweep = study / "speed" / "time_step" / "s-0123abcd"
    assert [p.name for p in sweep.iterdir()] == ["linear-b1-ctx32.json"]
    moved = attic / "speed" / "time_step" / "s-0123abcd"
    assert {p.name for p in moved.iterdir()} == {"linear-b1-ctx16.json", "sweep.json"}
    study, paths = reset.select_measurements(results, "tiny", "time_step/s-0123abcd")
    reset.move_measurements(study, paths)
    assert not list((study / "speed" / "time_step").iterdir())


def test_reset_of_what_was_not_measured_names_the_nearest(results):
    mistakes = {"time_step/x": "time_step/s", "time_step/s/linear-b1-ctx61": "linear-b1-ctx16"}
    for name, nearest in mistakes.items():
        with refused(UserError, name, nearest):
            reset.select_measurements(results, None, name)


def test_every_sweep_is_written_into_its_folder(values, tmp_path):
    study = grid.expand(values | {"speed": SPEED}).study
    sweeps.write(tmp_path, study)
    expected = {f"{name}.json": dump(sweep) for name, sweep in sweeps.expand(study).items()}
    written = (tmp_path / "sweeps").rglob("*.json")
    found = {str(p.relative_to(tmp_path / "sweeps")): json.loads(p.read_text()) for p in written}
    assert found == expected
