"""Corpora as they come: files by ranges and patterns, formats, bad documents, and the hub."""

import bz2
import errno
import glob
import gzip
import json
import lzma
import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiktoken
import yaml
from conftest import ROOT, refused, sentence
from hub import COMMIT, serving
from test_data import corpus, lines, read

from lmscaling.config import grid, new_study
from lmscaling.data import file_names, shards, vocabulary
from lmscaling.data.documents import of_files, of_records
from lmscaling.data.kinds.hub import Hub
from lmscaling.data.tokenize import encode, tokenize, tokenize_all
from lmscaling.errors import UserError
from lmscaling.files import sha256_of
from lmscaling.plan import documents, study_plan
from lmscaling.plan.footprint import Shape
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
    pytest.importorskip("zstandard", reason="datasets reads .zst with the package zstandard")
    texts = ["one", "two\nlines", "", "größer 🙂", "\0" * 3, "2020-01-01", "5"]
    for end in ["json", "jsonl", "ndjson", "json.gz", "jsonl.zst", "parquet"]:
        path = records(tmp_path / f"a.{end}", texts)
        documents = of_records(str(path), "text")
        assert [*documents.texts] == texts
        described = documents.describe_file()
        assert described == {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def test_records_may_have_other_keys_from_line_to_line(tmp_path):
    """The reader of ``datasets`` for JSON has one schema for a file, and refuses these."""
    path = tmp_path / "a.jsonl"
    rows = [{"text": "a", "meta": {"x": 1}}, {"meta": "y", "text": "b", "more": []}, {"text": "c"}]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert [*of_records(str(path), "text").texts] == ["a", "b", "c"]


def rows(path, **values):
    return corpus({"kind": "jsonl", "train": [str(path)], "holdout": 1e-9} | values)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json.gz", "a.jsonl.zst", "a.parquet"])
def test_a_truncated_file_is_an_error(tmp_path, name):
    path = records(tmp_path / name, [f"{'x' * 50} {i}" for i in range(100)])
    out, whole = tmp_path / "train-00000.bin", path.read_bytes()
    for n in (len(whole) - 3, len(whole) // 2):
        path.write_bytes(whole[:n])
        # libraries have words of their own
        with pytest.raises(UserError, match=f"{name}.*(get the file again)"):
            tokenize(rows(path), "train", 0, out)
    assert not out.exists()


@pytest.mark.parametrize(("name", "column", "key", "values"), [
    ("a.parquet", ["x"], "txt", ["'txt'", "'text'"]),
    ("a.parquet", [1], "text", ["'text'", "int64"]),
])  # fmt: skip
def test_a_file_without_such_text_is_refused(tmp_path, name, column, key, values):
    pq.write_table(pa.table({"text": pa.array(column)}), tmp_path / name)
    with refused(UserError, name, *values):
        list(of_records(str(tmp_path / name), key).texts)


def packed(data):
    """The same bytes by every program, under names that say something else."""
    zstandard = pytest.importorskip("zstandard", reason="datasets reads zstd with this package")
    skipped = b"\x50\x2a\x4d\x18\x04\0\0\0skip"  # a frame without content
    return {
        "a.jsonl": data,
        "noname": gzip.compress(data),
        "DATA.TXT.GZ": gzip.compress(data[:9]) + gzip.compress(data[9:]),
        "a.gz": bz2.compress(data),
        "a [1]*.parquet": lzma.compress(data),
        "a.txt": zstandard.compress(data),
        "frames.json": skipped + zstandard.compress(data[:9]) + zstandard.compress(data[9:]),
    }


def test_files_are_known_by_their_first_bytes_and_not_by_their_names(tmp_path):
    texts = [f"größer {i}" for i in range(7)]
    data = "".join(json.dumps({"text": t}) + "\n" for t in texts).encode()
    for name, content in packed(b"\xef\xbb\xbf" + data).items():
        (path := tmp_path / name).write_bytes(content)
        assert [*of_records(str(path), "text").texts] == texts
        assert [*of_files([str(path)]).texts] == ["\ufeff" + data.decode()]
        assert (file_names.most_tokens([glob.escape(str(path))]) is None) == (name != "a.jsonl")


def test_parquet_of_every_program_is_read(tmp_path):
    texts = ["one", "größer", "one"]
    strings = pa.array(texts)
    columns = [strings.dictionary_encode(), pa.array(texts, pa.string_view())]
    columns += [strings.cast(kind) for kind in (pa.large_string(), pa.binary(), pa.large_binary())]
    for column in columns:
        pq.write_table(pa.table({"text": column}), tmp_path / "A.PARQUET")
        assert [*of_records(str(tmp_path / "A.PARQUET"), "text").texts] == texts


def test_what_is_no_text_is_refused_and_its_remedy_works(tmp_path):
    path = tmp_path / "a"

    def told(reader, content, *values):
        path.write_bytes(content)
        with refused(UserError, *values):
            list(reader())

    def text():
        return of_files([str(path)]).texts

    def lines():
        return of_records(str(path), "text").texts

    latin = '{"text": "café"}'.encode("latin-1")
    for reader in (text, lines):
        told(reader, latin, "-f LATIN1")
        path.write_bytes(latin.decode("latin-1").encode())
        assert "café" in next(iter(reader()))
        told(reader, np.random.default_rng(0).bytes(9999), "UTF-8")
    told(text, gzip.compress(b"a\0b"), "binary")
    told(lines, b"text,id\nx,1\n", "line 1", "JSON")
    for data, indent in (([{"text": "x"}, {"text": "y"}], None), ({"text": "x"}, 1)):
        told(lines, json.dumps(data, indent=indent).encode(), "jq -c")
        rows = data if isinstance(data, list) else [data]
        path.write_text("\n".join(json.dumps(row) for row in rows))
        assert [*lines()] == [row["text"] for row in rows]
    pq.write_table(pa.table({"text": ["x"]}), path)
    with refused(UserError, "Parquet", "kind: jsonl"):
        list(text())
    assert [*lines()] == ["x"]
    pq.write_table(pa.table({"text": ["café".encode("latin-1")]}), path)
    with refused(UserError, "document 1", "UTF-8"):
        list(lines())
    path.unlink()
    os.mkfifo(path)
    with refused(UserError, "no regular file"):
        list(text())


def test_a_study_of_a_device_as_text_is_refused_before_anything_runs(values, tmp_path):
    values["datasets"]["lines"] = {"kind": "text", "train": ["/dev/zero"]}
    with refused(UserError, "/dev/zero", "no regular file"):
        new_study.plan(values, str(tmp_path))


@pytest.mark.parametrize("space", [" ", "\n", "\u00a0"])
def test_white_space_without_end_is_encoded_in_parts(space):
    pattern, ranks = vocabulary.ENCODINGS["gpt2"].pattern, {bytes([i]): i for i in range(256)}
    encoder = tiktoken.Encoding("a", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    text = f"a b{space * 1_100_000}c"
    ids, short = encode(encoder, [text, "a b"])
    assert bytes(ids.tolist()).decode() == text
    assert bytes(short.tolist()) == b"a b"


def test_a_row_of_parquet_without_text_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x"] * 300 + [None, "ö"]}), path)  # more than a batch
    with refused(UserError, path.name, "document 301", "null"):
        tokenize(rows(path), "train", 0, tmp_path / "train-00000.bin")


BAD = {
    "no JSON": (b"{]", "no JSON"),
    "200,000 brackets": (b"[" * 200_000 + b"]" * 200_000, "no JSON"),
    "not UTF-8": (b'{"text": "\xff"}', "utf-8"),
    "null": (b'{"text": null}', "null"),
    "a number": (b'{"text": 3}', "int"),
    "no key": (b'{"txt": "x"}', "'text'.* 'txt'"),
    "a list": (b'["text"]', "'text'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_document_is_an_error(tmp_path, name):
    line, said = BAD[name]
    good = b"".join(b'{"text": "%d"}\n' % i for i in range(1500))
    path, out = tmp_path / "a.jsonl", tmp_path / "train-00000.bin"
    path.write_bytes(good + line + b"\n" + good)
    with pytest.raises(UserError, match=rf"a\.jsonl.*{said}"):
        tokenize(rows(path), "train", 0, out)
    assert not out.exists()


def test_documents_that_are_left_out_are_told_with_the_manifest_and_the_plan(tmp_path, values):
    laid_out = grid.expand(values)
    folder = tmp_path / "tokens" / laid_out.tokens
    folder.mkdir(parents=True)
    part = {"documents": 500, "documents_dropped": 4}
    for i in range(2):
        (folder / f"train-{i:05d}.json").write_text(json.dumps(part))
    (said,) = documents.sentences(documents.count(folder, {"train": 2, "validation": 0}))
    assert re.findall(r"[\d,]*\d", said) == ["1,000", "8"]
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
    ({"train": ["b", "a/{1..2}"], "validation": ["v", "w"]}, "b a/1 a/2", "v w"),
])  # fmt: skip
def test_a_hub_row_takes_a_list_or_ranges(values, train, validation):
    assert row(**values).files("train") == train.split()
    assert row(**values).files("validation") == validation.split()


@pytest.mark.parametrize(("values", "place", "value"), [
    ({"train": "t-*.gz"}, "source", "'t-*.gz'"), ({"train": "t-{shard}"}, "source", "'t-{shard}'"),
    ({"shards": 4}, "shards 4", 3), ({"train": "{2..1}"}, "source", "'{2..1}'"),
    ({"documents": [3]}, "documents", "held out"), ({"repository": "a/b"}, "revision", "a/b"),
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


def test_many_text_files_are_several_shards_and_more_files_change_only_the_last(tmp_path):
    def text(n, pattern):
        for i in range(n):
            (tmp_path / f"{i}.txt").write_bytes(b"book %d\r\n" % i)
        row = {"kind": "text", "train": [f"{tmp_path}/{pattern}"], "files_per_shard": 2}
        return corpus(row | {"holdout": 1e-9})

    few = text(3, "*.txt")
    before = [tokenize(few, "train", i, tmp_path / f"train-{i:05d}.bin") for i in range(2)]
    assert [made["documents"] for made in before] == [2, 1]
    more = text(5, "?.txt")  # the files of a pattern are looked up once in a process
    assert more.source.files("train")[0] == few.source.files("train")[0]
    assert (len(more.source.files("train")), len(more.source.files("validation"))) == (3, 1)
    made = read(tmp_path / "train-00000.bin")
    assert made.tolist() == [256, *b"book 0\n", 256, *b"book 1\n"]


# The hub
FILES = ["a-{0..1}.json.gz", "b.parquet", "c.jsonl.zst"]
REPOSITORY = {"kind": "hub", "repository": "owner/texts", "revision": COMMIT,
              "train": FILES, "holdout": 1e-9}  # fmt: skip


@pytest.fixture
def hub(tmp_path, monkeypatch):
    folder = tmp_path / "hub"
    for name in ("a-0.json.gz", "a-1.json.gz", "b.parquet", "c.jsonl.zst"):
        records(folder / "en" / name, [f"{name} {i}" for i in range(500)])
    with serving("owner/texts", folder / "en", monkeypatch) as server:
        yield server


def streamed(shard, out, **values):
    return tokenize(corpus(REPOSITORY | values), "train", shard, out / "train-00000.bin")


@pytest.mark.parametrize("shard", [0, 2, 3])
def test_a_shard_is_read_from_the_hub_with_the_login_of_the_user_and_as_from_a_mirror(
    hub, tmp_path, monkeypatch, shard
):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    made = streamed(shard, tmp_path)
    assert {*hub.sent} == {corpus(REPOSITORY).source.files("train")[shard]}
    assert "Bearer hf_secret" in hub.tokens
    assert (made["source"]["repository"], made["source"]["revision"]) == ("owner/texts", COMMIT)
    hub.sent.clear()
    local = streamed(shard, tmp_path, mirror=str(hub.folder))
    assert (local["sha256"], local["documents"], hub.sent) == (made["sha256"], 500, [])


def test_a_download_that_breaks_off_or_a_hub_that_is_busy_goes_on(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    expected = streamed(0, tmp_path)["sha256"]
    hub.break_off_after, hub.failures = [100, 50], 1
    assert streamed(0, tmp_path)["sha256"] == expected
    assert (hub.break_off_after, hub.failures) == ([], 0)


@pytest.mark.parametrize(("values", "refusal", "said"), [
    ({"train": "none.json.gz"}, None, ["none.json.gz"]),
    ({"revision": "2" * 40}, None, ["2222", "revision"]),
    ({"repository": "owner/other"}, None, ["owner/other"]),
    ({}, (403, {"X-Error-Code": "GatedRepo"}), ["owner/texts", "private"]),
    ({}, (401, {}), ["owner/texts", "401"]),
])  # fmt: skip
def test_a_refusal_of_the_hub_has_a_remedy(hub, tmp_path, values, refusal, said):
    hub.refusal = refusal
    with pytest.raises(UserError) as caught:
        streamed(0, tmp_path, **values)
    assert [
        value for value in (*said, "mirror:", "`hf auth login`") if value not in str(caught.value)
    ] == []


def test_a_hub_out_of_reach_or_switched_off_names_the_mirror(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"HF_HUB_OFFLINE.*mirror:"):
        streamed(0, tmp_path)


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
        tokenize_all(given, "train", range(3), tmp_path / "t", lambda i: True)
    made = sorted(p.name for p in (tmp_path / "t").iterdir())
    assert made == ["train-00000.bin", "train-00000.json"]


def test_real_documents_of_c4_are_those_of_the_file(real_data, tmp_path):
    path = real_data / "c4" / "c4-validation.sample.200.json.gz"
    with gzip.open(path) as packed:
        expected = [json.loads(line)["text"] for line in packed]
    assert [*of_records(str(path), "text").texts] == expected


def test_the_ready_rows_are_valid_pinned_and_name_their_files():
    rows = yaml.safe_load((ROOT / "config" / "study.yaml").read_text())["datasets"]
    made = {name: corpus(value).source for name, value in rows.items()}
    assert {"c4", "fineweb_edu", "dclm", "slimpajama", "pg19"} <= made.keys()
    for source in made.values():
        if isinstance(source, Hub):
            assert len(source.revision) == 40
            assert min(source.expected_tokens or 0, source.expected_bytes or 0) > 0
            assert len(source.files("train")) == len(set(source.files("train")))
