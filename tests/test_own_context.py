"""Every figure of losses at contexts says how much of the text has how much of its document."""

import gzip
import json
import shutil

import numpy as np
import pytest
from conftest import ROOT
from test_figures import LOSSES, NAMES, finish
from test_store import evaluated, evaluation, log

from lmscaling import figures
from lmscaling.config import study_file
from lmscaling.config.datasets import Tokenizer
from lmscaling.data import document_positions
from lmscaling.data.vocabulary import encoding
from lmscaling.figures.shared import own_context, style
from lmscaling.store import build as store

LINE = (
    "In lines, 88 % of tokens are preceded by at least 16 tokens of their own document, 75 % by 32."
)


@pytest.fixture
def study(tmp_path, values):
    """Two sizes and two learning rates at two contexts."""
    values["axes"] |= {"size": ["s", "m"], "context": [16, 32], "lr_scale": [1.0, 2.0]}
    (tmp_path / "study.json").write_text(json.dumps({"command": "snakemake", "study": values}))
    return tmp_path


@pytest.fixture
def cells(study):
    return list(study_file.read_record(study / "study.json").grid.cells.values())


def counted(run, lengths, context=16, **values):
    """The rows of an evaluation on documents of such lengths."""
    bins = enumerate(document_positions.own_context(lengths))
    return [
        evaluation(run, context, "document", document_positions.bounds(i)[0], tokens=n, **values)
        for i, n in bins
        if n
    ]


def asked(study, query):
    store.build(study)
    with store.connect(study / "store") as db:
        return db.sql(query).fetchall()


def words(study, name="context_scaling"):
    store.build(study)
    style.use()  # where lines break depends on the font
    with store.connect(study / "store") as db:
        return own_context.note(db, db.sql(figures.load(name).QUERY).df())


def evaluate(study, cells, lengths):
    finish(study, cells)
    for cell in cells:
        evaluated(study, cell.run, log(*counted(cell.run, lengths, cell.context)))


def renamed(study, **changes):
    """The same study with another dataset or encoding."""
    record = json.loads((study / "study.json").read_text())
    record["study"] |= changes
    (study / "study.json").write_text(json.dumps(record))
    return list(study_file.read_record(study / "study.json").grid.cells.values())


@pytest.mark.parametrize("lengths", [[100, 1, 7], [64], [4097, 300]])
def test_shares_are_those_of_the_documents(study, cells, lengths):
    evaluate(study, cells, lengths)
    found = asked(study, "SELECT before, share FROM own_context ORDER BY before")
    expected = {0: 1.0} | document_positions.shares(document_positions.own_context(lengths))
    expected[2 * max(expected)] = 0.0
    assert dict(found) == pytest.approx(expected)


def test_the_longest_text_of_a_dataset_counts(study, cells):
    evaluate(study, cells, [10])
    evaluated(study, cells[3].run, log(*counted(cells[3].run, [10, 1000])))
    assert asked(study, "SELECT max(before) FROM own_context") == [(1024,)]


def test_every_figure_of_losses_at_contexts_says_it_and_no_other(study, cells):
    evaluate(study, cells, [128])
    store.build(study)
    with store.connect(study / "store") as db:
        said = {n: own_context.note(db, db.sql(figures.load(n).QUERY).df()) for n in NAMES}
    assert {name for name, words in said.items() if words} == {*LOSSES}
    assert {words for words in said.values() if words} == {LINE}


def test_a_study_without_runs_says_nothing(study):
    assert words(study) == ""


def test_a_figure_that_is_saved_bears_the_line(study, cells):
    evaluate(study, cells, [128])
    store.build(study)
    drawn = figures.save("context_scaling", study / "store", study / "figures").read_text()
    assert LINE in drawn


def test_contexts_longer_than_any_document_have_none(study, cells):
    evaluate(study, cells, [3])
    assert words(study) == "In lines, no token is preceded by 4 tokens of its own document."


