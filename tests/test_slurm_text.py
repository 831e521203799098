"""Text on a real Slurm: a partition that fetches, and a job that comes when all is done."""

import subprocess
import sys

import pytest
from conftest import ROOT
from hub import COMMIT
from product import documents
from slurm_cluster import PATIENCE_SECONDS, Study, eventually

pytestmark = [pytest.mark.slurm, pytest.mark.ci, pytest.mark.race]

HUB = """
import sys, time
from pathlib import Path
from hub import serving
with serving("owner/texts", Path(sys.argv[1])) as server:
    print(server.url, flush=True)
    time.sleep(999)
"""


@pytest.fixture
def hub(cluster, tmp_path, monkeypatch):
    """A hub inside the cluster with four files."""
    (tmp_path / "hub").mkdir()
    documents(tmp_path / "hub", t0=50, t1=50, t2=50, v0=50)
    path = f"PYTHONPATH={ROOT / 'src'}:{ROOT / 'tests'}"
    words = cluster.command(tmp_path, path, sys.executable, "-c", HUB, str(tmp_path / "hub"))
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    monkeypatch.setenv("HF_ENDPOINT", server.stdout.readline().strip())
    yield
    server.kill()
    server.wait()


def test_a_late_job_of_text_touches_no_shard_and_fetch_runs_where_the_profile_says(
    cluster, hub, tmp_path
):
    row = {
        "kind": "hub", "repository": "owner/texts", "revision": COMMIT, "shards": 3,
        "train": "t{shard}.jsonl", "validation": "v{shard}.jsonl", "shards_per_job": 2,
    }  # fmt: skip
    study = Study(cluster, tmp_path / "x", datasets={"lines": row})
    (folder,) = study.results.glob("tokens/*")
    for path in folder.iterdir():
        path.unlink()
    target = str((folder / "manifest.json").relative_to(study.root))
    words = ["--set-resources", "fetch:slurm_partition=main", "--", target]

    first = study.start(*words, partition="closed")
    (late,) = eventually(lambda: cluster.jobs("%i", partition="closed"), "job that waits")
    cluster.kill(study.pid)
    first.wait(PATIENCE_SECONDS)
    study.finish(study.start("--unlock"))
    study.finish(study.start(*words))
    said = study.logged()
    assert "\nrule fetch:" in said
    assert "localrule fetch:" not in said
    shards = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.glob("*-?????.[bjf]*")}
    assert len(shards) == 2 * 4 + 1

    cluster.run("scontrol", "update", "PartitionName=closed", "State=UP")
    eventually(lambda: late not in cluster.jobs("%i"), "end of the late job")
    cluster.run("scontrol", "update", "PartitionName=closed", "State=DOWN")
    assert "JobState=COMPLETED" in cluster.run("scontrol", "show", "job", late)
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in shards} == shards
    (log,) = (study.results / "logs" / "tokenize").rglob("validation-00000-00000.log")
    assert "shards exist" in log.read_text()
