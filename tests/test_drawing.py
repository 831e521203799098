"""Images drawn from the state are those of the parallel forward pass, once for a finished run."""

import json
import os
from dataclasses import asdict, replace

import numpy as np
import pytest
import test_store
import torch
from conftest import refused, sentence, write_shard
from test_evaluate import finish
from test_workflow import product

from lmscaling import figures
from lmscaling.config import grid, study_file
from lmscaling.data import shards
from lmscaling.errors import UserError
from lmscaling.evaluate import drawing
from lmscaling.files import read_json, write_json
from lmscaling.model import finished_run
from lmscaling.model.gpt import GPT
from lmscaling.plan import jobs
from lmscaling.records import schema
from lmscaling.records.sample import Sample
from lmscaling.status import reset
from lmscaling.store import build as store
from lmscaling.train.checkpoint import save_weights

SHAPE, LEVELS = (3, 5), 9
TASK = {
    "dataset": "pictures", "size": "p", "context": 16, "position": "learned", "update_tokens": 64,
    "budget": "4 updates", "validation": {"tokens": 128, "every_tokens": 128},
}  # fmt: skip


def idx(path, n):
    """An idx file of random images."""
    head = bytes([0, 0, 8, 3]) + b"".join(k.to_bytes(4, "big") for k in (n, *SHAPE))
    path.write_bytes(head + pixels(n).astype("u1").tobytes())
    return path.name


def pixels(n):
    return np.random.default_rng(n).integers(0, LEVELS + 1, (n, SHAPE[0] * SHAPE[1]))


def parts(train, validation):
    row = {"kind": "images", "train": str(train), "validation": str(validation)}
    shape = {"n_layer": 1, "n_head": 1, "d_model": 16, "lr": 1e-2, "token_shift": True}
    return {"datasets": {"pictures": row}, "sizes": {"p": shape}, "tasks": {"pictures": TASK}}


@pytest.fixture
def study(values, tmp_path):
    for name, n in (("train", 40), ("validation", 20)):
        idx(tmp_path / name, n)
    for key, value in parts(tmp_path / "train", tmp_path / "validation").items():
        values[key] = values.get(key, {}) | value
    return values


@pytest.fixture
def run(study, tmp_path):
    return finish(tmp_path, next(iter(grid.expand(study).tasks.values())))


@pytest.fixture
def manifest(tmp_path):
    return write(tmp_path, {"shape": list(SHAPE)})


def write(folder, source):
    rows = np.concatenate((np.full((20, 1), 256), pixels(20)), 1)
    path = folder / "tokens" / "validation-00000.bin"
    flat = np.append(rows.ravel(), 256).astype(np.uint16)
    write_shard(path, flat, source={"shard": 0} | source)
    shards.write_manifest(path.with_name("manifest.json"), {"train": 0, "validation": 1})
    return path.with_name("manifest.json")


def drawn(run, manifest):
    out = run.parents[1] / "samples" / f"{run.name}.json"
    out.unlink(missing_ok=True)
    said = drawing.draw_images(run, manifest, out)
    values, unknown = schema.read(Sample, read_json(out, "sample"), str(out), "")
    assert not unknown
    return Sample(**values), said


@pytest.mark.parametrize("attention", ["softmax", "linear", "gated_delta", "local"])
def test_likeliest_images_are_those_of_a_pass(study, manifest, tmp_path, attention, monkeypatch):
    monkeypatch.setattr(drawing, "TEMPERATURE", 0.0)
    cell = replace(next(iter(grid.expand(study).tasks.values())), attention=attention)
    run = finish(tmp_path, cell)
    found = torch.tensor(drawn(run, manifest)[0].images)
    tokens = torch.cat((torch.full((16, 1), 256), found), 1)
    with torch.no_grad():
        expected = finished_run.model(run)(tokens)[:, :-1, : LEVELS + 1].argmax(-1)
    assert torch.equal(found, expected)


def test_a_record_has_the_images_of_a_fixed_seed_and_what_they_cost(run, manifest, tmp_path):
    sample, said = drawn(run, manifest)
    assert (sample.run, sample.shape, sample.levels) == (run.name, list(SHAPE), LEVELS)
    images = np.array(sample.images)
    assert images.shape == (16, 15)
    assert set(images.ravel()) == set(range(LEVELS + 1))
    assert len(np.unique(images, axis=0)) == 16
    assert sample.data == pixels(20)[:16].tolist()
    assert (sample.batch, sample.temperature) == (16, 1.0)
    assert sample.device
    assert said.startswith("16 images")
    assert f"{run.name}, {sample.tokens_per_second:,.0f}" in said
    assert drawn(run, manifest)[0].images == sample.images
    attic = reset.move(tmp_path, [run.name])  # which takes the sample with it
    assert (attic / "samples" / f"{run.name}.json").is_file()
    assert not list((tmp_path / "samples").iterdir())


