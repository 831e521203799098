"""The workflow on a real Slurm: what is typed, and every way in which a job can be lost."""

import json
import re
import subprocess
import sys
import time

import pytest
import slurm_cluster
from conftest import ROOT, calibration, write_tokens
from slurm_cluster import Study, eventually
from speed_of_python import slowness

pytestmark = [pytest.mark.slurm, pytest.mark.ci]

SEEDS = {"attention": ["softmax"], "size": ["s"], "context": [16]}
"""Cells that differ by their seed."""


@pytest.fixture(scope="module")
def limited(cluster, tmp_path_factory):
    """A run of 30 productive seconds in jobs of 20 seconds, started before the other tests. A
    slower machine needs more of a job to start, so it has both in proportion."""
    budget = round(30 * slowness())
    study = Study(
        cluster, tmp_path_factory.mktemp("limit") / "x",
        budget=f"{budget} seconds", job_hours=budget / 1.5 / 3600,
    )  # fmt: skip
    return study, study.start("--retries", "9", "--", *targets(study)), budget


@pytest.fixture(scope="module", autouse=True)
def started(request):
    """Starts the run of ``limited``, which takes long, before all tests if one of them uses it."""
    if any("limited" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("limited")


@pytest.fixture(autouse=True)
def node(cluster):
    """A test that failed must not be the reason why the next one fails."""
    cluster.heal()


def targets(study):
    return [f"results/tiny/runs/{run}/run.json" for run in study.runs]


def attempts(rows):
    """Beginning and end of each attempt, and who made it."""
    return [row for row in rows if row["record"] == "header"]


def assert_whole(study, run, n_attempts):
    """The record counts the attempts, and the surviving rows are those of one run."""
    record, rows = study.record(run), study.log(run)
    assert (record["status"], record["attempts"]) == ("done", n_attempts), study.said()
    starts = {row["attempt"]: row["start_update"] for row in attempts(rows)}
    assert sorted(starts.values()) == list(starts.values())
    kept = [
        row["update"]
        for row in rows
        if row["record"] == "update"
        and all(row["update"] <= at for a, at in starts.items() if a > row["attempt"])
    ]
    assert kept == list(range(1, record["updates"] + 1))
    return record, starts


def test_preempted_runs_go_on_whatever_the_partition_does_with_them(cluster, tmp_path):
    studies = {
        name: Study(cluster, tmp_path / name, budget="4000 updates")
        for name in ("main", "grace", "cancel")
    }
    running = {name: study.start(partition=name) for name, study in studies.items()}
    for study in studies.values():
        study.trains(study.runs[0])
    for study in studies.values():
        study.go_on(study.runs[0])
    cluster.run("srun", "--partition=urgent", "--cpus-per-task=64", "true")
    for name, study in studies.items():
        study.finish(running[name])
        record, starts = assert_whole(study, study.runs[0], 2)
        assert starts[2] > 0, f"{name}: saved nothing"
        assert record["lost_seconds"] == 0


def test_a_killed_submitter_is_started_again_and_no_cell_is_trained_twice(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x", budget="4000 updates")
    (run,) = study.runs
    first = study.start()
    job = study.trains(run)
    cluster.kill(study.pid)
    first.wait(60)
    study.finish(study.start("--unlock"))
    second = study.start()
    waiting = eventually(
        # Other tests' jobs wait too.
        lambda: [
            line.split("|")[0]
            for line in cluster.jobs("%E|%Z", states="PENDING")
            if line.endswith(f"|{study.root}")
        ],
        "job that waits for the first",
    )
    assert (study.lock(run)["job"], study.lock(run)["cluster"]) == (job, "box")
    assert waiting == [f"afterany:{job}(unfulfilled)"]
    study.go_on(run)
    study.finish(second)
    assert f"{run} is with Slurm already, as job {job}" in study.said()
    assert_whole(study, run, 1)


def test_after_ctrl_c_the_same_command_goes_on(cluster, tmp_path):
    # Long enough that it is not over before Snakemake has cancelled the job, on a slow machine too.
    study = Study(cluster, tmp_path / "x", budget="16000 updates")
    (run,) = study.runs
    first = study.start()
    study.trains(run)
    study.go_on(run)
    cluster.run("kill", "-INT", study.pid)
    assert first.wait(60) == 1
    study.finish(study.start())
    record, starts = assert_whole(study, run, 2)
    assert starts[2] > 0
    assert record["lost_seconds"] == 0


@pytest.fixture(scope="module")
def storm(cluster, tmp_path_factory):
    """Cells side by side in one Snakemake; each is disturbed in its own way."""
    study = Study(
        cluster,
        tmp_path_factory.mktemp("storm") / "x",
        budget="5000 updates",
        axes={"attention": ["softmax"], "size": ["s"], "context": [16], "seed": [0, 1, 2, 3, 4]},
    )
    left, cancelled, requeued, killed, broken = study.runs
    study.scratch(broken).parent.mkdir()
    study.scratch(broken).write_text("a file where a folder must be")
    snakemake = study.start("--retries", "1", "--", *targets(study))
    jobs = {run: study.trains(run) for run in (left, cancelled, requeued, killed)}
    cluster.kill(str(study.lock(killed)["pid"]))
    for run in (left, cancelled, requeued):
        study.go_on(run)
    cluster.run("scancel", jobs[cancelled])
    cluster.run("scontrol", "requeue", jobs[requeued])
    study.finish(snakemake, code=1)
    return study


def test_cells_train_side_by_side(storm):
    spans = [
        (attempts(storm.log(run))[0]["started"], storm.record(run)["ended"])
        for run in storm.runs[:4]
    ]
    assert max(start for start, _ in spans) < min(end for _, end in spans)


def test_an_undisturbed_cell_is_trained_in_one_attempt(storm):
    record, _ = assert_whole(storm, storm.runs[0], 1)
    assert record["lost_seconds"] == 0


@pytest.mark.parametrize("disturbed", [1, 2], ids=["scancel", "scontrol requeue"])
def test_a_cell_that_is_asked_to_stop_goes_on_and_loses_nothing(storm, disturbed):
    record, starts = assert_whole(storm, storm.runs[disturbed], 2)
    assert starts[2] > 0
    assert record["lost_seconds"] == 0


def test_what_a_killed_cell_has_lost_is_in_its_record(storm):
    record, starts = assert_whole(storm, storm.runs[3], 2)
    assert starts[2] == 0
    # It was killed at any time, perhaps before its first update was logged.
    first = [row for row in storm.log(storm.runs[3]) if row["attempt"] == 1]
    assert record["lost_seconds"] <= max(row.get("train_seconds", 0.0) for row in first)
    assert record["attempt_seconds"] > record["train_seconds"]


def test_a_failing_cell_stops_no_other_and_is_named_at_the_end_with_what_to_do(storm):
    broken, said = storm.runs[4], storm.said()
    assert not (storm.results / "runs" / broken / "run.json").exists()
    # One retry is the profile's; a budget in updates may take any time, so it has two more jobs.
    assert len(re.findall(r"submitted with SLURM jobid .*softmax-s-ctx16-s4", storm.logged())) == 4
    (told,) = re.findall(r"^softmax-s-ctx16-s4  failed .*", said, re.MULTILINE)
    assert "Not a directory" in told or "File exists" in told


@pytest.mark.parametrize(("all_of_it", "n_attempts"), [(False, 1), (True, 2)])
def test_a_run_is_whole_after_its_node_came_back(cluster, tmp_path, all_of_it, n_attempts):
    study = Study(cluster, tmp_path / "x", budget="4000 updates")
    (run,) = study.runs
    snakemake = study.start()
    job = study.trains(run)
    dying = cluster.run("pgrep", "-x", "slurmd").split()
    if all_of_it:
        dying += cluster.run("pgrep", "-f", rf"slurmstepd: \[{job}\.").split()
        listed = cluster.run("scontrol", "listpids", job).splitlines()[1:]
        dying += [line.split()[0] for line in listed if line.split()[0] != "-1"]
    cluster.kill(*dying)
    if not all_of_it:
        study.go_on(run)
    # Slurm requeues only a job older than BatchStartTimeout + MessageTimeout; see slurm_box. The
    # start of a process is no measure: it is known to a second, as the time of the boot is.
    time.sleep(5)
    cluster.run("slurmd")
    study.finish(snakemake)
    assert_whole(study, run, n_attempts)


def test_one_command_goes_from_a_text_to_a_figure(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x")
    for name, n in (("a", 400), ("v", 60)):
        rows = (json.dumps({"text": f"{name} document {i}"}) + "\n" for i in range(n))
        (study.root / f"{name}.jsonl").write_text("".join(rows))
    (tokens,) = study.results.glob("tokens/*")
    for path in tokens.iterdir():
        path.unlink()
    study.finish(study.start("--", "results/tiny/figures/learning_curves.svg"))
    assert (study.results / "figures" / "learning_curves.svg").stat().st_size > 10_000
    jobs = re.findall(r"^(localrule|rule) (\w+):$", study.logged(), re.MULTILINE)
    assert {name for kind, name in jobs if kind == "rule"} == {"tokenize", "verify", "train"}


def test_seventy_two_cells_are_submitted_in_seconds_each_with_what_it_needs(cluster, tmp_path):
    seeds = list(range(72))
    study = Study(
        cluster, tmp_path / "x", gpus=4, job_hours=12, budget="24 hours",
        axes={"attention": ["softmax"], "size": ["s"], "context": [16], "seed": seeds},
    )  # fmt: skip
    snakemake = study.start("--jobs", "60", "--", *targets(study), partition="closed")
    began = eventually(
        lambda: time.time() if cluster.jobs("%i", partition="closed") else None, "job"
    )
    eventually(lambda: len(cluster.jobs("%i", partition="closed")) >= 60, "60 jobs")
    assert time.time() - began < 30
    time.sleep(1)
    columns = "--Format=NumNodes,NumCPUs,tres-per-job,TimeLimit,MinMemory"
    asked = cluster.run("squeue", "--noheader", "--partition=closed", columns).splitlines()
    assert {tuple(line.split()) for line in asked} == {
        ("1", "16", "gres:gpu:4", "12:00:00", "125G")
    }
    assert len(asked) == 60
    cluster.kill(study.pid)
    snakemake.wait(60)
    cluster.run("scancel", "--partition=closed")


def test_a_job_is_tried_again_as_often_as_its_budget_and_the_profile_ask_for(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x", budget="60 seconds", job_hours=1 / 60)
    (run,) = study.runs
    study.scratch(run).parent.mkdir()
    study.scratch(run).write_text("a file where a folder must be")
    study.finish(study.start("--retries", "1", "--", *targets(study)), code=1)
    submitted = study.logged().count("submitted with SLURM jobid")
    assert submitted == 1 + 1 + 2  # three jobs make one budget


def test_a_wrong_partition_ends_the_submission_and_names_the_line_to_edit(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x", axes=SEEDS | {"seed": [0, 1, 2, 3]})
    profile = study.root / "profiles" / "slurm" / "config.yaml"
    lines = profile.read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if "# slurm_partition:" in line)
    lines[number - 1] = "  slurm_partition: nowhere"
    profile.write_text("\n".join(lines))
    study.finish(study.start(partition=""), code=1)
    (told,) = re.findall(r"^Slurm does not accept .*", study.said(), re.MULTILINE)
    assert "invalid partition specified: nowhere" in told
    assert f"Edit slurm_partition in profiles/slurm/config.yaml:{number}, then" in told
    assert "Trying to restart" not in study.said()
    assert "sacct" not in study.said()


def test_a_submission_waits_for_a_controller_that_is_away_until_ctrl_c(cluster, tmp_path):
    study = Study(cluster, tmp_path / "x", axes=SEEDS | {"seed": [0, 1]})
    waits = "Slurm takes no job now: slurm_load_jobs error: Unable to contact slurm controller"
    cluster.kill(*cluster.run("pgrep", "-x", "slurmctld").split())
    try:
        first = study.start()
        eventually(lambda: waits in study.said(), waits)
        cluster.run("kill", "-INT", study.pid)
        began = time.monotonic()
        assert first.wait(60) == 1
        assert time.monotonic() - began < 30 * slowness()
        second = study.start()
        eventually(lambda: study.said().count(waits) == 2, waits)
    finally:
        cluster.run("slurmctld")
    study.finish(second)
    assert study.said().count("Slurm takes no job now") == 2
    assert study.said().count("Slurm takes jobs again, after") == 1
    assert study.logged().count("submitted with SLURM jobid") == 2
    for run in study.runs:
        assert_whole(study, run, 1)


def test_jobs_that_are_short_can_share_one(cluster, tmp_path):
    files = ["a.jsonl", "b.jsonl", "c.jsonl"]
    rows = {"kind": "jsonl", "train": files, "validation": ["v.jsonl"]}
    study = Study(cluster, tmp_path / "x", datasets={"lines": rows})
    for name in (*files, "v.jsonl"):
        lines = (json.dumps({"text": f"{name} document {i}"}) + "\n" for i in range(60))
        (study.root / name).write_text("".join(lines))
    (tokens,) = study.results.glob("tokens/*")
    for path in tokens.iterdir():
        path.unlink()
    grouped = ("--groups", "tokenize=shards", "--group-components", "shards=4")
    manifest = str((tokens / "manifest.json").relative_to(study.root))
    study.finish(study.start(*grouped, "--", manifest))
    assert study.logged().count("submitted with SLURM jobid") == 1
    assert len(list(tokens.glob("*.bin"))) == 4


def test_two_ranks_train_in_one_task_of_a_job(cluster, cell, tmp_path):
    manifest = write_tokens(tmp_path / "tokens", [3000], [1000])
    (tmp_path / "cell.json").write_text(cell.to_json())
    command = [sys.executable, str(ROOT / "tests" / "on_ranks.py"), "cell.json"]
    command += [str(calibration(tmp_path, cell, micro_batch=1)), str(manifest), "."]
    done = subprocess.run(
        cluster.command(
            tmp_path, f"PYTHONPATH={ROOT / 'src'}", "OMP_NUM_THREADS=1",
            # Without --mem it would wait for all of the node's memory.
            "srun", "--ntasks=1", "--cpus-per-task=2", "--mem=1G", *command,
        ),
        capture_output=True, text=True, check=False, timeout=slurm_cluster.PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "runs" / cell.run / "run.json").read_text())
    assert (record["status"], record["updates"]) == ("done", 4)


def test_a_budget_longer_than_a_job_is_spent_to_the_update_in_several(limited):
    study, snakemake, budget = limited
    study.finish(snakemake)
    (run,) = study.runs
    record, _ = assert_whole(study, run, study.record(run)["attempts"])
    assert record["attempts"] >= 2
    last = [row for row in study.log(run) if row["record"] == "update"][-2:]
    assert last[1]["train_seconds"] >= budget > last[0]["train_seconds"]
    assert record["train_seconds"] == last[1]["train_seconds"]
    assert record["lost_seconds"] == 0
    ends = [row for row in study.log(run) if row["record"] == "end"]
    # Slurm may send its own warning a minute early (man sbatch, --signal): as long as a job is.
    # That an attempt stops by itself is in test_train.py.
    own, warned = "the time limit of the job is near", "asked to stop by SIGTERM"
    assert {row["message"] for row in ends[:-1]} <= {own, warned}
