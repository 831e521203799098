"""The bench of tokenizing: every way is measured, and a way with other ids is called different."""

import re

import numpy as np
import pytest
import tokenizing

from lmscaling.data import encoders
from lmscaling.data.encoders import Ids
from lmscaling.errors import UserError


@pytest.fixture
def small(real_data, monkeypatch):
    """Real documents, one round, a source that is not repeated."""
    monkeypatch.setattr(tokenizing, "ROUNDS", 1)
    monkeypatch.setattr(tokenizing, "SOURCE_BYTES", 1)
    return [real_data / "c4" / "c4-validation.sample.200.json.gz"]


def test_every_way_is_timed_by_stage_and_has_the_same_ids(small, ranks):
    said = tokenizing.bench(small, ranks)
    head, *rows = said.splitlines()[:-1]
    assert [name in head for name in tokenizing.STAGES] == [True] * len(tokenizing.STAGES)
    assert [row.split()[0] for row in rows] == ["nanoGPT-like", "simple", "tiktoken", "gigatoken"]
    assert all(row.endswith("identical") for row in rows)
    assert all(re.search(r"\d+ MB", row) for row in rows[1:])
    assert "extrapolated from 200 documents" in said


def test_a_way_with_other_ids_is_called_different(small, ranks, monkeypatch):
    def other(encoder, texts):
        made = buffers(encoder, texts)
        return Ids(np.roll(made.flat, 1), made.lengths)

    buffers = encoders.buffers
    monkeypatch.setattr(encoders, "simple", other)
    monkeypatch.setattr(tokenizing, "_memory", lambda *_: 0)
    rows = tokenizing.bench(small, ranks).splitlines()[1:5]
    assert [row.split()[-1] for row in rows] == ["DIFFERENT"] * 2 + ["identical"] * 2


def test_too_few_documents_are_told(tmp_path, ranks):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UserError, match="1 documents were given; allowed: at least 50"):
        tokenizing.bench([tmp_path / "a.jsonl"], ranks)
