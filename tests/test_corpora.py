"""Corpora as they come: files by ranges and patterns, formats, bad documents, near-duplicates."""

import errno
import gzip
import json
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT
from test_data import corpus, lines

from lmscaling.config import file_names, grid
from lmscaling.config.datasets import Corpus
from lmscaling.config.types import Split
from lmscaling.config.validation import checked
from lmscaling.data import chunk, ngrams, sources
from lmscaling.data.kinds.hub import Hub
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError
from lmscaling.plan import documents, study_plan, text_needs
from lmscaling.plan.estimate import Shape
from lmscaling.report import provenance

TEXTS = ["one", "two\nlines", "", "größer 🙂", "\0" * 3]


def records(path, texts):
    """A file of records in the format that its name says."""
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


FORMATS = ["a.json", "a.jsonl", "a.ndjson", "a.json.gz", "a.jsonl.zst", "a.jsonl.zstd", "a.parquet"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_same_documents_and_says_its_hash(tmp_path, name):
    path = records(tmp_path / name, TEXTS)
    documents = sources.read_records(path, "text")
    assert [*documents.texts] == TEXTS
    described = documents.describe_file()
    assert described["bytes"] == path.stat().st_size
    assert described["sha256"] == sources.sha256_of(path)


@pytest.mark.parametrize("share", [0.0, 0.9])
@pytest.mark.parametrize("name", FORMATS[1:])
def test_a_truncated_file_is_an_error_also_where_bad_documents_are_left_out(tmp_path, name, share):
    path = records(tmp_path / name, [f"{'x' * 50} {i}" for i in range(100)])
    whole = path.read_bytes()
    for n in (len(whole) - 3, len(whole) // 2):
        path.write_bytes(whole[:n])
        with pytest.raises(UserError, match=r"not valid (gzip|zstd|Parquet|JSON)"):
            list(sources.read_records(path, "text", share).texts)


def test_a_file_of_another_format_is_told_which_are_known(tmp_path):
    (tmp_path / "a.csv").write_text("text\nx\n")
    with pytest.raises(UserError, match=r"a.csv has a name of no known format; .*\.parquet"):
        sources.read_records(tmp_path / "a.csv", "text")


@pytest.mark.parametrize(
    ("column", "key", "sentence"),
    [
        (
            pa.array(["x"]),
            "txt",
            "has no column 'txt'; nearest is 'text'; allowed: text; set text:",
        ),
        (pa.array([1]), "text", "column 'text' of .* has type int64; allowed: string"),
    ],
)
def test_a_column_without_text_is_one_sentence(tmp_path, column, key, sentence):
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=sentence):
        list(sources.read_records(tmp_path / "a.parquet", key).texts)


BAD = {
    "no JSON": (b"{]\n", "not valid JSON"),
    "not UTF-8": (b'{"text": "\xff"}\n', "not valid JSON"),
    "2,000 brackets": (b"[" * 2000 + b"]" * 2000 + b"\n", "no text|nested too deeply"),
    "200,000 brackets": (b"[" * 200_000 + b"]" * 200_000 + b"\n", "nested too deeply"),
    "null": (b'{"text": null}\n', "null in place of text under 'text'"),
    "a number": (b'{"text": 3}\n', "int in place of text under 'text'"),
    "no key": (b'{"txt": "x"}\n', "no text under 'text'; nearest is 'txt'"),
    "a list": (b'["text"]\n', "no text under 'text'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_document_is_an_error_or_left_out_and_counted(tmp_path, name):
    line, sentence = BAD[name]
    good = b"".join(b'{"text": "%d"}\n' % i for i in range(1500))
    (tmp_path / "a.jsonl").write_bytes(good + line + good)
    row = {"kind": "jsonl", "train": [str(tmp_path / "a.jsonl")], "holdout": 1e-9}
    with pytest.raises(UserError, match=rf"a.jsonl, line 1501: ({sentence})") as raised:
        tokenize(corpus(row), "train", 0, tmp_path / "train-00000.bin")
    assert "on_bad: skip" in str(raised.value)
    assert not (tmp_path / "train-00000.bin").exists()
    row["on_bad"] = "skip"
    made = tokenize(corpus(row), "train", 0, tmp_path / "train-00000.bin")
    assert made["documents"] == 3000
    assert sum(made["bad_documents"].values()) == 1
    assert corpus(row).source.identity() == corpus(row | {"on_bad": "fail"}).source.identity()


def test_parquet_counts_nulls_and_bytes_that_are_no_text(tmp_path):
    texts = pa.array([b"a", None, b"\xff", b"b"] + [b"c"] * 96).cast(pa.binary())
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), len(texts), texts.buffers())})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="row 2: null in place of text under 'text'"):
        list(sources.read_records(tmp_path / "a.parquet", "text").texts)
    made = sources.read_records(tmp_path / "a.parquet", "text", 0.02)
    assert "".join(made.texts) == "ab" + "c" * 96
    assert made.bad == {"null in place of text": 1, "bytes that are not UTF-8": 1}