def test_a_sample_stays_and_one_of_earlier_weights_is_made_again(run, manifest, tmp_path):
    out = tmp_path / "out.json"
    out.write_text("made before\n")
    assert str(out) in drawing.draw_images(run, manifest, out)
    assert out.read_text() == "made before\n"
    os.utime(run / "run.json", (2e9, 2e9))
    drawing.draw_images(run, manifest, out)
    assert json.loads(out.read_text())["run"] == run.name


def spoil_weights(run):
    gpt = GPT(finished_run.cell(run))
    with torch.no_grad():
        gpt.norm.weight.fill_(float("nan"))
    save_weights(run / "model.safetensors", gpt)


def diverge(run):
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"status": "diverged"}))


BROKEN = {
    "no weights": lambda run: (run / "model.safetensors").unlink(),
    "weights that are no number": spoil_weights,
    "a diverged run": diverge,
    "a damaged record": lambda run: (run / "run.json").write_text('{"cell"'),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_run_that_cannot_draw_leaves_a_record_without_images(run, manifest, name):
    BROKEN[name](run)
    sample, said = drawn(run, manifest)
    assert (sample.images, sample.tokens_per_second, sample.device) == ([], None, "")
    assert sample.data
    sentence("draw-images", said.replace(run.name, "RUN"))


def test_what_cannot_be_drawn_is_named_and_leaves_no_file(run, manifest, tmp_path):
    out = tmp_path / "out.json"
    with refused(UserError, tmp_path / "tokens"):
        drawing.draw_images(run, write(tmp_path, {}), out)
    with refused(UserError, run.with_name("other")):
        drawing.draw_images(run.with_name("other"), write(tmp_path, {"shape": list(SHAPE)}), out)
    assert not out.exists()


def test_the_plan_counts_a_drawing_for_each_run_of_images(study):
    assert jobs.counts(grid.expand(study))["draw_images"] == 2
    assert "draw_images" not in jobs.counts(grid.expand(study | {"tasks": {}}))


@pytest.mark.ci
def test_the_workflow_draws_once_for_a_finished_run_and_trains_nothing_for_a_lost_sample(tmp_path):
    place = product(tmp_path / "product")
    added = parts(idx(place.root / "t", 40), idx(place.root / "v", 20))
    place.study(**added, calibrate=None, branches=None, evaluate=None, speed=None)
    planned = [out for rule, out in place.plan() if rule == "draw_images"]
    assert len(planned) == 2
    place.snakemake("--cores", "1", "--", *planned)
    first, second = (place.root / out for out in planned)
    sample = json.loads(first.read_text())
    assert (len(sample["images"]), sample["shape"]) == (16, list(SHAPE))
    left = [rule for rule, _ in place.plan()]
    assert "draw_images" not in left
    assert left.count("train") == 2  # the cells of the grid
    assert place.plan("--", planned[0]) == []
    second.unlink()
    assert [out for rule, out in place.plan("--", planned[1]) if rule != "study"] == [planned[1]]
    other = place.snakemake("-n", "--", "results/tiny/samples/another.json", check=False)
    assert "another is no run of this study" in other.stdout + other.stderr


def shown(folder, study, empty=()):
    """The axes of the figure of a study whose runs are done; those of ``empty`` seeds drew none."""
    study["tasks"]["pictures"] = TASK | {"seed": [0, 1]}
    record = study_file.write_record(folder / "study.json", {"command": "", "study": study})
    for place, (run, cell) in enumerate(record.tasks.items()):
        loss = 1.0 + cell.seed
        rows = [test_store.header(run), test_store.validation(2, loss=loss), test_store.end(2)]
        test_store.record(folder, run, test_store.log(*rows), state_bytes=2304)
        images = [] if cell.seed in empty else pixels(16 + place).tolist()[:16]
        made = Sample(run=run, shape=list(SHAPE), levels=LEVELS, images=images,
                      data=pixels(50).tolist()[:16], batch=16, device="cpu",
                      tokens_per_second=1234.5 if images else None)  # fmt: skip
        write_json(folder / "samples" / f"{run}.json", asdict(made))
    store.build(folder)
    with store.connect(folder / "store") as db:
        return figures.draw("image_samples", db)[0].axes


def test_the_figure_has_a_strip_of_data_and_one_of_the_first_seed_that_drew(study, tmp_path):
    assert shown(tmp_path / "none", study, empty=(0, 1)) == []
    axes = shown(tmp_path, study, empty := (0,))
    texts = [[text.get_text() for text in each.texts] for each in axes]
    told = f"{1.5 / np.log(2):.3f} bits per pixel, 2 seeds\n1,234 pixels/s, state 2.3 kB"
    assert texts == [["pictures: data", ""], ["softmax", told], ["linear", told]]
    seed = len(empty)
    for each, n in zip(axes, (50, 16 + seed, 18 + seed), strict=True):
        strip = np.asarray(each.images[0].get_array())
        assert strip.shape == (3, 12 * 6 - 1)
        assert strip[:, :5] == pytest.approx(pixels(n)[0].reshape(SHAPE) / LEVELS)
        assert each.images[0].get_interpolation() == "none"
