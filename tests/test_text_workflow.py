"""From a hub to a manifest by the real workflow, and what is not done twice."""

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from hub import COMMIT, serving
from test_workflow import product

from lmscaling.config import grid, study_file
from lmscaling.plan import text_needs

FILES = {"train": "en/t.{shard:05d}.json.gz", "validation": "en/v.{shard:05d}.json.gz"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with two training files and a validation file."""
    folder = tmp_path / "hub"
    (folder / "en").mkdir(parents=True)
    for split, n in (("train", 3), ("validation", 1)):
        for i in range(n):
            with gzip.open(folder / FILES[split].format(shard=i), "wt") as file:
                for k in range(200):
                    file.write(json.dumps({"text": f"{split} {i} document {k}"}) + "\n")
    with serving("owner/texts", folder) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def place(tmp_path):
    """The product with a study on the hub's text, nothing fetched."""
    made = product(tmp_path / "product")
    row = {"kind": "hub", "repository": "owner/texts", "revision": COMMIT, "shards": 2, **FILES}
    made.study(datasets={"texts": row | {"documents": [200]}}, dataset="texts", evaluate=None)
    return made


def manifest(place):
    study = study_file.read_study([place.root / "config/study.yaml", place.root / "tiny.yaml"])
    return f"results/tiny/tokens/{grid.expand(study).tokens}/manifest.json"


def jobs(plan, rule):
    return [out for name, out in plan if name == rule]


def test_a_text_is_fetched_tokenized_and_grows_by_what_is_new(place, hub):
    """Its downloads are removed; another backend or mirror of the same text makes nothing anew."""
    target = manifest(place)
    hub.seconds = 1  # so that two downloads would meet
    place.snakemake("--cores", "4", "--resources", "downloads=1", "--", target)
    assert max(hub.at_once) == 1
    folder = (place.root / target).parent
    sidecar = json.loads((folder / "train-00001.json").read_text())
    assert sidecar["source"]["repository"] == "owner/texts"
    assert sidecar["source"]["checked_against"] == "hub"
    assert sidecar["documents"] == 200
    assert not list((place.results / "sources").rglob("*.json.gz"))

    row = yaml.safe_load((place.root / "tiny.yaml").read_text())["datasets"]["texts"]
    simple = {"encoding": "bytes", "vocab_size": 257, "backend": "simple"}
    place.study(datasets={"texts": row | {"shards": 3}}, tokenizers={"bytes": simple})
    assert manifest(place) == target
    plan = place.plan(target)
    assert [len(jobs(plan, rule)) for rule in ("fetch", "tokenize", "manifest")] == [1, 1, 1]

    before, asked = (folder / "train-00001.bin").read_bytes(), hub.asked
    (folder / "train-00001.bin").unlink()
    place.study(datasets={"texts": row | {"mirror": str(hub.folder)}})
    place.snakemake("--cores", "2", target)
    assert (folder / "train-00001.bin").read_bytes() == before
    assert hub.asked == asked


@pytest.mark.ci
def test_shards_are_made_and_verified_once_and_again_where_they_are_bad_or_gone(place):
    row = {"kind": "jsonl", "train": ["a.jsonl", "b.jsonl"], "validation": ["v.jsonl"]}
    place.study(datasets={"texts": row})
    target = manifest(place)
    folder, verified = (place.root / target).parent, target.replace("manifest", "verified")

    # A bad file leaves the other shards of its chunk.
    good = (place.root / "a.jsonl").read_text()
    (place.root / "a.jsonl").write_text("no json\n")
    done = place.snakemake("--cores", "2", target, check=False)
    assert done.returncode == 1
    assert "a.jsonl, line 1:" in done.stdout + done.stderr
    assert {p.name for p in folder.glob("train-*")} == {"train-00001.bin", "train-00001.json"}
    (place.root / "a.jsonl").write_text(good)
    inode = (folder / "train-00001.bin").stat().st_ino
    place.snakemake("--cores", "2", target)
    assert (folder / "train-00001.bin").stat().st_ino == inode

    # A damaged shard stops the runs before they begin, and says what to type.
    shard = folder / "train-00000.bin"
    whole = shard.read_bytes()
    data = bytearray(whole)
    data[2000] ^= 1
    shard.write_bytes(data)
    done = place.snakemake("--cores", "2", "all", check=False)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert re.search(r"1 of 3 .*rm -f train-00000\.\*", said)
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
    row["train"] = ["a.jsonl", "v.jsonl"]
    place.study(datasets={"texts": row})
    assert manifest(place) == target
    plan = place.plan("all")
    assert [Path(out).stem for out in jobs(plan, "tokenize")] == ["train-00000-00001"]
    assert jobs(plan, "verify") == [verified]


def test_supply_counts_what_is_missing(tmp_path, values):
    made = grid.expand(values)
    row = made.study.datasets[made.study.dataset]
    assert text_needs.missing(row, tmp_path, "train", 1) == [0]
    (tmp_path / "train-00000.bin").touch()
    assert text_needs.missing(row, tmp_path, "train", 1) == [0]
    sidecar = {"source": {"files": row.files("train")[0]}}
    (tmp_path / "train-00000.json").write_text(json.dumps(sidecar))
    assert text_needs.missing(row, tmp_path, "train", 1) == []