def test_contexts_beside_the_bins_have_the_nearest_below(study):
    made = json.loads((study / "study.json").read_text())["study"]["axes"] | {"context": [24, 48]}
    every = {"tokens": 192, "every_tokens": 192}
    evaluate(study, renamed(study, axes=made, update_tokens=192, validation=every), [128])
    assert (
        words(study)
        == "In lines, 75 % of tokens are preceded by at least 32 tokens of their own document."
    )


def test_no_evaluation_is_no_line(study, cells):
    finish(study, cells)
    for cell in cells:
        evaluated(study, cell.run, b"")
    assert words(study) == ""


def test_two_texts_of_one_dataset_count_together(study, cells):
    evaluate(study, cells, [128])
    for cell in cells:
        evaluated(study, cell.run, log(*counted(cell.run, [16] * 8, cell.context)), "lines-bytes-1")
    said = (
        "In lines, 44 % of tokens are preceded by at least 16 tokens of their own document, "
        "38 % by 32."
    )
    assert words(study) == said


def test_two_datasets_are_two_lines(study, cells):
    evaluate(study, cells, [128])
    for cell in cells:
        evaluated(
            study, cell.run, log(*counted(cell.run, [64], cell.context, dataset="b")), "b-bytes-0"
        )
    said = words(study, "loss_by_position").splitlines()
    assert [line.split(",")[0] for line in said] == ["In b", "In lines"]
    assert len(words(study).splitlines()) == 1  # losses of cells are on their own text


C4 = (
    "In c4, 21 % of tokens are preceded by at least 1,024 tokens of their own document, 10 % by "
    "2,048, 0.6 % by 8,192, none by\n16,384 (3,000 documents)."
)


@pytest.fixture
def published(tmp_path):
    """A copy of what is in git."""
    folder = tmp_path / "published"
    folder.mkdir()
    for file in (ROOT / "results" / "published").glob("*.csv"):
        shutil.copy(file, folder)
    return folder


def test_published_losses_are_on_c4(published):
    assert words(published) == C4


def test_c4_in_other_tokens_is_another_text(study):
    rows = {"c4": {"kind": "jsonl", "train": ["a"], "validation": ["v"]}}
    finish(study, renamed(study, datasets=rows, dataset="c4"))
    assert asked(study, "FROM own_context WHERE dataset = 'c4'") == []


def test_an_evaluation_of_c4_replaces_the_sample(study):
    rows = {"c4": {"kind": "jsonl", "train": ["a"], "validation": ["v"]}}
    tokenizers = {"bytes": {"encoding": "gpt2", "vocab_size": 50257}}
    made = renamed(study, datasets=rows, dataset="c4", tokenizers=tokenizers)
    finish(study, made)
    assert asked(study, "SELECT DISTINCT documents FROM own_context WHERE dataset = 'c4'") == [
        (3000,)
    ]
    rows = counted(made[0].run, [128], dataset="c4")
    evaluated(study, made[0].run, log(*rows), "c4-bytes-0")
    assert asked(study, "SELECT DISTINCT documents FROM own_context WHERE dataset = 'c4'") == [
        (None,)
    ]


def test_the_sample_of_c4_agrees_with_documents_that_are_here(published, real_data, monkeypatch):
    """Of 2,200 other documents; errors by resampling documents."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(real_data / "tiktoken_cache"))
    encoder = encoding(Tokenizer(encoding="gpt2", vocab_size=50257))
    lengths = []
    for path in sorted((real_data / "c4").glob("*.json.gz")):
        with gzip.open(path) as file:
            texts = [json.loads(line)["text"] for line in file]
        lengths += [1 + len(encoder.encode_ordinary(text)) for text in texts]
    rng = np.random.default_rng(0)
    draws = [document_positions.own_context(rng.choice(lengths, len(lengths))) for _ in range(200)]
    found = document_positions.shares(document_positions.own_context(lengths))
    sample = dict(asked(published, "SELECT before, share FROM own_context"))
    assert sample.pop(16384) == 0
    assert max(lengths) <= 16384
    for before, share in sample.items():
        error = np.std([document_positions.shares(counts).get(before, 0.0) for counts in draws])
        assert abs(found[before] - share) < 3 * error
