"""Corpora as they come: files by ranges and patterns, formats, bad documents, near-duplicates."""

import errno
import gzip
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, refused, sentence
from test_data import corpus, lines

from lmscaling.config import file_names, grid
from lmscaling.config.types import Split
from lmscaling.data import chunk, ngrams, shards, sources
from lmscaling.data.kinds.hub import Hub
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError
from lmscaling.plan import documents, study_plan, text_needs
from lmscaling.plan.estimate import Shape
from lmscaling.report import provenance


def records(path, texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)).encode()
    if path.suffix == ".parquet":
        table = pa.table({"id": range(len(texts)), "text": texts})
        pq.write_table(table, path, row_group_size=2)
    elif path.suffix in (".zst", ".zstd"):
        path.write_bytes(pa.Codec("zstd").compress(data, asbytes=True))
    else:
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_every_format_has_the_same_documents_and_says_its_hash(tmp_path):
    texts = ["one", "two\nlines", "", "größer 🙂", "\0" * 3]
    for end in ["json", "jsonl", "ndjson", "json.gz", "jsonl.zst", "jsonl.zstd", "parquet"]:
        path = records(tmp_path / f"a.{end}", texts)
        documents = sources.read_records(path, "text")
        assert [*documents.texts] == texts
        described = documents.describe_file()
        assert described["bytes"] == path.stat().st_size
        assert described["sha256"] == sources.sha256_of(path)


def rows(path, **values):
    return corpus({"kind": "jsonl", "train": [str(path)], "holdout": 1e-9} | values)


