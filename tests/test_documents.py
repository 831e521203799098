"""Positions in documents are those of a plain loop, and lengths alone tell how many there are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmscaling.data import document_positions

SEPARATOR = 256
TOKENS = st.lists(st.sampled_from([SEPARATOR, 7, 255, 257]), max_size=200)
LENGTHS = st.lists(st.integers(1, 70) | st.integers(1, 5000), max_size=6)


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


@given(TOKENS, st.integers(0, 1000))
def test_positions_are_those_of_a_plain_loop(tokens, before):
    found = document_positions.positions(np.array(tokens, dtype=np.uint16), SEPARATOR, before)
    assert found.tolist() == plain(tokens, before)


def test_bins_are_what_their_bounds_say():
    assert [document_positions.bounds(bin) for bin in range(4)] == [(0, 1), (1, 2), (2, 4), (4, 8)]
    positions = np.arange(1000)
    for bin in range(11):
        low, high = document_positions.bounds(bin)
        assert (document_positions.bins(positions)[low:high] == bin).all()
        assert high == document_positions.bounds(bin + 1)[0]


@given(st.lists(LENGTHS.filter(bool), max_size=3))
def test_lengths_alone_tell_how_many_tokens_of_all_shards_stand_in_each_bin(shards):
    counts = document_positions.total(map(document_positions.own_context, shards))
    lengths = [n for shard in shards for n in shard]
    assert counts == document_positions.own_context(lengths)
    if not lengths:
        assert counts == []
        return
    positions = np.concatenate([np.arange(n) for n in lengths])
    assert counts == np.bincount(document_positions.bins(positions)).tolist()
    found = document_positions.shares(counts)
    assert found == {n: pytest.approx((positions >= n).mean()) for n in found}
    assert list(found) == [2**i for i in range(len(found))]
    assert 2 * max(found, default=0.5) >= max(lengths)  # beyond the last, there is none
