"""From a hub to a manifest by the real workflow, and what is not done twice."""

import gzip
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from conftest import refused
from hub import COMMIT, serving
from test_data import corpus, lines
from test_workflow import product

from lmscaling.config import grid, study_file
from lmscaling.data.tokenize import tokenize_all
from lmscaling.errors import UserError
from lmscaling.plan.text_needs import Chunk, missing

FILES = {"train": "en/t.{00000..00002}.json.gz", "validation": "en/v.00000.json.gz"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    folder = tmp_path / "hub"
    (folder / "en").mkdir(parents=True)
    for split, n in (("train", 3), ("validation", 1)):
        for i in range(n):
            texts = [{"text": f"{split} {i} document {k}"} for k in range(200)]
            data = "".join(json.dumps(text) + "\n" for text in texts).encode()
            (folder / f"en/{split[0]}.{i:05d}.json.gz").write_bytes(gzip.compress(data))
    with serving("owner/texts", folder, monkeypatch) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def place(tmp_path):
    made = product(tmp_path / "product")
    row = {"kind": "hub", "repository": "owner/texts", "revision": COMMIT, "shards": 2, **FILES}
    made.study(datasets={"texts": row | {"documents": [200]}}, dataset="texts", evaluate=None)
    return made


def manifest(place):
    study = study_file.read_study([place.root / "config/study.yaml", place.root / "tiny.yaml"])
    return f"results/tiny/tokens/{grid.expand(study).tokens}/manifest.json"


def jobs(plan, rule):
    return [out for name, out in plan if name == rule]


def test_a_text_of_the_hub_is_tokenized_and_grows_by_what_is_new(place, hub):
    """A mirror of the same text makes nothing anew."""
    target = manifest(place)
    place.snakemake("--cores", "2", "--", target)
    folder = (place.root / target).parent
    sidecar = json.loads((folder / "train-00001.json").read_text())
    assert sidecar["source"]["repository"] == "owner/texts"
    assert sidecar["documents"] == 200

    row = yaml.safe_load((place.root / "tiny.yaml").read_text())["datasets"]["texts"]
    place.study(datasets={"texts": row | {"shards": 3}})
    assert manifest(place) == target
    plan = place.plan(target)
    assert [len(jobs(plan, rule)) for rule in ("tokenize", "manifest")] == [1, 1]

    before = (folder / "train-00001.bin").read_bytes()
    hub.sent.clear()
    (folder / "train-00001.bin").unlink()
    place.study(datasets={"texts": row | {"mirror": str(hub.folder)}})
    place.snakemake("--cores", "2", target)
    assert (folder / "train-00001.bin").read_bytes() == before
    assert hub.sent == []


@pytest.mark.ci
def test_shards_are_made_and_verified_once_and_again_where_they_are_bad_or_gone(place):
    row = {"kind": "jsonl", "train": ["a.jsonl", "b.jsonl"], "validation": ["v.jsonl"]}
    place.study(datasets={"texts": row})
    target = manifest(place)
    folder, verified = (place.root / target).parent, target.replace("manifest", "verified")
    place.snakemake("--cores", "2", target)
    inode = (folder / "train-00001.bin").stat().st_ino

    # A damaged shard stops the runs before they begin, and says what to type.
    shard = folder / "train-00000.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    done = place.snakemake("--cores", "2", "all", check=False)
    assert done.returncode == 1
    assert re.search(r"1 of 3 .*rm -f train-00000\.\*", done.stdout + done.stderr)
    assert not list(place.results.glob("runs/*/run.json"))

    # One that is gone is made again alone, also where a killed workflow has left marks of chunks.
    for path in folder.glob("train-00000.*"):
        path.unlink()
    assert (folder / "train-00000-00001.tokenized").exists()
    shutil.rmtree(place.root / ".snakemake")
    place.snakemake("--cores", "2", verified)
    assert (shard.read_bytes(), (folder / "train-00001.bin").stat().st_ino) == (whole, inode)
    log = place.results / "logs" / "verify" / f"{folder.name}.log"
    assert re.search(r": [13] shards\b", log.read_text())

    # Files that are listed anew make their own shards, and what is new is verified.
    place.study(datasets={"texts": row | {"train": ["a.jsonl", "v.jsonl"]}})
    plan = place.plan("all")
    assert [Path(out).stem for out in jobs(plan, "tokenize")] == ["train-00000-00001"]
    assert jobs(plan, "verify") == [verified]


def test_supply_counts_what_is_missing_and_a_name_of_a_chunk_says_its_shards(tmp_path, values):
    made = grid.expand(values)
    row = made.study.datasets[made.study.dataset]
    sidecar = {"source": {"files": row.files("train")[0]}}
    for name, content, n in (("bin", "", [0]), ("json", json.dumps(sidecar), [])):
        assert missing(row, tmp_path, "train", 1) == [0]
        (tmp_path / f"train-00000.{name}").write_text(content)
        assert missing(row, tmp_path, "train", 1) == n
    name = "validation-00016-00031"
    assert str(Chunk.named(name)) == name
    assert Chunk.named(name).numbers == range(16, 32)
    with refused(UserError, "train-16"):
        Chunk.named("train-16")


# Many shards in one process: what exists is kept, and what fails stops no other
N = 5


@pytest.fixture
def text(tmp_path):
    train = [lines(tmp_path / f"{i}.jsonl", [f"{i} {k}" for k in range(9)]) for i in range(N)]
    validation = [lines(tmp_path / "v.jsonl", ["held out"])]
    return corpus({"kind": "jsonl", "train": train, "validation": validation})


def make(text, folder, shards: Iterable[int] = range(N), **options):
    def is_missing(i):
        return bool(missing(text.source, folder, "train", i + 1, i))

    return tokenize_all(text, "train", shards, folder, is_missing, **options)


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
    assert tokenize_all(text, "train", [0], folder, is_missing) == 1
    assert asked == [0, 0]
    assert names(folder) == ["train-00000.json"]
