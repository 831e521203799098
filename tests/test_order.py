"""The order of text: the same for every shape of a run, and a permutation of blocks if shuffled."""

from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from conftest import STUDY, refused, write_shard, write_tokens
from hypothesis import given
from hypothesis import strategies as st

from lmscaling.config import grid
from lmscaling.data import shards
from lmscaling.data.order import Order, permuted
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.train.data import Updates
from lmscaling.train.module import micro_batches

CELL = next(iter(grid.expand(STUDY).cells.values()))
WINDOW = 4096
"""Blocks of a window of some tests, as of the documented one with blocks of 131,072 tokens."""


@contextmanager
def numbered(lengths):
    """The manifest of shards with these lengths, whose token number i is i."""
    with TemporaryDirectory() as folder:
        for i, n in enumerate(lengths):
            tokens = np.arange(n, dtype=np.uint16) + sum(lengths[:i])
            write_shard(Path(folder, f"train-{i:05d}.bin"), tokens.astype(np.uint16))
        path = Path(folder, "manifest.json")
        shards.write_manifest(path, {"train": len(lengths), "validation": 0})
        yield path


@cache
def epoch_of(tokens, order, epoch):
    """The inputs of an epoch, from a list of all blocks."""
    if order is None:
        return list(range(tokens - 1))
    complete = (tokens - 1) // order.block
    places = []
    window = order.window_tokens // order.block
    for first in range(0, complete, window):
        n = min(window, complete - first)
        places += [first + permuted(i, n, order.seed, epoch, first // window) for i in range(n)]
    inputs = [place * order.block + i for place in places for i in range(order.block)]
    return inputs + list(range(complete * order.block, tokens - 1))


def inputs(slab, context, micro=1):
    """The inputs of a slab, whose targets are the tokens that follow in the text."""
    found = []
    for x_BT, y_BT in micro_batches(slab, context, micro):
        assert x_BT.shape == (micro, context)
        assert y_BT.equal(x_BT + 1)
        found += x_BT.flatten().tolist()
    return found


SMALL = st.integers(1, 4)


@given(st.lists(st.integers(1, 120), min_size=1, max_size=6),
       st.none() | st.builds(Order, st.integers(1, 40) | st.integers(41, 700), st.integers(0, 2)),
       st.tuples(SMALL, SMALL, SMALL, SMALL), st.integers(0, 1000))  # fmt: skip
def test_every_shape_of_a_run_reads_the_documented_tokens_each_once(lengths, order, shape, done):
    micro, context, world, steps = shape
    update_tokens = micro * context * world * steps
    with numbered(lengths) as manifest:
        stream = Stream(manifest, "train", order=order)
        assert stream.updates(update_tokens) == (sum(lengths) - 1) // update_tokens
        if not (updates := stream.updates(update_tokens)):
            return
        cell = replace(CELL, context=context, update_tokens=update_tokens, epochs=2)
        ranks = [Updates(stream, cell, 0, rank, world) for rank in range(world)]
        wide = Updates(stream, replace(cell, context=micro * context), 0, 0, 1)
        single, longer = [], []
        for u in range(2 * updates):
            single += [n for rank in ranks for n in inputs(rank.share(u + 1), context, micro)]
            longer += inputs(wide.share(u + 1), micro * context)
        first, second = (epoch_of(sum(lengths), order, n) for n in (1, 2))
        assert single == longer == (first + second)[: 2 * updates * update_tokens]
        assert sorted(first) == sorted(second) == list(range(sum(lengths) - 1))

        done %= 2 * updates + 1
        again = Updates(Stream(manifest, "train", order=order), cell, done, world - 1, world)
        assert len(again) == 2 * updates
        left = [ranks[-1].share(u) for u in range(done + 1, 2 * updates + 1)]
        assert [x.tolist() for x in again] == [x.tolist() for x in left]


@given(st.integers(1, 3000), st.tuples(st.integers(0, 2**40), st.integers(0, 9)))
def test_a_permutation_has_every_number_once(n, key):
    assert sorted(permuted(i, n, *key) for i in range(n)) == list(range(n))


def test_the_order_is_that_of_every_version():
    assert [permuted(i, 10, 0, 1, 0) for i in range(10)] == [7, 4, 9, 1, 8, 2, 6, 3, 5, 0]
    assert permuted(10**9, 10**12, 5, 2, 7) == 525_782_636_475
    orders = {tuple(epoch_of(600, Order(16, seed), epoch)) for seed in range(3) for epoch in (1, 2)}
    assert len(orders) == 6


@pytest.mark.parametrize("order", [Order(7, 0), None])
def test_what_an_epoch_does_not_fill_is_read_first_in_the_next_one(order):
    with numbered([300, 143]) as manifest:
        stream = Stream(manifest, "train", order=order)
        updates = stream.updates(56)  # seven, and 50 of 442 tokens are left
        assert (updates, stream.tokens - 1 - 56 * updates) == (7, 50)
        slabs = [stream.slab(u, 56)[0] for u in range(1, 8 * updates + 1)]
        epochs = np.reshape(slabs, (8, 392))
    assert epochs[0].tolist() == epoch_of(443, order, 1)[:392]
    assert set(epochs[1][:50]) == set(range(442)) - set(epochs[0])
    for e in range(1, 9):
        times = np.bincount(epochs[:e].ravel(), minlength=442)
        assert e - 1 <= times.min() <= times.max() <= e


def test_windows_keep_their_places_and_are_permuted_each_in_its_own_way():
    order = Order(2, 0, 2 * WINDOW)
    with numbered([3 * WINDOW + 100]) as manifest:
        stream = Stream(manifest, "train", order=order)
        found = inputs(Updates(stream, replace(CELL, update_tokens=12_000), 0, 0, 1).share(1), 16)
        assert found == epoch_of(stream.tokens, order, 1)[:12_000]
        first, second = found[: 2 * WINDOW], found[2 * WINDOW :]
        assert sorted(first) == list(range(2 * WINDOW))
        assert first[: len(second)] != [n - 2 * WINDOW for n in second]
        # A run that has read a token depends on all text of its window.
        assert order.window(1) == (0, 2 * WINDOW)
        assert order.window(2 * WINDOW) == (2 * WINDOW, 4 * WINDOW)


def test_a_text_of_several_sources_is_mixed_whole_however_short_its_blocks_are():
    assert Order(131_072, 0).window_blocks == WINDOW
    with numbered([30_000, 30_000]) as manifest:  # two sources, one after the other
        stream = Stream(manifest, "train", order=Order(2, 0))
        for update in range(1, 30):
            assert 0.4 < (stream.slab(update, 2000)[0] < 30_000).mean() < 0.6


def grown(folder, order):
    """The same text with two shards, which end in the second window, and with three."""
    lengths = [10_000, 7_000, 30_000]
    manifests = (write_tokens(folder / str(n), lengths[:n], []) for n in (2, 3))
    return [Stream(manifest, "train", order=order) for manifest in manifests]


def at(updates, stream):
    """Where a run on a stream is, in updates of 1,024 tokens; a window has twelve."""
    return 1024 * updates, *stream.reached(1024 * updates)


@pytest.mark.parametrize("order", [Order(3, 0, 3 * WINDOW), None])
@pytest.mark.parametrize("updates", [12, 13, 20])  # before the last window, in it, a second epoch
def test_a_run_goes_on_with_the_text_that_it_has_begun(tmp_path, order, updates):
    short, long = grown(tmp_path, order)
    progress = at(updates, short)
    short.go_on(*progress)
    long.go_on(*progress)
    is_kept = updates == 20 or (updates == 13 and order)
    assert long.tokens == (17_000 if is_kept else 47_000)
    for update in range(updates + 1, 30 if is_kept else 13):
        assert short.slab(update, 1024).tolist() == long.slab(update, 1024).tolist()


def test_a_run_does_not_go_on_with_other_tokens(tmp_path):
    short, _ = grown(tmp_path, Order(10, 0, 10 * WINDOW))
    other = Stream(write_tokens(tmp_path / "c", [10_001, 7000], []), "train", order=Order(10, 0))
    with refused(ValueError, short.shards[1].id[:12], other.shards[1].id[:12]):
        other.go_on(*at(3, short))


def test_a_shard_that_changes_between_two_reads_is_checked_again(tmp_path):
    n = 12  # more shards than are open at once
    stream = Stream(write_tokens(tmp_path, [100] * n, [50]), "train")
    first, path = stream.read(0, 100 * n), tmp_path / "train-00000.bin"
    data = path.read_bytes()
    path.write_bytes(data)  # another time, the same tokens
    assert stream.read(0, 100 * n).tolist() == first.tolist()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with refused(UserError, path.name, "SHA-256"):
        stream.read(0, 100)


def test_shuffling_is_a_choice_of_the_dataset_and_the_default_of_protocol_2(values):
    name = values["dataset"]

    def blocks(protocol, **row):
        rows = {name: values["datasets"][name] | row}
        laid_out = grid.expand(values | {"protocol": {"all": protocol}, "datasets": rows})
        (found,) = {(cell.block_tokens, cell.data.folder) for cell in laid_out.cells.values()}
        return found

    _, folder = blocks(1)
    assert blocks(1) == blocks(1, shuffle="none") == blocks(2, shuffle="none") == (None, folder)
    assert blocks(2) == blocks(1, shuffle="blocks") == (131_072, folder)
    assert blocks(1, shuffle="blocks", block_tokens=64) == (64, folder)
    length, other = blocks(1, shuffle="documents")
    assert (length, other == folder) == (131_072, False)
