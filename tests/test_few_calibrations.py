"""``calibrate: auto``: few cells are measured, and the others train with their options."""

import json
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import pytest
import strangers
from conftest import ROOT, calibration, refused

from lmscaling.config import grid, study_file
from lmscaling.config.devices import DEVICES
from lmscaling.errors import UserError
from lmscaling.plan import calibrations, estimate, footprint, jobs
from lmscaling.plan.calibrations import chosen, nearest, tells
from lmscaling.plan.throughput.model import SPREAD, Timing, shipped, vector
from lmscaling.runtime.environment import processor
from lmscaling.train import settings
from lmscaling.train.run import train

LONG = [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]


@pytest.fixture(scope="module")
def real():
    return grid.expand(study_file.read_study([ROOT / "config" / "study.yaml"]))


def laid_out(**changes):
    values = study_file.read_study([ROOT / "config" / "study.yaml"])
    axes = values["axes"] | {"context": LONG, "size": ["124M"]} | changes
    values |= {"exceptions": [], "skip": [], "gpus": 4, "protocol": {"all": 1}, "calibrate": "auto"}
    return grid.expand(values | {"axes": axes})


def test_six_calibrations_far_from_each_other_are_made_for_the_72_cells_of_the_study(real):
    picked = chosen(real)
    assert len(real.cells) == 72
    assert jobs.counts(real)["calibrate"] == len(picked) == 6
    grid_of_each = [("1558M", 65536), ("355M", 4096), ("124M", 256)]
    for name in ("linear", "softmax"):
        found = [(c.size, c.context) for c in picked.values() if c.attention == name]
        assert found == grid_of_each


def test_times_are_known_as_well_as_is_said_once_the_chosen_cells_are_measured(real):
    """Stacks of software are drawn; each measures the six cells, and predicts all 72."""
    cells = {c.calibration: c for c in real.cells.values()}
    shapes = [calibrations.shape(c, calibrations.ways(c)) for c in cells.values()]
    works = map(estimate.work, cells.values(), shapes, *map(repeat, (1, True, 1)))
    x_iK = np.array([vector(work, DEVICES["NVIDIA H100"]) for work in works])
    picked = [list(cells).index(name) for name in chosen(real)]
    rng, known, away, sds = np.random.default_rng(0), shipped(), [], []
    for theta in rng.multivariate_normal(known.mean_K, known.cov_KK, 60):
        truth = np.log(x_iK @ np.exp(theta[:-1])) + theta[-1]
        truth += SPREAD * rng.standard_normal(len(truth))  # what the terms leave out
        fitted = known.measured([Timing(x_iK[i], float(np.exp(truth[i]))) for i in picked], SPREAD)
        found = [fitted.predict(x) for x in x_iK]
        away += [np.log(p.seconds) - t for p, t in zip(found, truth, strict=True)]
        sds += [p.sd for p in found]
    far, sd = np.abs(away), np.array(sds)
    assert 0.75 <= np.mean(far < 1.2816 * sd) <= 0.9
    assert np.mean(far < 1.96 * sd) >= 0.93


def test_the_choice_stays_while_calibrations_are_made_and_those_that_exist_count(real):
    picked = list(chosen(real))
    order = np.random.default_rng(0).permuted(picked).tolist()
    for n in range(len(picked) + 1):
        assert list(chosen(real, set(order[:n]))) == picked
    assert chosen(real, {"of-another-study"}) == chosen(real)
    every = {cell.calibration for cell in real.cells.values()}
    assert chosen(real, every).keys() == every
    others = {name for name in every if "124M-ctx4096-" in name}
    beside = chosen(real, others).keys()
    assert others < beside
    assert len(beside) == len(picked)
    assert not any("124M-ctx256-" in name for name in beside)  # near those that exist


def test_a_cell_more_orphans_no_calibration():
    few = laid_out(context=[1024, 4096])
    finished = chosen(few)
    more = laid_out(context=[1024, 4096, 16384], size=["124M", "355M"])
    assert finished.keys() <= chosen(more, set(finished)).keys()
    again = laid_out(context=[1024, 4096], seed=[0, 1, 2])
    assert chosen(again, set(finished)).keys() == finished.keys()


def test_a_longer_context_is_measured_for_itself_only_if_it_must_be():
    far = chosen(laid_out(context=[131072], attention=["linear"])).values()
    assert [cell.context for cell in far] == [131072]
    both = chosen(laid_out(attention=["linear"])).values()
    assert all(cell.context <= 65536 for cell in both)


def test_two_attentions_that_are_computed_alike_tell_nothing_of_each_other():
    flash, chunks = {"softmax": "flash"}, {"linear": "chunks"}
    assert tells(flash, chunks)
    assert tells(chunks, {"linear": "states"})
    assert tells(flash | chunks, chunks)
    assert not tells(chunks, {"gated": "chunks"})
    assert not tells(flash | chunks, {"gated": "chunks"})
    three = laid_out(attention=["softmax", "linear", "gated_delta"])
    picked = [cell.attention for cell in chosen(three).values()]
    assert min(picked.count(name) for name in ("softmax", "linear", "gated_delta")) >= 2
    sizes = ["124M", "355M", "774M", "1558M"]  # one that does not say is measured at each
    made = laid_out(attention=["softmax", "local"], size=sizes, context=LONG[:-1])
    assert {c.size for c in chosen(made).values() if c.attention == "local"} == {*sizes}
    ways = {cell.attention: calibrations.ways(cell) for cell in made.cells.values()}
    assert ways == {"softmax": {"softmax": "flash"}, "local": {"local": "own_pairs"}}


