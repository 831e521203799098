"""Positions in documents are those of a plain loop, and lengths alone tell how many there are."""

import numpy as np
import pytest

from lmscaling.data import document_positions

SEPARATOR = 256


def plain(tokens, before=0):
    """Position of each token: one more than the token before it, 0 for a separator."""
    found, position = [], before - 1
    for token in tokens:
        position = 0 if token == SEPARATOR else position + 1
        found.append(position)
    return found


def text(lengths, seed=0):
    """Documents of so many tokens each, the separator before them included."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, SEPARATOR, sum(lengths)).astype(np.uint16)
    tokens[np.cumsum([0, *lengths[:-1]])] = SEPARATOR
    return tokens


@pytest.mark.parametrize("n", [0, 1, 2, 63, 100, 1000])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("before", [0, 1, 777])
def test_positions_are_those_of_a_plain_loop(n, share, before):
    rng = np.random.default_rng(n)
    tokens = np.where(rng.random(n) < share, SEPARATOR, 7).astype(np.uint16)
    assert document_positions.positions(tokens, SEPARATOR, before).tolist() == plain(tokens, before)


def test_bins_are_what_their_bounds_say():
    positions = np.arange(1000)
    for bin in range(11):
        low, high = document_positions.bounds(bin)
        assert (document_positions.bins(positions)[low:high] == bin).all()
        assert high == document_positions.bounds(bin + 1)[0]


@pytest.mark.parametrize("lengths", [[1], [2, 1, 1], [64, 65, 63], [1000, 1, 4096, 4097]])
def test_lengths_alone_tell_how_many_tokens_stand_in_each_bin(lengths):
    positions = document_positions.positions(text(lengths), SEPARATOR)
    assert (
        document_positions.own_context(lengths)
        == np.bincount(document_positions.bins(positions)).tolist()
    )


def test_no_document_has_no_tokens():
    assert document_positions.own_context([]) == []
    assert document_positions.total([]) == []


def test_counts_of_shards_add_up_to_those_of_all_their_text():
    parts = [[5, 1000], [3], [64, 64, 2]]
    counts = document_positions.total(document_positions.own_context(part) for part in parts)
    assert counts == document_positions.own_context([n for part in parts for n in part])


@pytest.mark.parametrize("lengths", [[1], [100, 7, 300, 1]])
def test_a_share_is_that_of_the_tokens_with_so_many_before_them(lengths):
    positions = document_positions.positions(text(lengths), SEPARATOR)
    found = document_positions.shares(document_positions.own_context(lengths))
    assert found == {n: pytest.approx((positions >= n).mean()) for n in found}
    assert list(found) == [2**i for i in range(len(found))]
    assert 2 * max(found, default=0.5) >= max(lengths)  # beyond the last, there is none
