"""The text that a study needs: how many shards are read, missing, and to be fetched."""

import json

import pytest

from lmscaling.config import grid
from lmscaling.plan import study_plan
from lmscaling.plan.estimate import Shape


@pytest.fixture
def plan(values, tmp_path):
    """The plan of a study of 256 tokens a run, of text in four shards of so many tokens each."""
    values["datasets"]["lines"]["train"] = [f"{i}.jsonl" for i in range(4)]
    laid_out = grid.expand(values)

    def planned(shard_tokens):
        folder = tmp_path / "tokens" / laid_out.tokens
        folder.mkdir(parents=True, exist_ok=True)
        manifest = {"train": [{"tokens": shard_tokens}] * 4, "validation": []}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        shapes = dict.fromkeys(laid_out.cells, Shape(100, 600.0))
        return study_plan.make(laid_out, shapes, "NVIDIA H100", tmp_path)

    return planned


@pytest.mark.parametrize(
    ("shard_tokens", "shards"), [(10_000, 1), (256, 1), (255, 2), (128, 2), (100, 3), (64, 4)]
)
def test_as_many_shards_suffice_as_the_longest_run_reads(plan, shard_tokens, shards):
    assert plan(shard_tokens).text.suffice == {"s": shards}


@pytest.mark.parametrize("shard_tokens", [63, 40, 10])
def test_a_run_longer_than_its_text_reads_all_shards_and_not_more(plan, shard_tokens):
    made = plan(shard_tokens)
    assert all(f.epochs > 1 for f in made.forecasts)
    assert made.text.suffice == {"s": 4}


HUB = {
    "kind": "hub", "repository": "a/b", "revision": "0" * 40, "train": "t-{shard:02d}.json",
    "validation": "v-{shard:02d}.json", "shards": 10, "expected_tokens": 5000.0,
    "expected_bytes": 9000.0,
}  # fmt: skip


@pytest.mark.parametrize(("tokenized", "fetched_bytes"), [(0, 9000), (4, 5400), (10, None)])
def test_what_is_fetched_is_what_is_not_yet_tokenized(values, tmp_path, tokenized, fetched_bytes):
    values["datasets"]["lines"] = HUB
    laid_out = grid.expand(values)
    folder = tmp_path / "tokens" / laid_out.tokens
    folder.mkdir(parents=True)
    for i in range(tokenized):
        for end in ("bin", "json"):
            (folder / f"train-{i:05d}.{end}").touch()
    shapes = dict.fromkeys(laid_out.cells, Shape(100, 600.0))
    text = study_plan.make(laid_out, shapes, "NVIDIA H100", tmp_path).text
    assert (text.shards, text.missing, text.fetch_files) == (10, 10 - tokenized, 10 - tokenized)
    assert text.fetch_bytes == fetched_bytes
    assert text.shard_tokens == 500
    assert text.write_bytes == ((10 - tokenized) * 500 * 2 or None)
    assert text.suffice == {"s": 1}


def test_a_hub_row_without_sizes_plans_no_bytes(values, tmp_path):
    plain = {k: v for k, v in HUB.items() if not k.startswith("expected")}
    values["datasets"]["lines"] = plain
    laid_out = grid.expand(values)
    shapes = dict.fromkeys(laid_out.cells, Shape(100, 600.0))
    text = study_plan.make(laid_out, shapes, "NVIDIA H100", tmp_path).text
    assert (text.fetch_files, text.fetch_bytes, text.write_bytes) == (10, None, None)
    assert (text.shard_tokens, text.suffice) == (None, {})


def test_tokens_of_a_large_vocabulary_have_four_bytes(values, tmp_path):
    values["datasets"]["lines"] = HUB
    values["tokenizers"]["bytes"] = {"encoding": "o200k_base"}
    laid_out = grid.expand(values)
    shapes = dict.fromkeys(laid_out.cells, Shape(100, 600.0))
    text = study_plan.make(laid_out, shapes, "NVIDIA H100", tmp_path).text
    assert text.write_bytes == 10 * 500 * 4


def test_the_longest_run_of_a_size_counts(values, tmp_path):
    """A run of update_tokens 128 reads twice as much as one of 64."""
    values["axes"] |= {"size": ["s", "m"], "context": [16, 32]}
    values["exceptions"] = [{"size": "m", "context": 16, "update_tokens": 128, "reason": "x"}]
    values["datasets"]["lines"] = HUB | {"expected_tokens": 2560.0}
    laid_out = grid.expand(values)
    shapes = dict.fromkeys(laid_out.cells, Shape(100, 600.0))
    text = study_plan.make(laid_out, shapes, "NVIDIA H100", tmp_path).text
    assert text.suffice == {"s": 1, "m": 2}
