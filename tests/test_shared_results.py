"""Several submissions on one folder of results, on a real Slurm: a finished file stays."""

import json
import re
import shutil
import threading

import pytest
from conftest import sentence
from slurm_cluster import Study, eventually, stand_still

pytestmark = [pytest.mark.slurm, pytest.mark.ci]

SHARES = [0.25, 0.5]


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
    eventually(second.waiting, "job that waits")
    assert any({run, job} <= set(re.findall(r"[\w.-]+", x)) for x in second.said().splitlines())
    first.go_on(run)
    record = first.results / "runs" / run / "run.json"
    eventually(record.is_file, "record")
    before = record.stat().st_ino  # Snakemake may touch it
    shutil.rmtree(first.scratch(run), ignore_errors=True)
    with Looks(record) as seen:
        first.finish(trains)
        second.finish(late)
    assert (seen.wrong, record.stat().st_ino) == (0, before)
    text = (second.results / "logs" / "train" / f"{run}.log").read_text()
    sentence("train", next(line for line in text.splitlines() if "stays" in line))


def test_a_record_survives_the_failure_of_a_job_and_its_retry(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x", budget="4000 updates")
    other = Study(cluster, tmp_path / "y")
    other.finish(other.start())
    (run,) = study.runs
    snakemake = study.start("--retries", "1", "--", f"results/tiny/runs/{run}/run.json")
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


def test_jobs_read_the_study_and_the_program_as_they_were_submitted(cluster, tmp_path, closed):
    study = Study(cluster, tmp_path / "x", branches={"shares": SHARES})
    snakemake = study.start(partition="closed")
    eventually(study.waiting, "job that waits")
    texts = {
        path: path.read_text()
        for name in ("tiny.yaml", "config/study.yaml", "workflow/Snakefile", "Snakefile")
        for path in [study.root / name]
    }
    for path in texts:
        path.write_text("half: [saved")
    open_partition(cluster, "UP")
    study.finish(snakemake)
    assert {study.record(run)["status"] for run in study.runs} == {"done"}
    (copy,) = (study.results / "submitted").iterdir()
    assert (copy / "src" / "lmscaling" / "workflow" / "runs.py").is_file()
    for path, text in texts.items():
        path.write_text(text.replace("budget: 4 updates", "budget: 30 updates"))
    study.finish(study.start("-n", "--", "results/tiny/study.json"))
    assert re.search("4 updates.*30 updates", study.said())


def test_one_job_trains_the_branches_of_a_trunk(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x", branches={"shares": SHARES})
    study.finish(study.start())
    last = next(run for run in study.branches if f"-b{SHARES[-1]}-" in run)
    study.finish(study.start("--", f"results/tiny/runs/{last}/run.json"))
    assert {study.record(run)["status"] for run in study.branches} == {"done"}
    assert len(re.findall(r"^rule branch:$", study.logged(), re.MULTILINE)) == 1


def test_a_job_costs_at_most_2_cpu_seconds_beside_its_command(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x")
    (run,) = study.runs
    snakemake = study.start(partition="closed")
    job = eventually(study.waiting, "job that waits")
    script = cluster.run("scontrol", "write", "batch_script", job, "-")
    cluster.kill(study.pid)
    snakemake.wait(60)
    cluster.run("scancel", job)
    timed = study.root / "timed.sh"
    # Of the command of the rule, Slurm's step is the parent and not this shell.
    (study.root / "job.sh").write_text(script)
    timed.write_text("#!/bin/bash\nTIMEFORMAT='%U %S'\ntime sh job.sh\n")
    asked = ["--wait", f"--chdir={study.root}", "--output=timed.txt", "--mem=2G"]
    cluster.run("sbatch", *asked, "--cpus-per-task=4", str(timed))
    said = (study.root / "timed.txt").read_text()
    assert study.record(run)["status"] == "done", said
    assert sum(map(float, said.split()[-2:])) < 2.0, said
