"""Many shards in one process: what exists is kept, what fails stops no other, a kill loses one."""

import json
import subprocess
import sys
import time
from collections.abc import Iterable

import pytest
from conftest import refused
from hub import COMMIT, serving
from test_data import corpus, lines

from lmscaling.data import chunk
from lmscaling.errors import UserError
from lmscaling.plan.text_needs import Chunk, missing

N = 5
SHARDS = "{shard}.json"
HUB = corpus({"kind": "hub", "repository": "owner/texts", "revision": COMMIT, "shards": N,
              "train": SHARDS, "validation": SHARDS})  # fmt: skip


@pytest.fixture
def text(tmp_path):
    """A corpus of five local files."""
    train = [lines(tmp_path / f"{i}.jsonl", [f"{i} {k}" for k in range(9)]) for i in range(N)]
    validation = [lines(tmp_path / "v.jsonl", ["held out"])]
    return corpus({"kind": "jsonl", "train": train, "validation": validation})


def make(text, folder, shards: Iterable[int] = range(N), **options):
    def is_missing(i):
        return bool(missing(text.source, folder, "train", i + 1, i))

    return chunk.tokenize(text, "train", shards, folder, is_missing, **options)


def names(folder):
    return sorted(path.name for path in folder.glob("*.json"))


def test_shards_that_exist_are_neither_made_again_nor_touched(text, tmp_path):
    folder = tmp_path / "tokens"
    assert make(text, folder, shards=[1, 3]) == 2
    before = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.iterdir()}
    assert make(text, folder) == 3
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in before} == before
    assert names(folder) == [f"train-{i:05d}.json" for i in range(N)]
    assert make(text, folder) == 0


def test_a_bad_shard_names_itself_and_the_others_are_made(text, tmp_path):
    for i in (1, 3):
        (tmp_path / f"{i}.jsonl").write_text("no json\n")
    with refused(UserError, "2 of 5", "d train shard 1: ", "d train shard 3: "):
        make(text, tmp_path / "tokens")
    assert names(tmp_path / "tokens") == [f"train-{i:05d}.json" for i in (0, 2, 4)]
    lines(tmp_path / "1.jsonl", ["good"])
    with refused(UserError, "d train shard 3: ", "3.jsonl, line 1"):
        make(text, tmp_path / "tokens")


def test_a_shard_that_another_job_made_meanwhile_is_no_error(text, tmp_path):
    """It makes the shard between the two questions whether it is missing."""
    folder, asked = tmp_path / "tokens", []

    def is_missing(i):
        asked.append(i)
        if len(asked) == 2:
            lines(tmp_path / "0.jsonl", ["good"])
            make(text, folder, shards=[0])
        return bool(missing(text.source, folder, "train", 1, 0))

    (tmp_path / "0.jsonl").write_text("no json\n")
    assert chunk.tokenize(text, "train", [0], folder, is_missing) == 1
    assert asked == [0, 0]
    assert names(folder) == ["train-00000.json"]


def test_a_killed_job_leaves_complete_shards_and_the_next_makes_the_rest(text, tmp_path):
    folder = tmp_path / "tokens"
    lines(tmp_path / "2.jsonl", [f"long {k}" for k in range(300_000)])
    command = [sys.executable, "-m", "lmscaling", "tokenize", f"train-00000-{N - 1:05d}", folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as job:
        assert job.stdin
        job.stdin.write(text.to_json(N).encode())
        job.stdin.close()
        deadline = time.monotonic() + 120
        while not list(folder.glob(".train-00002.bin.*")):
            assert time.monotonic() < deadline
            assert job.poll() is None
            time.sleep(0.02)
        job.kill()
    lines(tmp_path / "2.jsonl", ["short"])
    assert names(folder) == ["train-00000.json", "train-00001.json"]
    assert make(text, folder) == N - 2
    assert not [p.name for p in folder.iterdir() if p.name.startswith(".")]


def test_a_name_of_a_chunk_says_its_shards():
    name = "validation-00016-00031"
    assert str(Chunk.named(name)) == name
    assert Chunk.named(name).numbers == range(16, 32)
    with refused(UserError, "train-16"):
        Chunk.named("train-16")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with four files, of which the row names five."""
    (tmp_path / "hub").mkdir()
    for i in range(4):
        lines(tmp_path / "hub" / f"{i}.json", [f"{i} {k}" for k in range(9)])
    with serving("owner/texts", tmp_path / "hub", monkeypatch) as server:
        yield server


def test_files_are_fetched_once_side_by_side_and_used_up(hub, tmp_path):
    hub.seconds = 0.5
    sources, files = tmp_path / "sources", HUB.source.files("train")[:4]
    n_bytes = chunk.fetch(HUB.source, files, sources, at_once=4)
    assert n_bytes == sum((tmp_path / "hub" / file).stat().st_size for file in files)
    assert max(hub.at_once) > 1
    assert chunk.fetch(HUB.source, files, sources, at_once=1) == n_bytes
    assert len(hub.sent) == 4
    make(HUB, tmp_path / "tokens", range(4), sources=sources)
    assert sorted(p.name for p in sources.iterdir()) == [f"{i}.json.fetched.json" for i in range(4)]
    sidecar = json.loads((tmp_path / "tokens" / "train-00003.json").read_text())
    assert sidecar["source"]["checked_against"] == "hub"


def test_a_file_that_the_hub_lacks_or_that_is_bad_stops_no_other_and_a_bad_one_stays(hub, tmp_path):
    sources = tmp_path / "sources"
    with refused(UserError, "4.json of owner/texts at 1111"):
        chunk.fetch(HUB.source, HUB.source.files("train")[::-1], sources, at_once=1)
    assert len(list(sources.glob("?.json"))) == 4
    (sources / "1.json").write_text("changed\n")
    with refused(UserError, "d train shard 1"):
        make(HUB, tmp_path / "tokens", range(4), sources=sources)
    assert [p.name for p in sources.glob("?.json")] == ["1.json"]
