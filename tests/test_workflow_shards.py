"""What the rules ask about texts and tokenizers, without Snakemake: chunks, and what is due."""

import json
import re
import shlex

from test_workflow_module import folder as folder  # fixtures
from test_workflow_module import leave, of
from test_workflow_module import study as study

from lmscaling import workflow
from lmscaling.config import grid

HUB = {
    "kind": "hub", "repository": "o/t", "revision": "1" * 40, "shards": 20, "documents": [9],
    "train": "t.{shard:05d}.gz", "validation": "v.{shard:05d}.gz",
}  # fmt: skip


def of_text(study, **row):
    shards = workflow.Shards(grid.expand(study | {"datasets": {"lines": HUB | row}}))
    (tokens,) = shards.corpora
    return shards, tokens


def make(folder, tokens, *numbers):
    """Complete shards, as far as planning looks: one of validation, and these of training."""
    for shard in ("validation-00000", *(f"train-{i:05d}" for i in numbers)):
        for end in ("bin", "json", "fingerprints"):
            leave(folder, f"results/tiny/tokens/{tokens}/{shard}.{end}")


def test_a_chunk_of_training_reads_validation_and_what_is_fetched(study):
    shards, tokens = of_text(study)
    text, job = of(tokens=tokens), of(chunk=f"{tokens}/train-00016-00019")
    assert tokens == shards.trained
    assert shards.inputs(job).keys() == {"validation", "source"}
    assert shards.inputs(of(chunk=f"{tokens}/validation-00000-00000")).keys() == {"source"}
    assert (shards.downloads(job), shards.minutes(job)) == (4, 165)
    assert json.loads(shards.json(job))["source"]["shards"] == 20
    assert (shards.n_train(text), shards.n_validation(text)) == (20, 1)


def test_shards_per_job_changes_the_chunks_and_no_hash(study):
    plain, trained = grid.expand(study | {"datasets": {"lines": HUB}}), of_text(study)[1]
    for size, n_chunks in ((1, 20), (7, 3), (16, 2), (99, 1)):
        shards, tokens = of_text(study, shards_per_job=size)
        assert len(shards.marks(of(tokens=tokens))) == n_chunks + 1
        assert tokens == trained
        other = grid.expand(study | {"datasets": {"lines": HUB | {"shards_per_job": size}}})
        assert plain.cells == other.cells
    assert len(of_text(study, shards=1024)[0].pattern(in_job=False)) < 2_000


def test_a_chunk_matches_as_long_as_one_of_its_shards_is_missing(study, folder):
    shards, tokens = of_text(study)
    make(folder, tokens, *range(17), 18, 19)
    leave(folder, f"results/tiny/tokens/{tokens}/train-00000-00015.tokenized")
    shards, _ = of_text(study)
    assert shards.pattern(in_job=False) == rf"{re.escape(tokens)}/(?:train-00016-00019)"
    assert shards.outdated == [tokens]
    again = ["manifest.json", "train-00016-00019.tokenized", "train-00016-00019.fetched"]
    assert [path.rpartition("/")[2] for path in shards.due(of(tokens=tokens))] == again
    # The list of marks stays, for Snakemake would make the manifest anew after a change.
    assert len(shards.marks(of(tokens=tokens))) == 2
    make(folder, tokens, 17)  # a job that comes late finds its rule and needs nothing
    shards, _ = of_text(study)
    late = f"{tokens}/train-00000-00015"
    matched = [bool(re.fullmatch(shards.pattern(in_job=job), late)) for job in (False, True)]
    assert (matched, shards.inputs(of(chunk=late))) == ([False, True], {})
    for n, outdated in ((20, []), (19, [tokens]), (21, [tokens])):  # shards of the manifest
        manifest = json.dumps({"train": [{}] * n, "validation": [{}]})
        leave(folder, f"results/tiny/tokens/{tokens}/manifest.json", manifest)
        made, _ = of_text(study)
        assert made.outdated == outdated
        assert len(made.due(of(tokens=tokens))) == len(outdated)


def of_tokenizer(study, row, **dataset):
    tables = {"tokenizers": {"own": row}, "datasets": {"lines": HUB | dataset}}
    shards = workflow.Shards(grid.expand(study | tables | {"tokenizer": "own"}))
    return shards, [shards.vocabularies(trained, in_job=False) for trained in (False, True)]


def test_each_kind_of_tokenizer_has_a_file_and_a_rule_that_makes_it(study, folder):
    shards, patterns = of_tokenizer(study, {"encoding": "gpt2"})
    assert (patterns, shards.vocabulary_words(None)) == ([r"gpt2\.tiktoken", "(?!)"], "")
    assert of_tokenizer(study, {"encoding": "bytes"})[1] == ["(?!)", "(?!)"]
    row = {"file": "my tokenizer.json", "sha256": "0" * 64, "vocab_size": 300}
    shards, patterns = of_tokenizer(study, row)
    assert re.fullmatch(r"own\\-\w{8}\\\.json", patterns[0])
    assert patterns[1:] == ["(?!)"]
    words = shlex.split(shards.vocabulary_words(None))
    assert (words[:3], json.loads(words[3])) == (["--file", "my tokenizer.json", "--row"], row)
    moved = of_tokenizer(study, row | {"file": "elsewhere.json"})[0]
    assert (moved.vocabulary, moved.trained) == (shards.vocabulary, shards.trained)
    assert of_tokenizer(study, row | {"sha256": "1" * 64})[0].trained != shards.trained


def test_a_trained_tokenizer_waits_for_its_text_and_is_trained_once(study, folder):
    row = {"train_bpe": {"vocab_size": 300}}
    shards, patterns = of_tokenizer(study, row, validation_shards=17)
    assert patterns == ["(?!)", re.escape(shards.vocabulary)]
    sources = f"results/tiny/sources/{shards.trained}"
    names = ["train-00000-00015", "validation-00000-00015", "validation-00016-00016"]
    assert shards.sample(None) == [f"{sources}/{name}.fetched" for name in names]
    words = [shards.sample_words(None, given) for given in (["x"], [])]
    assert words == [f"--sources {sources}", ""]
    assert json.loads(shards.sample_json(None))["source"]["shards"] == 1
    job = of(chunk=f"{shards.trained}/train-00000-00015")
    assert shards.inputs(job)["vocabulary"] == f"results/tiny/vocabulary/{shards.vocabulary}"
    leave(folder, f"results/tiny/vocabulary/{shards.vocabulary}")
    again, patterns = of_tokenizer(study, row, validation_shards=17)
    assert patterns == ["(?!)", "(?!)"]
    assert again.vocabularies(True, in_job=True) == re.escape(shards.vocabulary)
