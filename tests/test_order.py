"""Shuffled text: a permutation of blocks from the seed, the same for every shape of a run."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from conftest import write_shard, write_tokens

from lmscaling.config import grid
from lmscaling.data import order as module
from lmscaling.data import shards
from lmscaling.data.order import Order, permuted
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.train.checkpoint import Expected, Progress
from lmscaling.train.module import Updates, micro_batches

LENGTHS = [100, 7, 300, 41, 2, 160]
TOKENS = sum(LENGTHS)


@pytest.fixture
def manifest(tmp_path):
    """Shards whose token number i is i."""
    start = 0
    for i, n in enumerate(LENGTHS):
        write_shard(tmp_path / f"train-{i:05d}.bin", np.arange(start, start + n, dtype=np.uint16))
        start += n
    shards.write_manifest(tmp_path / "manifest.json", {"train": len(LENGTHS), "validation": 0})
    return tmp_path / "manifest.json"


def expected_inputs(order, window, epoch):
    """The inputs of an epoch, from a list of all blocks."""
    complete = (TOKENS - 1) // order.block
    places = []
    for first in range(0, complete, window):
        n = min(window, complete - first)
        places += [first + permuted(i, n, order.seed, epoch, first // window) for i in range(n)]
    inputs = [place * order.block + i for place in places for i in range(order.block)]
    return inputs + list(range(complete * order.block, TOKENS - 1))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 100, 1023, 4096])
def test_a_permutation_has_every_number_once(n):
    for key in [(0,), (0, 1, 0), (2**40, 3, 9)]:
        assert sorted(permuted(i, n, *key) for i in range(n)) == list(range(n))


def test_all_orders_of_a_few_blocks_come_about_equally_often():
    orders = Counter(tuple(permuted(i, 3, seed) for i in range(3)) for seed in range(6000))
    assert len(orders) == 6
    assert sum((n - 1000) ** 2 / 1000 for n in orders.values()) < 20.5  # chi2(5), p = 0.001
    first = Counter(permuted(7, 31, seed) for seed in range(31_000))
    assert sum((first[i] - 1000) ** 2 / 1000 for i in range(31)) < 59.7  # chi2(30), p = 0.001


def test_the_order_is_that_of_every_version():
    assert [permuted(i, 10, 0, 1, 0) for i in range(10)] == [7, 4, 9, 1, 8, 2, 6, 3, 5, 0]
    assert permuted(10**9, 10**12, 5, 2, 7) == 525_782_636_475


def test_two_thousand_shapes_of_a_run_read_exactly_the_expected_tokens(manifest, cell, monkeypatch):
    rng = np.random.default_rng(0)
    streams, epochs = {}, {}
    for _ in range(2000):
        window = int(rng.choice([2, 5, 4096]))
        block = int(rng.choice([1, 3, 16, 64, 200, 1000]))
        order = Order(block, int(rng.integers(2)))
        micro, context, world, steps = (int(n) for n in rng.choice([1, 2, 3, 4], 4))
        update_tokens = micro * context * world * steps
        monkeypatch.setattr(module, "WINDOW", window)
        stream = streams.setdefault((window, order), Stream(manifest, "train", order=order))
        updates = stream.updates(update_tokens)
        assert updates == (TOKENS - 1) // update_tokens
        done = int(rng.integers(2 * updates))  # a run that continues after these
        epoch = 1 + done // updates
        key = window, order, epoch
        inputs = epochs.setdefault(key, expected_inputs(order, window, epoch))
        shape = replace(cell, context=context, update_tokens=update_tokens, epochs=2)
        found = []
        for rank in range(world):
            slab = Updates(stream, shape, done, rank, world)[0]
            for x_BT, y_BT in micro_batches(slab, context, micro):
                assert x_BT.shape == (micro, context)
                assert y_BT.equal(x_BT + 1)  # the token that follows in the text
                found += x_BT.flatten().tolist()
        start = done % updates * update_tokens
        assert found == inputs[start : start + update_tokens]


@pytest.mark.parametrize("block", [1, 7, 64, 608, 609, 610, 10_000])
def test_an_epoch_reads_every_token_once(manifest, block):
    stream = Stream(manifest, "train", order=Order(block, 0))
    read = np.concatenate([stream.slab(u, 1)[0] for u in range(1, TOKENS)])
    assert sorted(read) == list(range(TOKENS - 1))


def test_seeds_and_epochs_have_orders_of_their_own(manifest):
    def epoch(seed, number):
        stream = Stream(manifest, "train", order=Order(16, seed))
        n = stream.updates(16)
        return [int(stream.slab(number * n + u, 16)[0, 0]) for u in range(1, n + 1)]

    orders = [tuple(epoch(seed, number)) for seed in range(3) for number in range(3)]
    assert len(set(orders)) == 9
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


def test_neighbouring_text_makes_no_update():
    """Of the blocks that one update reads, few are neighbours."""
    order, update = Order(2**17, 0), 4
    blocks = [order.source(place, 10_000, 1) for place in range(4096)]
    groups = np.array(blocks).reshape(-1, update)
    pairs = np.abs(np.diff(groups, axis=1))
    assert np.mean(pairs == 1) < 0.005
    assert np.median(pairs) > 500


def grown(folder, order):
    """The same text with two shards and with three."""
    manifests = []
    for name, lengths in [("a", [100, 75]), ("b", [100, 75, 300])]:
        (folder / name).mkdir()
        manifests.append(write_tokens(folder / name, lengths, []))
    return [Stream(manifest, "train", order=order) for manifest in manifests]


def at(updates, stream):
    """Progress of a run on a stream, in updates of 10 tokens."""
    shard, tokens_id = stream.reached(10 * updates)
    return Progress(
        run="r", update=updates, train_seconds=1.0, shard=shard, tokens_id=tokens_id,
        update_seconds=0.1,
    )  # fmt: skip


def test_more_text_changes_no_complete_window(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 4)
    short, long = grown(tmp_path, Order(10, 0))
    for update in range(1, 17):  # windows of 40 tokens; the fifth is not complete
        assert short.slab(update, 10).tolist() == long.slab(update, 10).tolist()
        assert short.reached(10 * update) == long.reached(10 * update)


@pytest.mark.parametrize("order", [Order(10, 0), None])
@pytest.mark.parametrize("updates", [16, 17, 20])  # before the last window, in it, a second epoch
def test_a_run_goes_on_with_the_text_that_it_has_begun(tmp_path, monkeypatch, order, updates):
    monkeypatch.setattr(module, "WINDOW", 4)
    short, long = grown(tmp_path, order)
    progress = at(updates, short)
    Expected("r", 10, short.go_on).check(progress)
    Expected("r", 10, long.go_on).check(progress)
    is_kept = updates == 20 or (updates == 17 and order)
    assert long.tokens == (175 if is_kept else 475)
    for update in range(updates + 1, 30 if is_kept else 17):
        assert short.slab(update, 10).tolist() == long.slab(update, 10).tolist()


def test_a_run_does_not_go_on_with_other_tokens(tmp_path):
    short, _ = grown(tmp_path, Order(10, 0))
    (tmp_path / "c").mkdir()
    other = Stream(write_tokens(tmp_path / "c", [101, 75], []), "train", order=Order(10, 0))
    with pytest.raises(ValueError, match=r"up to shard 1, and the tokens here are .* shard 1"):
        Expected("r", 10, other.go_on).check(at(3, short))


def test_a_shard_that_changes_between_two_reads_is_checked_again(tmp_path, monkeypatch):
    monkeypatch.setattr("lmscaling.data.stream.OPEN", 1)
    stream = Stream(write_tokens(tmp_path, [100, 100], [50]), "train")
    first = stream.read(0, 100)
    stream.read(100, 200)
    path = tmp_path / "train-00000.bin"
    data = path.read_bytes()
    path.write_bytes(data)  # another time, the same tokens
    assert stream.read(0, 100).tolist() == first.tolist()
    stream.read(100, 200)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UserError, match="has SHA-256"):
        stream.read(0, 100)


def test_shuffling_is_a_choice_of_the_dataset_and_the_default_of_protocol_2(values):
    name = values["dataset"]

    def blocks(protocol, **row):
        rows = {name: values["datasets"][name] | row}
        study = values | {"protocol": {"all": protocol}, "datasets": rows}
        cells = grid.expand(study).cells.values()
        return {(cell.block_tokens, cell.data.folder) for cell in cells}

    [(none, folder)] = blocks(1)
    assert none is None
    assert blocks(1, shuffle="none") == blocks(2, shuffle="none") == {(None, folder)}
    assert blocks(2) == blocks(1, shuffle="blocks") == {(131_072, folder)}
    assert blocks(1, shuffle="blocks", block_tokens=64) == {(64, folder)}
    [(length, other)] = blocks(1, shuffle="documents")
    assert length == 131_072
    assert other != folder
