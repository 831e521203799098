"""Submitting to a Slurm that takes no job: the plugin's own code, with an sbatch that says no."""

import logging
import os
import shlex
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake_executor_plugin_slurm as plugin

from lmscaling.runtime import lock, slurm, slurm_queue, slurm_rejections, slurm_submission
from lmscaling.runtime.slurm_queue import Queue
from lmscaling.runtime.slurm_submission import Submission

LIMIT = "AssocMaxSubmitJobLimit; Job violates accounting/QOS policy (job submit limit)"
NOWHERE = "invalid partition specified: nowhere; Invalid partition name specified"


class Job:
    """As much of Snakemake's job as the plugin asks for."""

    def __init__(self, name: str) -> None:
        self.name, self.wildcards, self.jobid = "train", [name], 1
        self.rule = SimpleNamespace(name="train")
        self.threads, self.restart_times = 1, 3
        self.attempt: Any = 1
        self.resources = Resources(runtime=5, mem_mb=5, slurm_partition="nowhere")

    def is_group(self) -> bool:
        return False


class Resources(dict):
    __getattr__ = dict.get


class Slurm:
    """An ``sbatch`` that rejects jobs with the sentence in a file, and a ``squeue``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answer("squeue", "true")
        self.answer("scontrol", "echo ClusterName = here")
        self.accept()

    def answer(self, name: str, script: str) -> None:
        made = self.folder / f"{name}.new"
        made.write_text(f"#!/bin/sh\necho {name} >> {self.folder}/asked\n{script}\n")
        made.chmod(0o755)
        made.rename(self.folder / name)

    def accept(self) -> None:
        self.answer("sbatch", "echo 41")

    def reject(self, reason: str) -> None:
        *before, last = reason.split("; ")
        lines = [*before, f"Batch job submission failed: {last}"]
        says = [f'echo "sbatch: error: {line}" >&2' for line in lines]
        self.answer("sbatch", "\n".join([*says, "exit 1"]))

    def asked(self, name: str) -> int:
        return (self.folder / "asked").read_text().split().count(name)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "asked").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm_submission, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(plugin, "validate_account", None)  # and the original after the test
    return Slurm(tmp_path / "bin")


class Executor(plugin.Executor):
    """The plugin's own without a workflow behind it: it notes what it reports."""

    def __init__(self, folder: Path) -> None:
        settings = SimpleNamespace(
            requeue=False, no_requeue=False, qos=None, reservation=None,
            pass_command_as_script=False,
        )  # fmt: skip
        self.ended: list[Exception] = []
        self.failed: list[tuple[Job, str]] = []
        self.submitted: list[Job] = []
        self.array_jobs: set[str] = set()
        self.cancelled = threading.Event()
        scheduler = SimpleNamespace(_user_kill=None, executor_error_callback=self.ended.append)
        self.workflow = SimpleNamespace(
            executor_settings=settings, workdir_init=str(folder), scheduler=scheduler
        )
        self.logger = logging.getLogger("plugin")
        self.slurm_logdir, self.run_uuid = folder / "logs", "uuid"
        self._failed_nodes, self._submitted_job_clusters = set(), set()
        self._job_submission_executor = ThreadPoolExecutor(2)
        self.format_job_exec = lambda job: "true"
        self.cancel = self.cancelled.set

    def _report_job_error_threadsafe(self, job_info: Any, msg: str) -> None:
        self.failed.append((job_info.job, msg))

    def _report_job_submission_threadsafe(self, job_info: Any) -> None:
        self.submitted.append(job_info.job)


@pytest.fixture
def executor(cluster, tmp_path):
    made = Executor(tmp_path)
    profile = Path("profile.yaml")
    profile.write_text("default-resources:\n  # slurm_account: mine\n  slurm_partition: nowhere\n")
    Submission(made, Queue(Path("results/tiny"), ["train"]), profile, ["snakemake"])
    yield made
    made.workflow.scheduler._user_kill = "graceful"
    made._job_submission_executor.shutdown()


def submit(executor, *names):
    return [executor._job_submission_executor.submit(executor.run_job, Job(n)) for n in names]


def eventually(true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    "reason",
    [
        LIMIT,
        "QOSMaxSubmitJobPerUserLimit; Job violates accounting/QOS policy",
        "Socket timed out on send/recv operation",
        "Unable to contact slurm controller (connect failure)",
        "Slurm temporarily unable to accept job, sleeping and retrying",
        "Zero Bytes were transmitted or received",
        "Required partition not available (inactive or drain)",
        "Rate limit exceeded, please retry momentarily",
    ],
)
def test_limits_and_a_busy_controller_pass(reason):
    assert slurm_rejections.passes(reason)


