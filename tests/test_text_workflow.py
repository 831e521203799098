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


def test_a_text_is_fetched_tokenized_and_its_downloads_removed(place, hub):
    target = manifest(place)
    plan = place.plan(target)
    assert len(jobs(plan, "fetch")) == len(jobs(plan, "tokenize")) == 2
    place.snakemake("--cores", "2", target)
    folder = (place.root / target).parent
    sidecar = json.loads((folder / "train-00001.json").read_text())
    assert sidecar["source"]["repository"] == "owner/texts"
    assert sidecar["source"]["checked_against"] == "hub"
    assert sidecar["documents"] == 200
    assert not list((place.results / "sources").rglob("*.json.gz"))
    assert place.plan(target) == []


def test_a_text_that_grows_fetches_only_what_is_new(place, hub):
    target = manifest(place)
    place.snakemake("--cores", "2", target)
    place.study(datasets={"texts": {**_row(place), "shards": 3}})
    assert manifest(place) == target
    plan = place.plan(target)
    assert [len(jobs(plan, rule)) for rule in ("fetch", "tokenize", "manifest")] == [1, 1, 1]


@pytest.mark.ci
def test_a_backend_or_a_mirror_that_changes_makes_nothing_anew(place, hub, tmp_path):
    target = manifest(place)
    place.snakemake("--cores", "2", target)
    before = (place.root / target).read_bytes()
    row = _row(place) | {"mirror": str(tmp_path / "nowhere")}
    place.study(
        datasets={"texts": row},
        tokenizers={"bytes": {"encoding": "bytes", "vocab_size": 257, "backend": "simple"}},
    )
    assert place.plan(target) == []
    (place.root / target).with_name("train-00001.bin").unlink()
    assert jobs(place.plan(target), "fetch") == []
    place.study(datasets={"texts": row | {"mirror": str(tmp_path / "hub")}})
    place.snakemake("--cores", "2", target)
    assert (place.root / target).read_bytes() == before


@pytest.mark.ci
@pytest.mark.parametrize(("allowed", "at_once"), [(1, {1}), (3, {2, 3})])
def test_no_more_downloads_run_at_once_than_the_resource_allows(place, hub, allowed, at_once):
    hub.seconds = 4
    place.snakemake("--cores", "4", "--resources", f"downloads={allowed}", "--", manifest(place))
    assert max(hub.at_once) in at_once


def test_a_list_of_files_that_changes_makes_its_shard_anew(place):
    row = {"kind": "jsonl", "train": ["a.jsonl", "b.jsonl"], "validation": ["v.jsonl"]}
    place.study(datasets={"texts": row})
    target = manifest(place)
    place.snakemake("--cores", "2", target)
    row["train"] = ["a.jsonl", "v.jsonl"]
    place.study(datasets={"texts": row})
    assert manifest(place) == target
    plan = place.plan(target)
    assert [Path(out).stem for out in jobs(plan, "tokenize")] == ["train-00000-00001"]


@pytest.mark.ci
def test_a_deleted_shard_is_made_again_alone_also_where_marks_were_left(place):
    """A workflow that was killed leaves the marks of complete chunks."""
    row = {"kind": "jsonl", "train": ["a.jsonl", "b.jsonl"], "validation": ["v.jsonl"]}
    place.study(datasets={"texts": row})
    target = manifest(place)
    place.snakemake("--cores", "2", target)
    folder = (place.root / target).parent
    before = {p: (p.stat().st_ino, p.read_bytes()) for p in folder.glob("train-*.*")}
    gone = [folder / f"train-00001.{end}" for end in ("bin", "json")]
    assert (folder / "train-00000-00001.tokenized").exists()
    for path in gone:
        path.unlink()
    shutil.rmtree(place.root / ".snakemake")
    assert [rule for rule, _ in place.plan(target)] == ["manifest", "tokenize"]
    place.snakemake("--cores", "2", target)
    for path, (inode, content) in before.items():
        assert path.read_bytes() == content
        assert path in gone or path.suffix == ".tokenized" or path.stat().st_ino == inode
    assert place.plan(target) == []


def test_a_bad_file_leaves_the_other_shards_of_its_chunk(place):
    row = {"kind": "jsonl", "train": ["a.jsonl", "b.jsonl"], "validation": ["v.jsonl"]}
    place.study(datasets={"texts": row})
    good = (place.root / "a.jsonl").read_text()
    (place.root / "a.jsonl").write_text("no json\n")
    target = manifest(place)
    done = place.snakemake("--cores", "2", target, check=False)
    assert done.returncode == 1
    assert re.search("shard 0: a.jsonl, line 1:", done.stdout + done.stderr)
    folder = (place.root / target).parent
    assert {p.name for p in folder.glob("train-*")} == {"train-00001.bin", "train-00001.json"}
    (place.root / "a.jsonl").write_text(good)
    inode = (folder / "train-00001.bin").stat().st_ino
    place.snakemake("--cores", "2", target)
    assert (folder / "train-00001.bin").stat().st_ino == inode


@pytest.mark.ci
def test_shards_are_verified_once_before_the_first_run_and_new_ones_when_the_text_grows(place):
    row = {"kind": "jsonl", "train": ["a.jsonl"], "validation": ["v.jsonl"]}
    place.study(datasets={"texts": row})
    target = manifest(place)
    verified = target.replace("manifest.json", "verified.json")
    assert jobs(place.plan("all"), "verify") == [verified]
    place.snakemake("--cores", "2", verified)
    log = place.results / "logs" / "verify" / f"{Path(verified).parent.name}.log"
    assert re.search(r": 2 shards\b", log.read_text())
    assert jobs(place.plan("all"), "verify") == []
    row["train"].append("b.jsonl")
    place.study(datasets={"texts": row})
    place.snakemake("--cores", "2", verified)
    assert re.search(r": 1 shards\b.*; 2 others\b", log.read_text())


@pytest.mark.ci
def test_a_damaged_shard_stops_the_runs_before_they_begin_and_says_what_to_type(place):
    row = {"kind": "jsonl", "train": ["a.jsonl"], "validation": ["v.jsonl"]}
    place.study(datasets={"texts": row})
    target = manifest(place)
    place.snakemake("--cores", "2", target)
    shard = (place.root / target).with_name("train-00000.bin")
    data = bytearray(shard.read_bytes())
    data[2000] ^= 1
    shard.write_bytes(data)
    done = place.snakemake("--cores", "2", "all", check=False)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert re.search(r"1 of 2 shards\b.* rm -f train-00000\.\*", said)
    assert not list(place.results.glob("runs/*/run.json"))
    for path in shard.parent.glob("train-00000.*"):
        path.unlink()
    verified = target.replace("manifest.json", "verified.json")
    place.snakemake("--cores", "2", verified)
    assert (place.root / verified).exists()


def test_supply_counts_what_is_missing(tmp_path, values):
    made = grid.expand(values)
    row = made.study.datasets[made.study.dataset]
    assert text_needs.missing(row, tmp_path, "train", 1) == [0]
    (tmp_path / "train-00000.bin").touch()
    assert text_needs.missing(row, tmp_path, "train", 1) == [0]
    sidecar = {"source": {"files": row.files("train")[0]}}
    (tmp_path / "train-00000.json").write_text(json.dumps(sidecar))
    assert text_needs.missing(row, tmp_path, "train", 1) == []


def _row(place):
    return yaml.safe_load((place.root / "tiny.yaml").read_text())["datasets"]["texts"]
