"""Documents with tables of their own, and what a reader of a window can know of them."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch

from lmscaling.data.kinds.tables import END, FIRST, Tables
from lmscaling.model.gpt import GPT

A, B = FIRST, FIRST + 1


def row(**values):
    return Tables(kind="tables", symbols=2, mean_length=10.0, **values)


def tokens_of(row):
    texts = row.read("validation", 0).texts
    return np.concatenate([[END, *text.encode()] for text in texts] + [[END]])


def test_the_known_losses_are_those_of_counting_by_hand():
    window = np.array([END, A, A, A, END, A, B, END])  # the last is a target only
    share = [
        0.5,
        (0 + 0.5) / 1, (1 + 0.5) / 2,  # A follows A, unknown and once seen
        "end", 0.5,
        (0 + 0.5) / 1,  # B follows A in a new document
        "end",
    ]  # fmt: skip
    known = row(concentration=1.0).known(7, window)

    def loss(shares):
        told = [0.1 if one == "end" else one * (1 if i in (0, 4) else 0.9)
                for i, one in enumerate(shares)]  # fmt: skip
        return -sum(map(log, told)) / len(told)

    assert known["exact"] == pytest.approx(loss(share))
    assert known["cannot forget"] == pytest.approx(loss([*share[:5], (0 + 0.5) / 3, "end"]))
    assert known["does not count"] == pytest.approx(loss([0.5, 0.5, 0.5, "end", 0.5, 0.5, "end"]))


def test_a_reader_that_cannot_forget_is_best_near_the_length_of_a_document():
    made = Tables(kind="tables", mean_length=200.0, validation_documents=600)
    tokens = tokens_of(made)
    assert len(tokens) / 601 == pytest.approx(201, rel=0.15)
    known = [made.known(context, tokens) for context in (128, 512, 2048)]
    exact, keeps, blind = ([one[name] for one in known] for name in known[0])
    assert exact == sorted(exact, reverse=True)
    assert keeps[1] < min(keeps[0], keeps[2])
    assert blind == pytest.approx([log(63) + 1 / 200 * log(200 / 63)] * 3, abs=0.02)
    assert all(one["exact"] < one["cannot forget"] for one in known)


def test_texts_follow_from_the_row_and_the_split_and_tokens_of_another_kind_have_no_floor():
    made = row(documents=3, validation_documents=600)
    assert [*made.read("train", 0).texts] == [*made.read("train", 0).texts]
    assert len([*made.read("train", 0).texts]) == 3
    assert len([*made.read("validation", 0).texts]) == 600
    assert made.known(4, np.array([END, A, B, A, B + 1])) == {}
    assert made.known(8, np.array([END, A, B])) == {}


def test_a_marked_window_is_one_that_begins_with_the_end_of_text(cell):
    window = np.array([B, A, A, B, END, A, B])
    known = row(marked_windows=True).known(6, window)
    assert known == row().known(6, np.append(END, window[1:]))
    assert known["exact"] != row().known(6, window)["exact"]
    source = {**cell.data.source, "marked_windows": True}
    gpt, plain = GPT(replace(cell, data=replace(cell.data, source=source))), GPT(cell)
    x_BT = torch.tensor(window[None])
    marked_BT = x_BT.index_fill(1, torch.tensor([0]), END)
    assert torch.equal(gpt(x_BT), plain(marked_BT))
    assert not torch.equal(gpt(x_BT), plain(x_BT))
