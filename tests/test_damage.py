"""Damaged text and damaged shards: each is named with its file and its cure; a kill leaves nothing
torn."""

import gzip
import json
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
from conftest import refused, write_shard
from test_data import corpus, lines

from lmscaling import files
from lmscaling.data import shards
from lmscaling.data.stream import Stream
from lmscaling.data.tokenize import tokenize
from lmscaling.errors import UserError


@pytest.fixture
def hub(tmp_path):
    """A row whose files are local, one of each split, as if they had been fetched."""
    folder = tmp_path / "hub"
    folder.mkdir()
    for name, n in (("train-0", 400), ("validation-0", 40)):
        texts = [f"{name} document {i} " + "words " * (i % 50) for i in range(n)]
        with gzip.open(folder / f"{name}.json.gz", "wt") as file:
            file.writelines(json.dumps({"text": t}) + "\n" for t in texts)
    return {
        "kind": "hub", "repository": "owner/texts", "revision": "1" * 40, "mirror": str(folder),
        "train": "train-0.json.gz", "validation": "validation-0.json.gz",
        "documents": [400],
    }  # fmt: skip


def flipped(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def repacked(path, text):
    with gzip.open(path, "wb") as file:
        file.write(text)


def cut(text):
    return b"".join(text.splitlines(keepends=True)[:-1])


def unpacked(path):
    return gzip.decompress(path.read_bytes())


SOURCES = {
    "a flipped bit": (lambda p: flipped(p, p.stat().st_size // 2), "cannot be read"),
    "a gzip cut in the middle": (lambda p: os.truncate(p, p.stat().st_size // 2), "cannot be read"),
    "a gzip cut by one byte": (lambda p: os.truncate(p, p.stat().st_size - 1), "cannot be read"),
    "zeros": (lambda p: p.write_bytes(bytes(p.stat().st_size)), "no JSON"),
    "an empty file": (lambda p: p.write_bytes(b""), "0 documents"),
    "a line that is no JSON": (lambda p: repacked(p, b'{"text": "a"}\n{"text": \n'), "line 2:"),
    "a document without text": (lambda p: repacked(p, b'{"text": "a"}\n{"txt": "b"}\n'), "'txt'"),
    "a document whose text is null": (lambda p: repacked(p, b'{"text": null}\n'), "document 1:"),
    "a missing document": (lambda p: repacked(p, cut(unpacked(p))), "399 documents"),
    "a missing file": (lambda p: p.unlink(), "validation-0.json.gz"),
}


@pytest.mark.parametrize("damage", SOURCES)
def test_a_damaged_source_is_named_and_leaves_nothing(hub, tmp_path, damage):
    source = tmp_path / "hub" / "train-0.json.gz"
    change, value = SOURCES[damage]
    change(source)
    out = tmp_path / "out" / "train-00000.bin"
    with refused(UserError, "train-0.json.gz", value):
        tokenize(corpus(hub), "train", 0, out)
    assert not out.parent.exists() or not list(out.parent.iterdir())


@pytest.fixture
def folder(tmp_path):
    """Three training shards and a validation shard, and their manifest."""
    texts = [[f"shard {k} document {i}" for i in range(300)] for k in range(3)]
    names = [lines(tmp_path / f"{k}.jsonl", t) for k, t in enumerate(texts)]
    valid = lines(tmp_path / "v.jsonl", [f"validation {i}" for i in range(50)])
    given = corpus({"kind": "jsonl", "train": names, "validation": [valid]})
    out = tmp_path / "tokens"
    tokenize(given, "validation", 0, out / "validation-00000.bin")
    for k in range(3):
        tokenize(given, "train", k, out / f"train-{k:05d}.bin")
    return out


COUNTS = {"validation": 1, "train": 3}


def swapped(folder):
    for end in ("bin", "json"):
        a, b = folder / f"train-00000.{end}", folder / f"train-00001.{end}"
        kept = a.read_bytes()
        b.replace(a)
        b.write_bytes(kept)


def of_another_tokenizer(folder):
    write_shard(folder / BIN, np.zeros(100, np.uint16), dataset="d", ranks_sha256="other")


def repeated(folder):
    shutil.copy(folder / "validation-00000.bin", folder / "train-00000.bin")


BIN, LAST = "train-00001.bin", "train-00002.bin"
DAMAGES = {
    "a truncated file": (lambda f: os.truncate(f / BIN, 2000), f"{BIN} has 2000 bytes", BIN),
    "a file of zeros": (lambda f: (f / BIN).write_bytes(bytes(5000)), f"{BIN} begins", BIN),
    "shards in another order": (swapped, "train-00000.json belongs to", "train-0000"),
    "other tokens": (repeated, "train-00000.bin has", None),
    "another tokenizer": (of_another_tokenizer, "ranks_sha256 other", f"{BIN} has"),
    "a cut sidecar": (lambda f: os.truncate(f / "train-00002.json", 100), "train-00002.json", None),
    "no shard": (lambda f: (f / LAST).unlink(), LAST, LAST),
    "a flipped bit": (lambda f: flipped(f / BIN, 3000), None, f"{BIN} has SHA-256"),
}
"""What is found when the manifest is made, and, had it been made before, by the stream."""


@pytest.mark.parametrize("damage", [name for name, row in DAMAGES.items() if row[1]])
def test_a_damaged_shard_gets_into_no_manifest(folder, damage):
    change, found, _ = DAMAGES[damage]
    change(folder)
    with refused(UserError, found):
        shards.write_manifest(folder / "manifest.json", COUNTS)
    assert not (folder / "manifest.json").exists()


@pytest.mark.parametrize("damage", [name for name, row in DAMAGES.items() if row[2]])
def test_a_shard_damaged_later_is_refused_before_a_token_of_it_is_used(folder, damage):
    shards.write_manifest(folder / "manifest.json", COUNTS)
    change, _, found = DAMAGES[damage]
    change(folder)
    stream = Stream(folder / "manifest.json", "train")
    with pytest.raises(UserError, match="run snakemake again") as caught:
        stream.read(0, stream.tokens)
    assert found in str(caught.value)


def test_kills_at_any_moment_leave_nothing_torn(hub, tmp_path):
    given = corpus(hub)
    whole, out = (tmp_path / name / "train-00000.bin" for name in ("whole", "out"))
    start = time.monotonic()
    tokenize(given, "train", 0, whole)
    longest = time.monotonic() - start
    moments, killed = random.Random(0), 0
    while killed < 25:
        child = os.fork()
        if not child:
            tokenize(given, "train", 0, out)
            os._exit(0)
        time.sleep(moments.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        in_time = os.waitpid(child, 0)[1] == signal.SIGKILL
        killed += in_time
        longest *= 1 if in_time else 0.9
        if out.exists():
            assert out.read_bytes() == whole.read_bytes()
        if out.with_suffix(".json").exists():
            assert out.exists()
            assert json.loads(out.with_suffix(".json").read_text())["sha256"]
            out.with_suffix(".json").unlink()
            out.unlink()
    tokenize(given, "train", 0, out)
    assert out.read_bytes() == whole.read_bytes()
    names = sorted(p.name for p in out.parent.iterdir())
    assert names == ["train-00000.bin", "train-00000.json"], "leftovers"


def test_what_a_living_process_or_another_machine_writes_is_not_swept_away(tmp_path):
    writers = f"{files.HOST}.{os.getpid()}.00", "elsewhere.1.00", "elsewhere.2.00"
    ours, theirs, forgotten = (tmp_path / f".a.json.{writer}.tmp" for writer in writers)
    for path in (ours, theirs, forgotten):
        path.write_text("half")
    os.utime(forgotten, (0, 0))
    files.write_json(tmp_path / "a.json", 1)
    assert ours.exists()
    assert theirs.exists()
    assert not forgotten.exists()