@pytest.mark.parametrize(
    "reason",
    [
        NOWHERE,
        "QOSMaxWallDurationPerJobLimit; Job violates accounting/QOS policy (job submit limit)",
        "Invalid account or account/partition combination specified",
        "Requested node configuration is not available",
        "Memory specification can not be satisfied; Requested node configuration is not available",
        "Requested time limit is invalid (missing or exceeds some limit)",
        "a sentence of the site's own plugin",
    ],
)
def test_what_a_user_must_change_does_not_pass(reason):
    assert not slurm_rejections.passes(reason)


def test_a_submit_limit_is_waited_for_with_one_line_and_no_attempt(cluster, executor, capfd):
    cluster.reject(LIMIT)
    tries = submit(executor, "a", "b")
    eventually(lambda: cluster.asked("sbatch") > 6)
    assert not executor.failed
    cluster.accept()
    eventually(lambda: all(one.done() for one in tries))
    assert {job.wildcards[0] for job in executor.submitted} == {"a", "b"}
    assert {job.attempt for job in executor.submitted} == {1}
    said = capfd.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said] == [
        "Slurm takes no job now", "Slurm takes jobs again, after 0.0 minutes"
    ]  # fmt: skip
    assert LIMIT in said[0]


def test_a_job_that_is_accepted_lets_one_that_waits_try_at_once(cluster, executor, monkeypatch):
    monkeypatch.setattr(slurm_submission, "FIRST_SECONDS", 60.0)
    cluster.reject(LIMIT)
    (waits,) = submit(executor, "a")
    eventually(lambda: cluster.asked("sbatch") == 1)
    cluster.accept()
    submit(executor, "b")
    eventually(waits.done)
    assert len(executor.submitted) == 2


def test_nothing_is_submitted_while_it_is_not_known_which_runs_have_jobs(cluster, executor, capfd):
    cluster.answer("squeue", "echo slurm_load_jobs error: Unable to contact controller >&2; exit 1")
    (waits,) = submit(executor, "a")
    eventually(lambda: cluster.asked("squeue") > 0)
    time.sleep(0.3)
    assert not cluster.asked("sbatch")
    assert not waits.done()
    assert "Unable to contact controller" in capfd.readouterr().err


def test_a_wrong_name_ends_the_submission_with_the_line_of_the_profile(cluster, executor):
    cluster.reject(NOWHERE)
    for one in submit(executor, "a", "b", "c"):
        one.result()
    (error,) = executor.ended
    assert NOWHERE in str(error)
    assert "Edit slurm_partition in profile.yaml:3, then type the same command" in str(error)
    assert not executor.failed
    assert cluster.asked("sbatch") <= 2  # one of each thread


def test_an_option_of_the_site_that_the_plugin_refuses_names_its_line(cluster, executor, caplog):
    with Path("profile.yaml").open("a") as profile:
        profile.write("  slurm_extra: --nodes=2\n")
    job = Job("a")
    job.resources["slurm_extra"] = "--nodes=2 --signal=TERM@9"
    executor.run_job(job)
    (error,) = executor.ended
    assert "Edit slurm_extra in profile.yaml:4" in str(error)
    assert not caplog.records  # no traceback


def test_a_wrong_name_ends_the_submission_but_no_job_that_runs(cluster, executor):
    submit(executor, "a")[0].result()
    cluster.answer("scancel", f'echo "$@" > {cluster.folder}/cancelled')
    cluster.reject(NOWHERE)
    submit(executor, "b")[0].result()
    (error,) = executor.ended
    assert "Jobs that run go on" in str(error)
    assert (cluster.folder / "cancelled").read_text() == "--state=PENDING --name=uuid\n"


def test_a_request_that_no_node_can_meet_fails_its_job_without_a_retry(cluster, executor):
    submit(executor, "a")[0].result()
    cluster.reject("Requested node configuration is not available")
    submit(executor, "b")[0].result()
    ((job, message),) = executor.failed
    assert job.restart_times <= job.attempt - 1  # how Snakemake decides
    assert "Requested node configuration is not available" in message
    assert not executor.ended


def test_it_ends_the_submission_if_nothing_was_accepted_before(cluster, executor):
    cluster.reject("Requested node configuration is not available")
    submit(executor, "a")[0].result()
    (error,) = executor.ended
    assert "train a: Requested node configuration is not available" in str(error)
    assert not executor.failed


