"""Every figure of losses at contexts says how much of the text has how much of its document."""

import copy
import json
import re

import numpy as np
import pytest
from conftest import STUDY, sentence
from pandas import DataFrame
from test_figures import LOSSES, NAMES, finish
from test_store import ask, evaluated, evaluation, log

from lmscaling import figures
from lmscaling.config import study_file
from lmscaling.data import document_positions, documents
from lmscaling.data.rows import Tokenizer
from lmscaling.data.vocabulary import encoding
from lmscaling.figures.shared import own_context, style
from lmscaling.store import build as store

TEXTS = {
    "few": [[100, 1, 7]], "one": [[64]], "long": [[4097, 300]], "short": [[3]],
    "twice": [[128], [16] * 8],
}  # fmt: skip
"""Lengths of the documents of each text of a dataset."""


def evaluate(study, cell, lengths, dataset="lines", number=0):
    """Record the evaluation of a cell on a text whose documents have such lengths."""
    counts = enumerate(document_positions.own_context(lengths))
    starts = {document_positions.bounds(i)[0]: n for i, n in counts if n}
    rows = [
        evaluation(cell.run, cell.context, "document", start, tokens=n, dataset=dataset)
        for start, n in starts.items()
    ]
    evaluated(study, cell.run, log(*rows), f"{dataset}-bytes-{number}")


def write(study, **changes):
    """A study with two sizes and two learning rates at two contexts; returns its cells."""
    values = copy.deepcopy(STUDY) | changes
    values["axes"] |= {"size": ["s", "m"], "context": [16, 32], "lr_scale": [1.0, 2.0]}
    (study / "study.json").write_text(json.dumps({"command": "snakemake", "study": values}))
    return list(study_file.read_record(study / "study.json").grid.cells.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study with evaluations on its own text, ``lines``, and on other ones."""
    study = tmp_path_factory.mktemp("own")
    cells = write(study)
    finish(study, cells)
    for cell in cells:
        evaluate(study, cell, [128])
    for name, texts in TEXTS.items():
        for i, lengths in enumerate(texts):
            evaluate(study, cells[0], lengths, name, i)
    evaluate(study, cells[3], [10], "long")  # a shorter part of the same text
    store.build(study)
    return study


@pytest.fixture(scope="module")
def db(folder):
    style.use()  # where lines break depends on the font
    with store.connect(folder / "store") as db:
        yield db


def note(db, *contexts, **values):
    """What is said below losses at these contexts."""
    rows = DataFrame({"context": contexts, "loss": [1.0] * len(contexts)} | values)
    if said := own_context.note(db, rows):
        sentence("figure", said)
    return said


def datasets(said):
    return re.findall(r"^In (\w+),", said, re.MULTILINE)


def numbers(said):
    return re.findall(r"[\d.,]*\d %|none|[\d,]*\d", said)


@pytest.mark.parametrize("name", TEXTS)
def test_shares_are_those_of_the_documents_of_all_texts_of_a_dataset(db, name):
    query = "SELECT before, share FROM own_context WHERE dataset = ?"
    lengths = [n for text in TEXTS[name] for n in text]
    expected = {0: 1.0} | document_positions.shares(document_positions.own_context(lengths))
    expected[2 * max(expected)] = 0.0
    assert dict(db.execute(query, [name]).fetchall()) == pytest.approx(expected)


def test_every_figure_of_losses_at_contexts_says_it_and_no_other(folder, db):
    rows = {name: db.sql(figures.load(name).QUERY).df() for name in NAMES}
    said = {name: own_context.note(db, rows[name]) for name in NAMES}
    by_text = {name: words for name, words in said.items() if words}
    empty = {"overview", "loss_over_compute"}  # two attentions, and no law
    assert all(rows[name].empty for name in empty)
    assert {*by_text} == {*LOSSES} - empty
    own = by_text["context_scaling"]
    assert numbers(own) == ["88 %", "16", "75 %", "32"]
    # Losses of cells are on their own text, those of evaluations on each of a final run.
    assert datasets(own) == ["lines"]
    assert datasets(by_text["loss_by_position"]) == ["lines", "long"]
    assert own in figures.save("context_scaling", folder / "store", folder / "figures").read_text()


@pytest.mark.parametrize(("contexts", "dataset", "expected"), [
    ((16, 32), "short", ["4"]),  # the shortest length that no token reaches
    ((24, 48), "lines", ["75 %", "32"]),  # the nearest below
    ((16, 32), "twice", ["44 %", "16", "38 %", "32"]),
    ((16, 32), "another", []),
])  # fmt: skip
def test_shares_are_said_at_contexts_of_the_figure(db, contexts, dataset, expected):
    assert numbers(note(db, *contexts, dataset=dataset)) == expected
    # What is no loss by context has no note.
    assert note(db) == note(db, 16, setup="x") == ""
    assert own_context.note(db, DataFrame({"context": [16], "seconds": [1.0]})) == ""


@pytest.fixture(scope="module")
def published(published_study):
    with store.connect(published_study / "store") as db:
        yield db


def test_published_losses_are_on_c4(published):
    style.use()
    said = own_context.note(published, published.sql(figures.load("context_scaling").QUERY).df())
    sentence("figure", said)
    expected = "21 %; 1,024; 10 %; 2,048; 0.6 %; 8,192; none; 16,384; 3,000"
    assert "; ".join(numbers(said.replace("c4", "C"))) == expected


def test_the_sample_of_c4_counts_without_an_evaluation_in_its_tokens_alone(tmp_path):
    rows = {"c4": {"kind": "jsonl", "train": ["a"], "validation": ["v"]}}
    query = "SELECT DISTINCT documents FROM own_context WHERE dataset = 'c4'"
    finish(tmp_path, write(tmp_path, datasets=rows, dataset="c4"))
    assert ask(tmp_path, query) == []
    gpt2 = {"bytes": {"encoding": "gpt2", "vocab_size": 50257}}
    cells = write(tmp_path, datasets=rows, dataset="c4", tokenizers=gpt2)
    finish(tmp_path, cells)
    assert ask(tmp_path, query) == [(3000,)]
    evaluate(tmp_path, cells[0], [128], "c4")
    assert ask(tmp_path, query) == [(None,)]


def test_the_sample_of_c4_agrees_with_documents_that_are_here(published, real_data, monkeypatch):
    """Of 2,200 other documents; errors by resampling documents."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(real_data / "tiktoken_cache"))
    encoder = encoding(Tokenizer(encoding="gpt2", vocab_size=50257))
    paths = sorted((real_data / "c4").glob("*.json.gz"))
    texts = [text for path in paths for text in documents.of_records(str(path), "text").texts]
    lengths = [1 + len(encoder.encode_ordinary(text)) for text in texts]

    def shares(lengths):
        return document_positions.shares(document_positions.own_context(lengths))

    rng = np.random.default_rng(0)
    draws = [shares(rng.choice(lengths, len(lengths))) for _ in range(200)]
    sample = dict(published.sql("SELECT before, share FROM own_context").fetchall())
    assert sample.pop(16384) == 0
    assert max(lengths) <= 16384
    for before, share in sample.items():
        error = np.std([draw.get(before, 0.0) for draw in draws])
        assert abs(shares(lengths)[before] - share) < 3 * error