def test_a_file_of_ones_own_may_say_how_it_is_computed(tmp_path, monkeypatch, values):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "attention" / "mine.py"
    path.parent.mkdir()
    text = strangers.file()
    path.write_text(text)
    values["axes"]["attention"] = ["mine"]
    (cell,) = grid.expand(values).cells.values()
    assert calibrations.ways(cell) == {"mine": "own_pairs"}
    path.write_text(text.replace("(nn.Module):\n", '(nn.Module):\n    TIMED_AS = "flash"\n'))
    assert calibrations.ways(cell) == {"mine": "flash"}
    path.write_text(path.read_text().replace('"flash"', '"flesh"'))
    with refused(UserError, "mine", "'flesh'", "'flash'"):
        calibrations.ways(cell)


def test_a_cell_takes_its_own_calibration_or_that_of_its_size_and_the_nearest_context():
    made = laid_out(size=["124M", "355M"])
    cells = {(c.attention, c.size, c.context): c for c in made.cells.values()}

    def taken(size, context, *calibrated):
        of = {cells[key].calibration: cells[key] for key in calibrated}
        name = nearest(cells["linear", size, context], of)
        return next((key for key, c in cells.items() if c.calibration == name), None)

    small = [("linear", "124M", 256), ("linear", "124M", 65536)]
    assert taken("124M", 2048, *small) == ("linear", "124M", 256)
    assert taken("124M", 8192, *small) == ("linear", "124M", 65536)
    assert taken("124M", 256, *small) == ("linear", "124M", 256)
    other = ("linear", "355M", 256)
    assert taken("355M", 65536, *small, other) == other
    assert taken("355M", 65536, *small) == ("linear", "124M", 65536)
    assert taken("124M", 256, ("softmax", "124M", 256)) is None


@pytest.fixture
def place(cell, tmp_path):
    """A measured cell with a chunk of 32, and another one of its attention."""
    other = replace(cell, context=32)
    (tmp_path / "measured.json").write_text(cell.to_json())
    (tmp_path / "cell.json").write_text(other.to_json())
    calibration(tmp_path, cell, measured=True, choice={"chunk": 32}, update_seconds=1.0)
    return other, tmp_path / "calibration.json", tmp_path / "measured.json"


@pytest.fixture
def trained(place, tokens, tmp_path):
    """Trains the other cell with the calibration of the first."""
    _, way, measured = place
    paths = tmp_path / "scratch" / "run", tmp_path / "runs" / "run" / "run.json"

    def run(**options) -> Any:
        return train(tmp_path / "cell.json", tokens, *paths, way, calibrated=measured, **options)

    return run


def test_a_run_without_a_calibration_trains_with_the_options_of_the_nearest(place, cell, trained):
    other = place[0]
    run = trained()
    assert (run.status, run.updates) == ("done", 4)
    settled = run.calibration
    assert (settled["measured"], settled["nearest"]) == (False, cell.calibration)
    assert (settled["of"], settled["choice"]) == (other.calibration, {"chunk": 32})
    assert footprint.sequences(other) % settled["micro_batch"] == 0
    assert trained() == run  # what has ended is read again, as by a workflow that is started twice


def test_a_run_that_stopped_goes_on_with_the_same_options(trained, tmp_path):
    with pytest.raises(SystemExit):
        trained(stop_after=0.0)
    assert not (tmp_path / "runs" / "run" / "run.json").exists()
    run = trained()
    assert (run.updates, run.attempts, run.calibration["choice"]) == (4, 2, {"chunk": 32})


def test_a_missing_foreign_or_damaged_calibration_is_one_sentence(place, tmp_path):
    other, way, measured = place
    for change, named in (
        ({"attention": "softmax"}, ("linear", "softmax-s-ctx32-s0")),
        ({"documents": "masked"}, ("documents: masked",)),
    ):
        with refused(UserError, *named):
            settings.nearest(way, measured, replace(other, **change))
    with refused(UserError, "gone.json"):
        settings.nearest(tmp_path / "gone.json", measured, other)
    values = json.loads(way.read_text())
    for change, named in (
        ({"device": "NVIDIA X"}, ("NVIDIA X", processor())),
        ({"of": "linear-x"}, ("linear-x", "linear-s-ctx16-")),
    ):
        way.write_text(json.dumps(values | change))
        with pytest.raises(UserError) as caught:
            settings.nearest(way, measured, other)
        assert [value for value in named if value not in str(caught.value)] == []
    way.write_text("{")
    with refused(UserError, "calibration.json"):
        settings.nearest(way, measured, other)


def test_a_measured_peak_corrects_the_memory_of_other_cells(cell, place, monkeypatch):
    """On a device of which the model takes more than it seems, the micro-batch is smaller."""
    other, way, measured = place
    monkeypatch.setattr(settings, "memory_bytes", lambda device: 100_000)
    monkeypatch.setattr(footprint, "STATE_BYTES", 0)
    taken = {}
    for peak in (None, 40_000, 400_000):
        values = json.loads(way.read_text()) | {"peak_memory_bytes": peak}
        way.write_text(json.dumps(values))
        taken[peak] = settings.nearest(way, measured, other).micro_batch
    assert taken[400_000] < taken[None] <= taken[40_000]


def test_the_word_auto_is_no_part_of_the_grid_and_needs_no_attention(values):
    made = grid.expand(values | {"calibrate": "auto"})
    assert {cell.attention for cell in chosen(made).values()} == {"softmax", "linear"}
