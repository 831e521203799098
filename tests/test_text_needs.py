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
