"""Losses without a model are those of plain counting, and figures and the answer show them."""

import json
import math
import os
from collections import Counter, defaultdict

import duckdb
import numpy as np
import pytest
from conftest import write_shard, write_tokens
from matplotlib.figure import Figure
from pandas import DataFrame
from test_marked import manifest, source, study, task
from test_store import end, header, log, record, runs_of, update, validation, write_study

from lmscaling import figures
from lmscaling.config import study_file
from lmscaling.data import shards
from lmscaling.data.kinds import tables
from lmscaling.data.order import Order
from lmscaling.data.stream import Stream
from lmscaling.evaluate import floors
from lmscaling.figures.shared import floors as drawn_floors
from lmscaling.files import read_lines
from lmscaling.records.floor import Floor
from lmscaling.records.run import line
from lmscaling.report import answer, contest
from lmscaling.report.table import query_rows
from lmscaling.store import build as store

__all__ = ["manifest", "source", "study", "task"]

KNOWN = {"3-gram": 2.9, "exact": 2.0, "far": 90.0}


def slowly(train, tokens, n_vocab):
    """The losses of each order, token by token."""
    follow = defaultdict(Counter)
    for n in range(floors.ORDERS):
        for i in range(n, len(train)):
            follow[tuple(train[i - n : i])][train[i]] += 1
    chances = [1 / n_vocab] * (len(tokens) - 1)
    for n in range(floors.ORDERS):
        for i, token in enumerate(tokens[1:], 1):
            seen = follow[tuple(tokens[i - n : i])] if i >= n else Counter()
            if seen:
                mixed = seen[token] + len(seen) * chances[i - 1]
                chances[i - 1] = mixed / (seen.total() + len(seen))
        yield [-math.log(p) for p in chances]