def test_more_bad_documents_than_allowed_are_an_error_with_their_reasons(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' * 97 + "no\n" * 2 + '{"text": 1}\n')
    row = {"kind": "jsonl", "train": [str(tmp_path / "a.jsonl")], "holdout": 1e-9, "on_bad": "skip"}
    said = r"3 of 100 documents .*\(2 not valid JSON, 1 int in place of text\).* 0.001, bad_share:"
    with pytest.raises(UserError, match=said):
        tokenize(corpus(row), "train", 0, tmp_path / "train-00000.bin")
    made = tokenize(corpus(row | {"bad_share": 0.03}), "train", 0, tmp_path / "train-00000.bin")
    assert made["bad_documents"] == {"not valid JSON": 2, "int in place of text": 1}


def test_documents_that_are_left_out_are_told_with_the_manifest_and_the_plan(tmp_path, values):
    laid_out = grid.expand(values)
    folder = tmp_path / "tokens" / laid_out.tokens
    folder.mkdir(parents=True)
    bad = {"not valid JSON": 3}
    for i in range(2):
        part = {
            "documents": 500,
            "documents_dropped": 4,
            "near_duplicates": i,
            "bad_documents": bad,
        }
        (folder / f"train-{i:05d}.json").write_text(json.dumps(part))
    kept = documents.count(folder, {"train": 2, "validation": 0})
    sentence = (
        "train: 1,000 documents; left out: 8 equal to a validation document, 1 like a validation "
        "document, 6 not valid JSON"
    )
    assert documents.sentences(kept) == [sentence]
    shapes = dict.fromkeys(laid_out.cells, Shape(100, 600.0))
    for earlier in (True, False):  # a plan from before the text was tokenized, and a later one
        results = tmp_path / "nothing" if earlier else tmp_path
        made = study_plan.make(laid_out, shapes, "NVIDIA H100", results)
        assert made.text.left_out == ([] if earlier else [sentence])
        (tmp_path / "plan.json").write_text(json.dumps(made.to_json()))
        [table] = provenance.plan_tables(tmp_path / "plan.json")
        assert table.note.count(sentence) == 1


def test_ranges_count_with_the_digits_of_their_first_number():
    assert file_names.numbered("a-{08..11}.gz") == [f"a-{n}.gz" for n in ("08", "09", "10", "11")]
    assert file_names.numbered("{1..2}/{0..1}") == ["1/0", "1/1", "2/0", "2/1"]
    assert file_names.numbered("plain") == ["plain"]
    for name in ("{3..1}", "{0..999}/{0..9999}"):
        with pytest.raises(ValueError, match=r"has an empty range, or more than 1,000,000 files"):
            file_names.numbered(name)


def test_patterns_of_local_files_are_sorted_and_name_what_is_missing(tmp_path):
    for name in ("b/2.jsonl", "b/10.jsonl", "a[1].jsonl", "c.jsonl"):
        records(tmp_path / name, ["x"])
    assert file_names.local([f"{tmp_path}/**/*.jsonl"]) == [
        f"{tmp_path}/{name}" for name in ("a[1].jsonl", "b/10.jsonl", "b/2.jsonl", "c.jsonl")
    ]
    assert file_names.local([f"{tmp_path}/a[1].jsonl"]) == [f"{tmp_path}/a[1].jsonl"]
    with pytest.raises(
        UserError, match=r"no file matches .*/d\*.jsonl'; correct the dataset's row"
    ):
        file_names.local([f"{tmp_path}/d*.jsonl"])


@pytest.mark.parametrize("kind", ["jsonl", "text"])
def test_a_row_takes_patterns_and_ranges_of_files(tmp_path, kind):
    for i in range(3):
        lines(tmp_path / f"{i}.jsonl", [f"document {i}"])
    named = {"kind": kind, "validation": [f"{tmp_path}/2.jsonl"]}
    by_range = corpus(named | {"train": [f"{tmp_path}/{{0..1}}.jsonl"]}).source
    by_pattern = corpus(named | {"train": [f"{tmp_path}/[01].jsonl"]}).source
    listed = corpus(named | {"train": [f"{tmp_path}/{i}.jsonl" for i in (0, 1)]}).source
    assert by_range.files("train") == by_pattern.files("train") == listed.files("train")
    assert by_pattern.first(1).files("train") == listed.first(1).files("train")


HUB = {"kind": "hub", "repository": "./hub", "train": "t-{00..02}.jsonl.zst"}


def row(**values):
    return checked(Corpus, _values(HUB | values), "corpus").source


def _values(source):
    encoding = {"encoding": "bytes", "vocab_size": 257}
    return {"dataset": "d", "source": source, "tokenizer": "bytes", "encoding": encoding}


def test_a_hub_row_takes_a_template_a_list_or_ranges():
    assert row().files("train") == [f"t-0{i}.jsonl.zst" for i in range(3)]
    assert row(shards=2).files("train") == ["t-00.jsonl.zst", "t-01.jsonl.zst"]
    assert row(train="{shard:02d}", shards=2).files("train") == ["00", "01"]
    assert row(train=["b", "a/{1..2}"]).files("train") == ["b", "a/1", "a/2"]
    assert row(validation=["v", "w"]).files("validation") == ["v", "w"]
    assert row(validation=["v", "w"], validation_shards=1).files("validation") == ["v"]
    assert row(validation="v{shard}").files("validation") == ["v0"]
    assert row().files("validation") == ["t-00.jsonl.zst"]


REFUSED = [
    ({"train": "t-*.gz"}, "train 't-*.gz' is a pattern, and plans do not ask the hub"),
    ({"train": "t-{shard}"}, "shards is missing; give the number of files that 't-{shard}' is"),
    ({"shards": 4}, "shards 4 is more than the 3 files that the row names"),
    ({"train": ["{shard}", "b"]}, "train '{shard}' does not number its files"),
    ({"train": "{shard}{split}", "shards": 1}, "has braces with 'split'; allowed: {shard}"),
    ({"train": "{2..1}"}, "'{2..1}' has an empty range"),
    ({"documents": [3]}, "documents counts complete files, but a share of them is held out"),
]


@pytest.mark.parametrize(("values", "sentence"), REFUSED)
def test_paths_on_the_hub_that_mean_nothing_are_one_sentence(values, sentence):
    with pytest.raises(UserError) as raised:
        row(**values)
    assert sentence in str(raised.value)


def test_later_paths_and_how_a_single_one_is_written_change_no_run():
    one = row(train="a", validation="v").identity()
    assert one == row(train=["a"], validation=["v"]).identity()
    assert one == row(train=["a", "b"], validation="v", shards=2).identity()
    assert one == {"kind": "hub", "repository": "./hub", "train": "a", "validation": "v"}
    assert one != row(train="a", validation=["v", "w"]).identity()
    assert row(train=["a"]).pinned
    assert not row(train=["a", "b"]).pinned  # whose shards say from which files they are
    written = {"train": "{shard}", "validation": "{shard}", "shards": 1}
    assert row(**written).identity() == row(**written, validation_shards=1).identity()
    assert row(**written).identity() != row(**written, validation_shards=2).identity()


def test_a_hub_row_without_validation_files_holds_documents_out(tmp_path):
    texts = [f"document {i}" for i in range(400)]
    for i in range(2):
        records(tmp_path / f"t-0{i}.jsonl.zst", texts)
    given = row(repository=str(tmp_path), holdout=0.1, shards=2)
    held = [*given.read("validation", 0, None).texts]
    kept = [[*given.read("train", i, None).texts] for i in (0, 1)]
    assert 10 < len(held) < 100
    assert kept[0] == kept[1] == [text for text in texts if text not in held]


def test_a_fetched_file_that_training_reads_too_outlives_validation(tmp_path):
    given = replace(checked(Corpus, _values(HUB), "corpus"))
    source = replace(given.source, repository="a/b", revision="1" * 40, shards=1, holdout=0.5)
    given = replace(given, source=source)
    texts = [f"document {i}" for i in range(40)]
    path = records(tmp_path / "sources" / "t-00.jsonl.zst", texts)
    uses: dict[Split, bool] = {"validation": True, "train": False}
    for split, stays in uses.items():
        chunk.tokenize(given, split, [0], tmp_path / "t", lambda i: True, tmp_path / "sources")
        assert path.exists() == stays


WORDS = [f"w{i}" for i in range(5000)]


def plain_runs(text, n):
    """The runs of n words of a text, as a set of tuples."""
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def sentence(generator, n):
    return " ".join(generator.choices(WORDS, k=n))


def test_hashes_of_runs_are_equal_exactly_where_the_runs_are():
    generator = random.Random(0)
    few = ["a", "b", "aa", "ab", "é", "7"]
    texts = [" ".join(generator.choices(few, k=generator.randrange(60))) for _ in range(300)]
    texts += ["", "A,  b_B!\n" * 9, "Ünï-cödé “quoted” 12.5 % x" * 4, "\ud800 lone " * 9]
    for n in (8, 13):
        runs = [plain_runs(text, n) for text in texts]
        found = [ngrams.hashes(text, n) for text in texts]
        assert [len({*f.tolist()}) for f in found] == [*map(len, runs)]
        table = {}
        for text, hashes in zip(texts, found, strict=True):
            words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
            for i, value in enumerate(hashes.tolist()):
                assert table.setdefault(value, tuple(words[i : i + n])) == tuple(words[i : i + n])


def test_a_long_document_has_the_runs_of_its_parts(monkeypatch):
    text = sentence(random.Random(1), 1000)
    whole = ngrams.hashes(text, 13)
    monkeypatch.setattr(ngrams, "WORDS", 70)
    assert np.array_equal(ngrams.hashes(text, 13), whole)
    assert len(whole) == 988


def test_training_leaves_out_documents_like_a_validation_document(tmp_path):
    generator = random.Random(2)
    held = [sentence(generator, 40) for _ in range(30)]
    run = " ".join(held[7].split()[5:18])
    like = {
        "thirteen words in other type": f"before {run.upper().replace(' ', ', ')}! after",
        "twelve words": f"before {run.rpartition(' ')[0]} after",
        "no words in common": sentence(generator, 200),
        "short": "w1 w2",
        "over two documents": f"{' '.join(held[0].split()[-6:])} {' '.join(held[1].split()[:7])}",
    }
    validation = lines(tmp_path / "v.jsonl", held)
    train = lines(tmp_path / "t.jsonl", [*like.values(), held[3]])
    source = {"kind": "jsonl", "train": [train], "validation": [validation]}
    folder = tmp_path / "tokens"
    for words, near in ((None, 0), (13, 1), (12, 2)):
        given = corpus(source | ({"decontaminate": words} if words else {}))
        tokenize(given, "validation", 0, folder / "validation-00000.bin")
        made = tokenize(given, "train", 0, folder / "train-00000.bin")
        counts = made["documents"], made["documents_dropped"], made["near_duplicates"]
        assert counts == (len(like) - near, 1, near)
        assert ("decontaminate" in given.source.identity()) == bool(words)
        assert text_needs.missing(given.source, folder, "validation", 1) == []
        (folder / "validation-00000.ngrams").unlink(missing_ok=True)
        assert text_needs.missing(given.source, folder, "validation", 1) == [0] * bool(words)


def test_an_index_finds_every_run_and_only_those(tmp_path, monkeypatch):
    monkeypatch.setattr(ngrams, "FILTER_BITS", 10)  # nearly all bits are set
    monkeypatch.setattr(ngrams, "BLOCK", 64)
    generator = random.Random(3)
    texts = [sentence(generator, 50) for _ in range(200)]
    for i in range(2):
        hashes = np.unique(np.concatenate([ngrams.hashes(t, 13) for t in texts[i:100:2]]))
        hashes.tofile(tmp_path / f"{i}.ngrams")
    index = ngrams.Index(sorted(tmp_path.glob("*.ngrams")), 13)
    assert [index.has(text) for text in texts] == [True] * 100 + [False] * 100
    assert not index.has("")


def test_a_full_disk_ends_tokenization_with_a_sentence_and_leaves_complete_shards(
    tmp_path, monkeypatch
):
    paths = [lines(tmp_path / f"{i}.jsonl", [f"{i} {k}" for k in range(9)]) for i in range(3)]
    given = corpus({"kind": "jsonl", "train": paths, "validation": paths[:1]})
    write = chunk.tokenize_shard.__globals__["shards"].Writer.write

    def full(self, tokens):
        if tokens[1] == ord("1"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, tokens)

    monkeypatch.setattr("lmscaling.data.shards.Writer.write", full)
    with pytest.raises(UserError, match=r"shard 1: .*: No space left on device; make room"):
        chunk.tokenize(given, "train", range(3), tmp_path / "t", lambda i: True)
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == [
        "train-00000.bin",
        "train-00000.json",
    ]


def test_the_ready_rows_are_valid_pinned_and_name_their_files():
    rows = yaml.safe_load((ROOT / "config" / "study.yaml").read_text())["datasets"]
    made = {name: checked(Corpus, _values(value), name).source for name, value in rows.items()}
    assert {"c4", "fineweb_edu", "dclm", "slimpajama", "pg19"} <= made.keys()
    for source in made.values():
        if isinstance(source, Hub):
            assert len(source.revision) == 40
            assert source.expected_tokens
            assert source.expected_bytes
            assert len(source.files("train")) == len(set(source.files("train")))


def test_the_reader_of_parquet_holds_a_page_and_not_the_file(tmp_path):
    text = "x" * 10_000
    pq.write_table(pa.table({"text": [text] * 5000}), tmp_path / "a.parquet", compression="none",
                   use_dictionary=False, row_group_size=500)  # fmt: skip
    before, most = pa.total_allocated_bytes(), 0
    for _ in sources.read_records(tmp_path / "a.parquet", "text").texts:
        most = max(most, pa.total_allocated_bytes() - before)
    assert 0 < most < 20e6 < (tmp_path / "a.parquet").stat().st_size