@pytest.mark.parametrize(("name", "what"), [
    ("a.jsonl", "JSON"), ("a.json.gz", "gzip"), ("a.jsonl.zst", "zstd"), ("a.parquet", "Parquet"),
])  # fmt: skip
def test_a_truncated_file_is_an_error_also_where_bad_documents_are_left_out(tmp_path, name, what):
    path = records(tmp_path / name, [f"{'x' * 50} {i}" for i in range(100)])
    out, whole = tmp_path / "train-00000.bin", path.read_bytes()
    for n, how in ((len(whole) - 3, "skip"), (len(whole) // 2, "skip"), (len(whole) - 3, "fail")):
        path.write_bytes(whole[:n])
        # libraries have words of their own
        with pytest.raises(UserError, match=f"{name}.*not valid {what}"):
            tokenize(rows(path, on_bad=how, bad_share=0.9), "train", 0, out)
    assert not out.exists()


@pytest.mark.parametrize(("name", "column", "key", "values"), [
    ("a.csv", ["x"], "text", [".parquet", ".jsonl"]),
    ("a.parquet", ["x"], "txt", ["'txt'", "'text'"]),
    ("a.parquet", [1], "text", ["'text'", "int64"]),
])  # fmt: skip
def test_a_file_without_such_text_is_refused(tmp_path, name, column, key, values):
    pq.write_table(pa.table({"text": pa.array(column)}), tmp_path / name)
    with refused(UserError, name, *values):
        list(sources.read_records(tmp_path / name, key).texts)


@pytest.mark.parametrize(("bad", "said"), [(None, "null"), (b"\xff", "UTF-8")])
def test_a_row_of_parquet_without_text_is_an_error_or_left_out_and_counted(tmp_path, bad, said):
    path, out = tmp_path / "a.parquet", tmp_path / "train-00000.bin"
    data = pa.array([b"x"] * 300 + [bad, "ö".encode()], pa.binary())  # more than a batch
    text = pa.Array.from_buffers(pa.string(), len(data), data.buffers())
    pq.write_table(pa.table({"text": text}), path)
    with refused(UserError, path.name, "row 301", said, "on_bad"):
        tokenize(rows(path), "train", 0, out)
    made = tokenize(rows(path, on_bad="skip", bad_share=0.01), "train", 0, out)
    assert (made["documents"], made["bytes"]) == (301, 302)
    assert [*made["bad_documents"].values()] == [1]


BAD = {
    "no JSON": (b"{]", "not valid JSON"),
    "not UTF-8": (b'{"text": "\xff"}', "not valid JSON"),
    "2,000 brackets": (b"[" * 2000 + b"]" * 2000, "no text|nested"),
    "200,000 brackets": (b"[" * 200_000 + b"]" * 200_000, "nested"),
    "null": (b'{"text": null}', "null .* 'text'"),
    "a number": (b'{"text": 3}', "int .* 'text'"),
    "no key": (b'{"txt": "x"}', "'text'; .* 'txt'"),
    "a list": (b'["text"]', "'text'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_document_is_an_error_or_left_out_and_counted(tmp_path, name):
    line, said = BAD[name]
    good = b"".join(b'{"text": "%d"}\n' % i for i in range(1500))
    path, out = tmp_path / "a.jsonl", tmp_path / "train-00000.bin"
    path.write_bytes(good + line + b"\n" + good)
    # the versions of the reader differ in what they call nested too deeply
    with pytest.raises(UserError, match=rf"line 1501: .*({said}).* on_bad"):
        tokenize(rows(path), "train", 0, out)
    assert not out.exists()
    made = tokenize(rows(path, on_bad="skip"), "train", 0, out)
    assert (made["documents"], sum(made["bad_documents"].values())) == (3000, 1)


def test_more_bad_documents_than_allowed_are_an_error_with_their_reasons(tmp_path):
    path, out = tmp_path / "a.jsonl", tmp_path / "train-00000.bin"
    path.write_text('{"text": "x"}\n' * 97 + "no\n" * 2 + '{"text": 1}\n')
    with refused(UserError, "a.jsonl", "3 of 100", "(2 ", "1 int", "0.001"):
        tokenize(rows(path, on_bad="skip"), "train", 0, out)
    made = tokenize(rows(path, on_bad="skip", bad_share=0.03), "train", 0, out)
    assert sorted(made["bad_documents"].values()) == [1, 2]
    assert rows(path).source.identity() == rows(path, on_bad="skip").source.identity()


def test_documents_that_are_left_out_are_told_with_the_manifest_and_the_plan(tmp_path, values):
    laid_out = grid.expand(values)
    folder = tmp_path / "tokens" / laid_out.tokens
    folder.mkdir(parents=True)
    part = {"documents": 500, "documents_dropped": 4, "bad_documents": {"not valid JSON": 3}}
    for i in range(2):
        (folder / f"train-{i:05d}.json").write_text(json.dumps(part | {"near_duplicates": i}))
    (said,) = documents.sentences(documents.count(folder, {"train": 2, "validation": 0}))
    assert re.findall(r"[\d,]*\d", said) == ["1,000", "8", "1", "6"]
    sentence("documents", said)
    shapes = dict.fromkeys(laid_out.cells, Shape(100, 600.0))
    for earlier in (True, False):  # a plan from before the text was tokenized, and a later one
        results = tmp_path / "nothing" if earlier else tmp_path
        made = study_plan.make(laid_out, shapes, "NVIDIA H100", results)
        assert made.text.left_out == ([] if earlier else [said])
        (tmp_path / "plan.json").write_text(json.dumps(made.to_json()))
        [table] = provenance.plan_tables(tmp_path / "plan.json")
        assert table.note.count(said) == 1


def test_ranges_count_with_the_digits_of_their_first_number_and_patterns_are_sorted(tmp_path):
    for name, names in {
        "a-{08..11}.gz": ["a-08.gz", "a-09.gz", "a-10.gz", "a-11.gz"],
        "{1..2}/{0..1}": ["1/0", "1/1", "2/0", "2/1"],
        "plain": ["plain"],
    }.items():
        assert file_names.numbered(name) == names
    for name in ("{3..1}", "{0..999}/{0..9999}"):
        with refused(ValueError, name, "1,000,000"):
            file_names.numbered(name)
    names = [f"{tmp_path}/{name}" for name in ("a[1].jsonl", "b/10.jsonl", "b/2.jsonl", "c.jsonl")]
    for name in names:
        records(Path(name), ["x"])
    assert file_names.local([f"{tmp_path}/**/*.jsonl"]) == names
    assert file_names.local(names[:1]) == names[:1]
    with refused(UserError, f"{tmp_path}/d*.jsonl"):
        file_names.local([f"{tmp_path}/d*.jsonl"])


HUB = {"kind": "hub", "repository": "./hub", "train": "t-{00..02}.jsonl.zst"}


def row(**values):
    return corpus(HUB | values).source


@pytest.mark.parametrize(("values", "train", "validation"), [
    ({}, "t-00.jsonl.zst t-01.jsonl.zst t-02.jsonl.zst", "t-00.jsonl.zst"),
    ({"shards": 2}, "t-00.jsonl.zst t-01.jsonl.zst", "t-00.jsonl.zst"),
    ({"train": "{shard:02d}", "shards": 2, "validation": "v{shard}"}, "00 01", "v0"),
    ({"train": ["b", "a/{1..2}"], "validation": ["v", "w"]}, "b a/1 a/2", "v w"),
    ({"train": "a", "validation": ["v", "w"], "validation_shards": 1}, "a", "v"),
])  # fmt: skip
def test_a_hub_row_takes_a_template_a_list_or_ranges(values, train, validation):
    assert row(**values).files("train") == train.split()
    assert row(**values).files("validation") == validation.split()


@pytest.mark.parametrize(("values", "place", "value"), [
    ({"train": "t-*.gz"}, "train", "'t-*.gz'"), ({"train": "t-{shard}"}, "shards", "'t-{shard}'"),
    ({"shards": 4}, "shards 4", 3), ({"train": ["{shard}", "b"]}, "train", "'{shard}'"),
    ({"train": "{shard}{split}", "shards": 1}, "train", "'split'"),
    ({"train": "{2..1}"}, "source", "'{2..1}'"), ({"documents": [3]}, "documents", "held out"),
])  # fmt: skip
def test_paths_on_the_hub_that_mean_nothing_are_refused(values, place, value):
    with refused(UserError, place, value):
        row(**values)


def test_later_paths_and_how_a_single_one_is_written_change_no_run():
    def identity(train: str | list[str] = "a", validation: str | list[str] = "v", **values):
        return row(train=train, validation=validation, **values).identity()

    one = HUB | {"train": "a", "validation": "v"}
    assert one == identity() == identity(["a"], ["v"]) == identity(["a", "b"], shards=2)
    assert one != identity(validation=["v", "w"])
    # Shards say from which files they are, and a single file is known.
    assert [row(train=train).pinned for train in (["a"], ["a", "b"])] == [True, False]
    few, more = (identity("{shard}", "{shard}", shards=1, validation_shards=n) for n in (1, 2))
    assert identity("{shard}", "{shard}", shards=1) == few != more


def test_a_fetched_file_that_training_reads_too_outlives_validation(tmp_path):
    source = replace(row(), repository="a/b", revision="1" * 40, shards=1, holdout=0.5)
    given = replace(corpus(HUB), source=source)
    path = records(tmp_path / "sources" / "t-00.jsonl.zst", [f"document {i}" for i in range(40)])
    uses: dict[Split, bool] = {"validation": True, "train": False}
    for split, stays in uses.items():
        chunk.tokenize(given, split, [0], tmp_path / "t", lambda i: True, tmp_path / "sources")
        assert path.exists() == stays


WORDS = [f"w{i}" for i in range(5000)]


def words(generator, n):
    return " ".join(generator.choices(WORDS, k=n))


def test_hashes_of_runs_are_equal_exactly_where_the_runs_are():
    generator, few = random.Random(0), ["a", "b", "aa", "ab", "é", "7"]
    texts = [" ".join(generator.choices(few, k=generator.randrange(60))) for _ in range(300)]
    texts += ["", "A,  b_B!\n" * 9, "Ünï-cödé “quoted” 12.5 % x" * 4, "\ud800 lone " * 9]
    texts.append(words(generator, 110_000))  # longer than what is hashed at once
    for n in (8, 13):
        by_hash = {}
        for text in texts:
            found = "".join(c if c.isalnum() else " " for c in text.lower()).split()
            runs = [tuple(found[i : i + n]) for i in range(len(found) - n + 1)]
            hashes = ngrams.hashes(text, n).tolist()
            assert [by_hash.setdefault(*pair) for pair in zip(hashes, runs, strict=True)] == runs
        assert len({*by_hash.values()}) == len(by_hash)


def test_training_leaves_out_documents_like_a_validation_document(tmp_path):
    generator = random.Random(2)
    held = [words(generator, 40) for _ in range(30)]
    run = " ".join(held[7].split()[5:18])
    like = [
        f"before {run.upper().replace(' ', ', ')}! after",  # thirteen words in other type
        f"before {run.rpartition(' ')[0]} after",  # twelve words
        words(generator, 200), "w1 w2",
        f"{' '.join(held[0].split()[-6:])} {' '.join(held[1].split()[:7])}",  # of two documents
    ]  # fmt: skip
    source = {"kind": "jsonl", "train": [lines(tmp_path / "t.jsonl", [*like, held[3]])],
              "validation": [lines(tmp_path / "v.jsonl", held)]}  # fmt: skip
    folder = tmp_path / "tokens"
    for n, near in ((None, 0), (13, 1), (12, 2)):
        given = corpus(source | ({"decontaminate": n} if n else {}))
        tokenize(given, "validation", 0, folder / "validation-00000.bin")
        made = tokenize(given, "train", 0, folder / "train-00000.bin")
        counts = made["documents"], made["documents_dropped"], made["near_duplicates"]
        assert counts == (len(like) - near, 1, near)
        assert ("decontaminate" in given.source.identity()) == bool(n)
        assert text_needs.missing(given.source, folder, "validation", 1) == []
        (folder / "validation-00000.ngrams").unlink(missing_ok=True)
        assert text_needs.missing(given.source, folder, "validation", 1) == [0] * bool(n)


def test_an_index_finds_every_run_and_only_those(tmp_path):
    generator = random.Random(3)
    texts = [words(generator, 50) for _ in range(200)]
    found = [ngrams.hashes(t, 13) for t in texts]
    # Other hashes: many, and the neighbours of those of texts that are not in the index.
    others = np.random.default_rng(0).integers(2**64, size=1_200_000, dtype=np.uint64)
    near = [hashes + np.uint64(1) for hashes in found[100:]]
    for i, part in enumerate(([*found[:50], others], [*found[50:100], *near])):
        np.sort(np.concatenate(part)).tofile(tmp_path / f"{i}.ngrams")
    index = ngrams.Index(sorted(tmp_path.glob("*.ngrams")), 13)
    assert [index.has(text) for text in [*texts, ""]] == [True] * 100 + [False] * 101


def test_a_full_disk_ends_tokenization_and_leaves_complete_shards(tmp_path, monkeypatch):
    paths = [lines(tmp_path / f"{i}.jsonl", [f"{i} {k}" for k in range(9)]) for i in range(3)]
    given = corpus({"kind": "jsonl", "train": paths, "validation": paths[:1]})
    write = shards.Writer.write

    def full(self, tokens):
        if tokens[1] == ord("1"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, tokens)

    monkeypatch.setattr(shards.Writer, "write", full)
    with refused(UserError, "shard 1", "No space left on device"):
        chunk.tokenize(given, "train", range(3), tmp_path / "t", lambda i: True)
    made = sorted(p.name for p in (tmp_path / "t").iterdir())
    assert made == ["train-00000.bin", "train-00000.json"]


def test_the_ready_rows_are_valid_pinned_and_name_their_files():
    rows = yaml.safe_load((ROOT / "config" / "study.yaml").read_text())["datasets"]
    made = {name: corpus(value).source for name, value in rows.items()}
    assert {"c4", "fineweb_edu", "dclm", "slimpajama", "pg19"} <= made.keys()
    for source in made.values():
        if isinstance(source, Hub):
            assert len(source.revision) == 40
            assert min(source.expected_tokens or 0, source.expected_bytes or 0) > 0
            assert len(source.files("train")) == len(set(source.files("train")))