@pytest.mark.parametrize(("n", "n_vocab"), [(2000, 4), (300, 257), (9, 3)])
def test_the_losses_of_tables_are_those_of_counting_token_by_token(n, n_vocab):
    rng = np.random.default_rng(n)
    train, tokens = (rng.integers(0, n_vocab, size).astype(np.uint16) ** 2 % n_vocab
                     for size in (n, n // 2 + 2))  # fmt: skip
    found = [losses.tolist() for losses in floors.ngram_losses(train, tokens, n_vocab)]
    expected = [*slowly(train.tolist(), tokens.tolist(), n_vocab)]
    assert found == [pytest.approx(losses) for losses in expected]
    assert len(found) == 5


def with_tokens(study):
    grid = study_file.read_record(study / "study.json").grid
    manifest = write_tokens(study / "tokens" / grid.tokens, [700, 3000], [1000])
    return manifest, study / "floors" / f"{grid.tokens}.jsonl"


def changed(study, **values):
    record = json.loads((study / "study.json").read_text())
    record["study"] |= values
    (study / "study.json").write_text(json.dumps(record))


def rows(path):
    return [json.loads(text) for text in read_lines(path, "floor")]


def test_a_text_has_floors_of_as_much_of_it_as_the_longest_run_reads_in_its_order(tmp_path, values):
    values["datasets"]["lines"] |= {"shuffle": "blocks", "block_tokens": 32}
    study = write_study(tmp_path, values)
    manifest, out = with_tokens(study)
    floors.write(study)
    train = np.concatenate([
        Stream(manifest, "train", Order(32, 0)).slab(u, 64)[0] for u in range(1, 5)
    ])  # fmt: skip
    tokens = Stream(manifest, "validation").read(0, 129)
    means = [losses.mean() for losses in floors.ngram_losses(train, tokens, 257)]
    found = rows(out)
    assert [row["loss"] for row in found] == pytest.approx(means)
    assert [row["name"] for row in found] == [f"{n}-gram" for n in range(1, 6)]
    assert {(row["train_tokens"], row["validation_tokens"]) for row in found} == {(256, 128)}
    os.utime(out, ns=(before := out.stat().st_mtime_ns + 10**9, before))
    floors.write(study)
    assert out.stat().st_mtime_ns == before  # nothing has changed
    changed(study, budget="1 hours")  # nobody knows how much that reads: all text
    floors.write(study)
    assert rows(out)[0]["train_tokens"] == 3699
    out.write_bytes(out.read_bytes().replace(b"1-gram", b"2-gram"))
    os.utime(out, ns=(0, 0))
    floors.write(study)
    assert rows(out)[0]["name"] == "1-gram"


def test_a_context_that_is_added_gets_what_is_known_in_it(tmp_path, values):
    values["datasets"]["lines"] = {"kind": "tables", "documents": 1, "validation_documents": 1}
    study = write_study(tmp_path, values)
    manifest, out = with_tokens(study)
    tokens = np.append(tables.END, np.full(999, tables.FIRST)).astype(np.uint16)
    write_shard(manifest.with_name("validation-00000.bin"), tokens, source={"shard": 0})
    shards.write_manifest(manifest, {"train": 2, "validation": 1})
    floors.write(study)
    before = {row["context"] for row in rows(out)} - {None}
    axes = values["axes"] | {"context": [*sorted(before), 64]}
    changed(study, axes=axes)
    floors.write(study)
    assert {row["context"] for row in rows(out)} - {None} == before | {64}


def test_large_vocabularies_and_texts_that_cannot_be_read_have_no_floors(tmp_path, values, capsys):
    study = write_study(tmp_path, values)
    floors.write(study)  # no tokens are here
    manifest, out = with_tokens(study)
    manifest.with_name("train-00000.bin").write_bytes(b"damaged")
    floors.write(study)
    assert "train-00000.bin" in capsys.readouterr().err
    values["tokenizers"]["gpt2"] = {"encoding": "gpt2", "vocab_size": 50257}
    changed(study, tokenizer="gpt2", tokenizers=values["tokenizers"])
    with_tokens(study)
    floors.write(study)
    assert not out.parent.exists()


def test_floors_of_a_task_are_of_the_targets_that_count_and_its_rule_has_no_loss(
    tmp_path, values, task, source, manifest
):
    folder = write_study(tmp_path, values)  # to which the fixture of the task has added it
    manifest.parent.rename(folder / task.data.folder)
    (folder / "tokens").mkdir()
    (folder / task.data.folder).rename(folder / "tokens" / task.data.folder)
    floors.write(folder)
    *tables, exact = rows(folder / "floors" / f"{task.data.folder}.jsonl")
    assert (exact["name"], exact["context"], exact["loss"]) == ("exact", task.context, 0.0)
    moved = folder / "tokens" / task.data.folder / "manifest.json"
    tokens = Stream(moved, "validation").read(0, exact["validation_tokens"] + 1)
    order = task.block_tokens and Order(task.block_tokens, task.seed)
    train, _ = Stream(moved, "train", order).slab(1, exact["train_tokens"])
    counted = source.marks(tokens[:-1].reshape(-1, task.context)).ravel() > 0
    means = [losses[counted].mean() for losses in floors.ngram_losses(train, tokens, 257)]
    assert [row["loss"] for row in tables] == pytest.approx(means)


@pytest.fixture
def finished(tmp_path, values):
    """One finished run of softmax in each of two contexts, with losses of 3.0 and 2.5, and one of
    linear attention with 2.95; those of another size are pending."""
    values["axes"]["size"] = ["s", "m"]
    study = write_study(tmp_path, values)
    small = [run for run in runs_of(study) if "-s-" in run]
    for run, loss in zip(small, (3.0, 2.5, 2.95), strict=True):
        rows = update(1), update(4), validation(4, loss=loss), end(4)
        record(study, run, log(header(run), *rows), updates=4)
    (study / "floors").mkdir()
    lines = [
        Floor(dataset="lines", name=name, loss=loss, validation_tokens=128, train_tokens=256,
              context=32 if name == "exact" else None)
        for name, loss in KNOWN.items()
    ]  # fmt: skip
    (study / "floors" / "lines-bytes-0.jsonl").write_bytes(b"".join(map(line, lines)))
    store.build(study)
    return study


def test_the_store_counts_the_cells_above_each_floor_and_the_answer_begins_with_them(finished):
    with store.connect(finished / "store") as db:
        counts = db.sql("SELECT name, above, cells FROM floor_counts ORDER BY loss").fetchall()
        assert counts == [("exact", 1, 1), ("3-gram", 2, 3), ("far", 0, 3)]
        (floor,) = query_rows(db, answer.FLOOR)
        evidence = contest.read(db, "measured")
        judged = contest.judge(evidence)
        said = answer.write(judged, evidence, "4 updates", "", floor=floor)
        assert [w for w in ("2 of 3", "2.90", "3-grams") if w not in said.lede[0]] == []
        best = answer.write(judged, evidence, "4 updates", "", floor=floor | {"above": 0})
        assert best.lede == said.lede[1:]


def lines_of(name, db):
    """Heights and names of the floors in each panel of a figure."""
    figure, _ = figures.draw(name, db)
    notes = [text.get_text() for text in figure.texts]
    assert any("without a model" in note for note in notes)
    return [
        (
            [
                float(np.asarray(line.get_ydata())[0])
                for line in axes.lines
                if line.get_label() == "_floor"
            ],
            [text.get_text() for text in axes.texts if text.get_text() in KNOWN],
        )
        for axes in figure.axes
        if axes.has_data()
    ]


def test_figures_have_a_named_line_at_each_floor_near_the_losses_of_their_context(finished):
    with store.connect(finished / "store") as db:
        panels = {name: lines_of(name, db) for name in ("parameter_scaling", "learning_curves")}
        assert lines_of("context_scaling", db) == [([2.9], ["3-gram"])]
    for by_context in panels.values():
        assert by_context[0] == ([2.9], ["3-gram"])
        assert by_context[1][1][0] == "3-gram"


def test_a_floor_over_contexts_is_named_at_the_last_point_that_the_panel_shows():
    floor = {"context": [128, 512, 2048], "loss": [2.9, 2.3, 0.1]}
    figure = Figure()
    axes = figure.subplots()
    axes.plot([128, 512, 2048], [3.0, 2.5, 2.2])
    with duckdb.connect() as db:
        db.register("floors", DataFrame({"name": "exact", "dataset": "lines"} | floor))
        db.register("planned", DataFrame({"dataset": ["lines"]}))
        drawn_floors.draw([axes], db, DataFrame(), dataset="lines")
    (name,) = axes.texts
    assert name.get_text() == "exact"
    assert name.get_position() == (512, 2.3)