def test_ctrl_c_ends_a_job_that_waits_and_an_sbatch_that_sleeps(cluster, executor):
    cluster.reject(LIMIT)
    (waits,) = submit(executor, "a")
    eventually(lambda: cluster.asked("sbatch") > 1)
    cluster.answer("sbatch", "while :; do sleep 0.1; done")
    (sleeps, queued) = submit(executor, "b", "c")
    before = cluster.asked("sbatch")
    eventually(lambda: cluster.asked("sbatch") > before)
    began = time.monotonic()
    executor.cancel()
    assert time.monotonic() - began < 5
    assert executor.cancelled.is_set()
    assert waits.done()
    assert sleeps.done()
    assert queued.cancelled() or queued.done()
    assert not executor.submitted
    assert not executor.failed


def test_ctrl_c_cancels_jobs_also_while_the_plugin_asks_for_their_states(cluster, executor):
    cluster.answer("scancel", f'echo "$@" > {cluster.folder}/cancelled')
    executor.cancel_jobs([])
    assert not (cluster.folder / "cancelled").exists()  # it has submitted none
    submit(executor, "a")[0].result()
    executor.cancel_jobs([])  # its list is empty at that time
    assert (cluster.folder / "cancelled").read_text() == "--name=uuid\n"


def test_ctrl_c_cancels_arrays_of_jobs(cluster, executor):
    cluster.answer("scancel", f'echo "$@" > {cluster.folder}/cancelled')
    executor.array_jobs = {"train"}
    executor.cancel_jobs([])
    assert (cluster.folder / "cancelled").read_text() == "--name=uuid\n"


def test_what_goes_wrong_beside_sbatch_fails_the_job_that_would_wait_for_ever(executor):
    class Broken(Job):
        attempt = property(lambda job: 1 / 0, lambda job, n: None)

    submit(executor, "a")[0].result()
    executor.run_job(Broken("b"))
    ((_, message),) = executor.failed
    assert "It was not submitted: ZeroDivisionError" in message
    executor._report_job_error_threadsafe(SimpleNamespace(job="c"), "an array of jobs")
    assert executor.failed[1] == ("c", "an array of jobs")


def test_a_submission_that_is_asked_to_stop_fails_what_waits_without_a_retry(cluster, executor):
    cluster.reject(LIMIT)
    (waits,) = submit(executor, "a")
    eventually(lambda: cluster.asked("sbatch") > 1)
    executor.workflow.scheduler._user_kill = "graceful"
    eventually(waits.done)
    ((job, message),) = executor.failed
    assert job.restart_times <= job.attempt - 1
    assert "asked to stop" in message


@pytest.mark.parametrize(
    ("key", "value", "words", "found"),
    [
        ("slurm_partition", "cpu", (), "slurm_partition in p.yaml:5"),
        ("slurm_partition", "gpu", (), "slurm_partition in p.yaml:3"),
        ("slurm_account", None, (), "slurm_account in p.yaml:2"),
        ("qos", "high", (), "qos in p.yaml:1"),
        ("qos", "high", ("--set-resources", "train:qos=high"), "train:qos=high in the command"),
    ],
)
def test_the_place_to_edit_is_the_line_with_the_value_or_where_it_belongs(
    tmp_path, monkeypatch, key, value, words, found
):
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text(
        "default-resources:\n  # slurm_account: mine\n  slurm_partition: gpu\n"
        "set-resources:\n    slurm_partition: cpu\n"
    )
    assert slurm_rejections.place(Path("p.yaml"), key, value, words) == found


def listing(*jobs):
    return "\n".join(f"echo '{'|'.join(job)}'" for job in jobs)


def test_a_run_waits_for_jobs_of_anybody_that_write_the_same_results(
    cluster, tmp_path, monkeypatch, capfd
):
    (tmp_path / "here" / "results" / "tiny").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "here")
    (tmp_path / "other" / "results" / "tiny").mkdir(parents=True)
    cluster.answer("squeue", listing(
        ("7", "anna", str(tmp_path / "link"), "rule_train_wildcards_a"),
        ("8", "anna", str(tmp_path / "other"), "rule_train_wildcards_a"),
        ("9", "anna", str(tmp_path / "here"), "rule_tokenize_wildcards_a"),
        ("10", "anna", str(tmp_path / "here"), "rule_branch_wildcards_b"),
        ("11", "bob", "/nowhere", "(null)"),
    ))  # fmt: skip
    monkeypatch.chdir(tmp_path / "here")
    queue = Queue(Path("results/tiny"), ["train", "branch"])
    assert queue.dependency("a") == "--dependency=afterany:7"
    assert queue.dependency("b") == "--dependency=afterany:10"
    assert queue.dependency("c") == ""
    assert "a is with Slurm already, as job 7 of anna: a new job waits" in capfd.readouterr().err


