"""The workflow on a real Slurm: what is typed, and every way in which a job can be lost."""

import json
import re
import subprocess
import sys
import time

import pytest
from conftest import ROOT, calibration, write_tokens
from hub import COMMIT
from product import documents
from slurm_cluster import PATIENCE_SECONDS, Study, eventually, stand_still

pytestmark = [pytest.mark.slurm, pytest.mark.ci, pytest.mark.race]

OLD_ENOUGH_SECONDS = 15
"""Slurm requeues a job that a node does not know if it is older than that: BatchStartTimeout and
MessageTimeout of slurm_box, and more than a second for its coarse clock."""


@pytest.fixture(autouse=True)
def node(cluster):
    """A test that failed must not be the reason why the next one fails."""
    cluster.heal()


def submitted(study):
    return study.logged().count("submitted with SLURM jobid")


def assert_whole(study, run, n_attempts):
    """The record counts the attempts, and the surviving rows are those of one run."""
    record, rows = study.record(run), study.log(run)
    assert (record["status"], record["attempts"]) == ("done", n_attempts), study.said()
    starts = {row["attempt"]: row["start_update"] for row in rows if row["record"] == "header"}
    assert sorted(starts.values()) == list(starts.values())
    kept = [
        row["update"] for row in rows
        if row["record"] == "update"
        and all(row["update"] <= at for a, at in starts.items() if a > row["attempt"])
    ]  # fmt: skip
    assert kept == list(range(1, record["updates"] + 1))
    return record, starts


def assert_saved(study, run, n_attempts=2):
    """It was asked to stop, went on where it was, and has lost nothing."""
    record, starts = assert_whole(study, run, n_attempts)
    assert starts[2] > 0
    assert record["lost_seconds"] == 0


def restarts(cluster, job):
    shown = cluster.run("scontrol", "show", "job", job)
    return int(re.findall(r"Restarts=(\d+)", shown)[0])


def test_a_budget_longer_than_a_job_is_spent_by_one_job_that_is_queued_again(cluster, tmp_path):
    # A job trains for 72 seconds less its start, which takes half a minute where much else runs.
    study = Study(cluster, tmp_path / "x", budget="72 seconds", job_hours=0.02)
    (run,) = study.runs
    study.finish(study.start("--retries", "0"))
    record, rows = study.record(run), study.log(run)
    assert (record["status"], record["lost_seconds"]) == ("done", 0)
    assert record["attempts"] > 1
    assert submitted(study) == 1
    (job,) = re.findall(r"SLURM jobid (\d+)", study.logged())
    assert restarts(cluster, job) == record["attempts"] - 1
    updates = [row["update"] for row in rows if row["record"] == "update"]
    assert updates == list(range(1, record["updates"] + 1))


