"""Several submissions on one folder of results, on a real Slurm: a finished file stays."""

import json
import re
import shutil
import threading

import pytest
from conftest import sentence
from slurm_cluster import Study, eventually, stand_still

pytestmark = [pytest.mark.slurm, pytest.mark.ci]


@pytest.fixture(autouse=True)
def node(cluster):
    cluster.heal()


class Looks:
    """How often a file was absent or different while a block ran."""

    def __init__(self, path):
        self.path, self.expected = path, path.read_bytes()
        self.looks = self.wrong = 0
        self.over = threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def __exit__(self, *error):
        eventually(lambda: self.looks >= 400, "400 looks")
        self.over.set()
        self.thread.join()

    def look(self):
        while not self.over.wait(0.01):
            self.looks += 1
            try:
                self.wrong += self.path.read_bytes() != self.expected
            except OSError:
                self.wrong += 1


def open_partition(cluster, state):
    cluster.run("scontrol", "update", "PartitionName=closed", f"State={state}")


@pytest.fixture
def closed(cluster):
    yield
    open_partition(cluster, "DOWN")


def test_a_late_job_of_another_checkout_leaves_a_finished_record_alone(cluster, tmp_path):
    first = Study(cluster, tmp_path / "a", budget="4000 updates")
    (run,) = first.runs
    second = Study(cluster, tmp_path / "b", budget="4000 updates")
    shutil.rmtree(second.root / "results")
    (second.root / "results").symlink_to(first.root / "results")
    trains = first.start()
    stand_still((first, run))
    job = first.lock(run)["job"]
    late = second.start()
    waits = [f"afterany:{job}(unfulfilled)|{second.root}"]
    eventually(lambda: cluster.jobs("%E|%Z", states="PENDING") == waits, "job that waits")
    first.go_on(run)
    record = first.results / "runs" / run / "run.json"
    eventually(record.is_file, "record")
    before = record.stat().st_ino  # Snakemake may touch it
    with Looks(record) as seen:
        first.finish(trains)
        second.finish(late)
    assert (seen.wrong, record.stat().st_ino) == (0, before)
    assert first.record(run)["attempts"] == 1
    text = (second.results / "logs" / "train" / f"{run}.log").read_text()
    sentence("train", next(line for line in text.splitlines() if "stays" in line))


def test_a_record_survives_the_failure_of_a_job_and_its_retry(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x", budget="4000 updates")
    other = Study(cluster, tmp_path / "y")
    other.finish(other.start())
    (run,) = study.runs
    snakemake = study.start("--retries", "1", "--", f"results/tiny/runs/{run}.json")
    stand_still((study, run))
    job = study.lock(run)["job"]
    folder = study.results / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    values = other.record(*other.runs) | {"run": run}
    values.pop("record_sha256")
    (folder / "run.json").write_text(json.dumps(values))
    with Looks(folder / "run.json") as seen:
        study.go_on(run)
        cluster.run("scancel", job)
        study.finish(snakemake)
    assert seen.wrong == 0


def test_jobs_read_the_study_as_it_was_planned(cluster, tmp_path, closed):
    study = Study(cluster, tmp_path / "x")
    snakemake = study.start(partition="closed")
    eventually(study.waiting, "job that waits")
    path = study.root / "tiny.yaml"
    path.write_text(path.read_text().replace("budget: 4 updates", "budget: 30 updates"))
    open_partition(cluster, "UP")
    study.finish(snakemake)
    assert {study.record(run)["updates"] for run in study.runs} == {4}
    study.finish(study.start("-n", "--", "results/tiny/study.json"))
    assert re.search("4 updates.*30 updates", study.said())


def test_a_run_that_is_forced_or_deleted_on_slurm_is_trained_again(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x")
    study.finish(study.start())
    (run,) = study.runs
    first = study.record(run)["started"]
    study.finish(study.start("-f", "--", *study.targets))
    second = study.record(run)["started"]
    (study.root / study.targets[0]).unlink()
    study.finish(study.start())
    assert len({first, second, study.record(run)["started"]}) == 3
    earlier = study.results.glob(f"runs/{run}/earlier/*/run.json")
    assert {json.loads(path.read_text())["started"] for path in earlier} == {first, second}