def test_slurm_is_asked_again_after_seconds_and_not_for_each_job(cluster, tmp_path, monkeypatch):
    queue = Queue(tmp_path, ["train"])
    for run in "abc":
        assert queue.dependency(run) == ""
    assert cluster.asked("squeue") == 1
    cluster.answer("squeue", listing(("7", "anna", "/", "rule_train_wildcards_a")))
    later = time.monotonic() + slurm_queue.FRESH_SECONDS + 5
    monkeypatch.setattr(slurm_queue.time, "monotonic", lambda: later)
    assert queue.dependency("a") == "--dependency=afterany:7"


@pytest.mark.parametrize(("there", "waits"), [("here", "--dependency=afterany:5"), ("away", "")])
def test_a_run_waits_for_the_job_that_holds_its_lock_if_it_is_of_this_cluster(
    cluster, tmp_path, monkeypatch, there, waits
):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", there)
    queue = Queue(tmp_path, ["train"])
    with lock.hold(tmp_path / "scratch" / "a", "training"):
        assert queue.dependency("a") == waits
        assert queue.dependency("b") == ""


@pytest.mark.parametrize(
    ("site", "result"),
    [
        ("", "--signal=TERM@9 --dependency=afterany:7 --exclude=n1"),
        ("--exclusive", "--exclusive --signal=TERM@9 --dependency=afterany:7 --exclude=n1"),
        ("--exclude=n3,n4", "--exclude=n3,n4,n1 --signal=TERM@9 --dependency=afterany:7"),
        ("-x n3", "--exclude=n3,n1 --signal=TERM@9 --dependency=afterany:7"),
        ("--dependency=singleton --mail-type=END",
         "--dependency=singleton,afterany:7 --mail-type=END --signal=TERM@9 --exclude=n1"),
    ],
)  # fmt: skip
def test_options_of_the_site_come_first_and_lists_are_joined(site, result):
    ours = ("--signal=TERM@9", "--dependency=afterany:7", "--exclude=n1")
    assert slurm.joined(site, *ours) == result
    assert slurm.joined(site, "") == site


@pytest.fixture
def srun(tmp_path, monkeypatch):
    """Takes the place of Slurm's step, and keeps its options and what it was given of Slurm's."""
    path = tmp_path / "bin" / "srun"
    path.parent.mkdir()
    path.write_text(
        f"#!/bin/bash\n(echo ${{!SLURM_@}}; echo $*) > {tmp_path}/asked\n"
        'while [[ $1 == -* ]]; do shift; done; exec "$@"\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "1000")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "asked"


def step_of(**changed):
    values = {"log": [], "output": ["a b/$HOME/out"], "input": [], "threads": 3, "resources": {}}
    return SimpleNamespace(**(values | changed))


@pytest.mark.parametrize("as_script", [True, False])
def test_a_job_starts_the_command_of_its_rule_whatever_its_characters(srun, as_script):
    text = """a'b "c" $d `e` \\f {g}"""
    command = f"printf '%s' {shlex.quote(text)} $OMP_NUM_THREADS > 'a b/$HOME/out'"
    batch = slurm.batch_command(step_of(), command, as_script)
    if not as_script:  # the shell of the machine that submits reads it first
        quoted = batch.replace('"', '\\"')
        shown = subprocess.run(f'printf %s "{quoted}"', shell=True, capture_output=True, text=True)
        batch = shown.stdout
    subprocess.run(["sh", "-c", batch], check=True)
    assert Path("a b/$HOME/out").read_text() == f"{text}3"
    names, options = srun.read_text().splitlines()
    assert "SLURM_JOB_ID" in names
    assert "SLURM_MEM_PER_CPU" not in names
    assert options.startswith("-n1 --cpu-bind=q --cpus-per-task=3 --nodes=1 env OMP_NUM_THREADS=3")


def test_a_job_asks_its_step_for_the_gpus_of_its_rule(srun):
    job = step_of(resources={"gpu": 2, "nodes": 1})
    subprocess.run(["sh", "-c", slurm.batch_command(job, "true", True)], check=True)
    assert "--gpus=2 --nodes=1 env" in srun.read_text()


def test_a_job_waits_for_inputs_that_are_not_seen_yet(srun):
    job = step_of(input=["late file"])
    command = slurm.batch_command(job, "cat 'late file'", True)
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True)
    time.sleep(0.5)
    assert process.poll() is None
    Path("late file").write_text("seen")
    assert process.communicate(timeout=30)[0] == "seen"


def test_a_job_fails_with_its_command(srun):
    batch = slurm.batch_command(step_of(), "exit 75", True)
    assert subprocess.run(["sh", "-c", batch], check=False).returncode == 75