def test_a_run_that_is_preempted_and_queued_again_goes_on(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x", budget="4000 updates")
    snakemake = study.start("--retries", "0")
    stand_still((study, study.runs[0]))
    words = ("srun", "--partition=urgent", "--cpus-per-task=64", "true")
    urgent = subprocess.Popen(cluster.command(tmp_path, *words))
    study.go_on_once_asked_to_stop(study.runs[0])
    assert urgent.wait(PATIENCE_SECONDS) == 0
    study.finish(snakemake)
    assert_saved(study, study.runs[0])


def test_after_ctrl_c_or_a_kill_the_same_command_goes_on(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x", budget="4000 updates")
    (run,) = study.runs
    interrupted = study.start()
    stand_still((study, run))
    cluster.run("kill", "-INT", study.pid)
    study.go_on_once_asked_to_stop(run)
    assert interrupted.wait(PATIENCE_SECONDS) == 1

    killed = study.start()
    stand_still((study, run), attempt=2)
    job = study.lock(run)["job"]
    cluster.kill(study.pid)
    killed.wait(PATIENCE_SECONDS)
    study.finish(study.start("--unlock"))
    last = study.start()

    def waiting():
        lines = cluster.jobs("%E|%Z", states="PENDING")  # other tests' jobs wait too
        return [line.split("|")[0] for line in lines if line.endswith(f"|{study.root}")]

    eventually(lambda: waiting() == [f"afterany:{job}(unfulfilled)"], "job that waits")
    assert (study.lock(run)["job"], study.lock(run)["cluster"]) == (job, "box")
    study.go_on(run)
    study.finish(last)
    assert_saved(study, run)


def test_cells_side_by_side_lose_nothing_unless_they_are_killed_and_a_failing_one_stops_no_other(
    cluster, tmp_path
):
    study = Study(cluster, tmp_path / "x", 6, budget="4000 updates")
    *training, broken = study.runs
    left, cancelled, requeued, limited, killed = training
    study.scratch(broken).parent.mkdir()
    study.scratch(broken).write_text("a file where a folder must be")
    snakemake = study.start("--retries", "1", "--", *study.targets)
    stand_still(*((study, run) for run in training))
    jobs = {run: study.lock(run)["job"] for run in training}
    cluster.kill(str(study.lock(killed)["pid"]))
    study.go_on(left)
    cluster.run("scancel", jobs[cancelled])
    cluster.run("scontrol", "requeue", jobs[requeued])
    # Less than the time before its limit at which a job is warned.
    cluster.run("scontrol", "update", f"JobId={jobs[limited]}", "TimeLimit=2")
    for run in (cancelled, requeued, limited):
        study.go_on_once_asked_to_stop(run)
    study.finish(snakemake, code=1)
    begun = [study.log(run)[0]["started"] for run in training]
    assert max(begun) < min(study.record(run)["ended"] for run in training)
    record, _ = assert_whole(study, left, 1)
    assert record["lost_seconds"] == 0
    for run in (cancelled, requeued, limited):
        assert_saved(study, run)
    record, starts = assert_whole(study, killed, 2)
    assert starts[2] == 0
    first = [row for row in study.log(killed) if row["attempt"] == 1]
    assert record["lost_seconds"] <= max(row.get("train_seconds", 0.0) for row in first)
    assert record["attempt_seconds"] > record["train_seconds"]
    assert not (study.results / "runs" / broken / "run.json").exists()
    assert len(re.findall(r"SLURM jobid .*softmax-s-ctx16-s5", study.logged())) == 2
    why = "^softmax-s-ctx16-s5  failed .*(?:Not a directory|File exists)"
    assert len(re.findall(why, study.said(), re.MULTILINE)) == 1


def test_runs_are_whole_after_their_node_came_back(cluster, tmp_path):
    """One ran on while the node was away, the other died with it."""
    study = Study(cluster, tmp_path / "x", 2, budget="4000 updates")
    survivor, victim = study.runs
    snakemake = study.start()
    stand_still((study, survivor), (study, victim))
    job = study.lock(victim)["job"]
    assert {study.lock(run)["job"] for run in study.runs} <= {*cluster.jobs("%i")}

    def is_old() -> bool:
        minutes, seconds = dict(line.split("|") for line in cluster.jobs("%i|%M"))[job].split(":")
        return 60 * int(minutes) + int(seconds) >= OLD_ENOUGH_SECONDS

    eventually(is_old, "job that is old enough")
    dying = cluster.run("pgrep", "-x", "slurmd").split()
    dying += cluster.run("pgrep", "-f", rf"slurmstepd: \[{job}\.").split()
    listed = cluster.run("scontrol", "listpids", job).splitlines()[1:]
    dying += [line.split()[0] for line in listed if line.split()[0] != "-1"]
    cluster.kill(*dying)
    study.go_on(survivor)
    cluster.run("slurmd")
    study.finish(snakemake)
    assert_whole(study, survivor, 1)
    assert_whole(study, victim, 2)


def test_one_command_goes_from_a_text_to_a_figure_and_short_jobs_can_share_one(cluster, tmp_path):
    rows = {"kind": "jsonl", "train": ["a.jsonl", "b.jsonl", "c.jsonl"], "validation": ["v.jsonl"]}
    study = Study(cluster, tmp_path / "x", datasets={"lines": rows})
    documents(study.root, a=100, b=100, c=100, v=100)
    tokens = study.lose_tokens()
    grouped = ("--groups", "tokenize=shards", "--group-components", "shards=4")
    study.finish(study.start(*grouped, "--", "results/tiny/figures/learning_curves.svg"))
    assert (study.results / "figures" / "learning_curves.svg").stat().st_size > 10_000
    jobs = re.findall(r"^(localrule|rule) (\w+):$", study.logged(), re.MULTILINE)
    # The group is one job, and tokenize its only rule.
    assert {name for kind, name in jobs if kind == "rule"} == {"verify", "train"}
    assert submitted(study) == 3
    assert len(list(tokens.glob("*.bin"))) == 4


def test_cells_are_submitted_up_to_the_limit_each_with_what_it_needs(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x", 12, gpus=4, job_hours=12, budget="24 hours")
    snakemake = study.start("--jobs", "8", "--", *study.targets, partition="closed")
    eventually(lambda: len(cluster.jobs("%i", partition="closed")) >= 8, "8 jobs")
    columns = "--Format=NumNodes,NumCPUs,tres-per-job,TimeLimit,MinMemory"
    asked = cluster.run("squeue", "--noheader", "--partition=closed", columns).splitlines()
    assert {" ".join(line.split()) for line in asked} == {"1 16 gres:gpu:4 12:00:00 125G"}
    cluster.kill(study.pid)
    snakemake.wait(PATIENCE_SECONDS)
    assert len(cluster.jobs("%i", partition="closed")) == 8
    cluster.run("scancel", "--partition=closed")


def test_a_submission_waits_for_a_controller_that_is_away(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x")
    cluster.kill(*cluster.run("pgrep", "-x", "slurmctld").split())
    try:
        waits = study.start("--retries", "0")
        eventually(lambda: cluster.run("pgrep", "-f", "workflow/bin/sbatch", check=False), "sbatch")
        time.sleep(8)
        assert waits.poll() is None, study.said()
    finally:
        cluster.run("slurmctld")
    study.finish(waits)
    assert submitted(study) == 1
    assert_whole(study, study.runs[0], 1)


def test_two_ranks_train_in_one_task_of_a_job(cluster, cell, tmp_path):
    manifest = write_tokens(tmp_path / "tokens", [3000], [1000])
    (tmp_path / "cell.json").write_text(cell.to_json())
    command = [sys.executable, str(ROOT / "tests" / "on_ranks.py"), "cell.json"]
    command += [str(calibration(tmp_path, cell, micro_batch=1)), str(manifest), ".", "2"]
    environment = ["--chdir", str(tmp_path), f"PYTHONPATH={ROOT / 'src'}", "OMP_NUM_THREADS=1"]
    # Without --mem it would wait for all of the node's memory.
    step = ["srun", "--ntasks=1", "--cpus-per-task=2", "--mem=1G"]
    cluster.run("env", *environment, *step, *command)
    record = json.loads((tmp_path / "runs" / cell.run / "run.json").read_text())
    assert (record["status"], record["updates"]) == ("done", 4)


HUB = """
import sys, time
from pathlib import Path
import pytest
from hub import serving
with pytest.MonkeyPatch.context() as patch:
    with serving("owner/texts", Path(sys.argv[1]), patch) as server:
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


def test_a_late_job_of_text_touches_no_shard(cluster, hub, tmp_path):
    row = {
        "kind": "hub", "repository": "owner/texts", "revision": COMMIT, "shards": 3,
        "train": "t{0..2}.jsonl", "validation": "v0.jsonl", "shards_per_job": 2,
    }  # fmt: skip
    study = Study(cluster, tmp_path / "x", datasets={"lines": row})
    tokens = study.lose_tokens()
    words = ["--", str((tokens / "manifest.json").relative_to(study.root))]

    first = study.start(*words, partition="closed")
    late = eventually(lambda: study.waiting(partition="closed"), "job that waits")
    cluster.kill(study.pid)
    first.wait(PATIENCE_SECONDS)
    study.finish(study.start("--unlock"))
    study.finish(study.start(*words))
    shards = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in tokens.glob("*-?????.[bjf]*")}
    assert len(shards) == 2 * 4 + 1

    cluster.run("scontrol", "update", "PartitionName=closed", "State=UP")
    eventually(lambda: late not in cluster.jobs("%i"), "end of the late job")
    cluster.run("scontrol", "update", "PartitionName=closed", "State=DOWN")
    assert "JobState=COMPLETED" in cluster.run("scontrol", "show", "job", late)
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in shards} == shards
    (log,) = (study.results / "logs" / "tokenize").rglob("validation-00000-00000.log")
    assert "shards exist" in log.read_text()
