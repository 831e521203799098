"""Submitting to a Slurm that takes no job: sessions of Snakemake with an sbatch that says no."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm as plugin
from conftest import ROOT, sentence
from product import without_verbs
from slurm_cluster import PATIENCE_SECONDS, eventually, program

from lmscaling.runtime import lock, slurm, slurm_queue, slurm_rejections
from lmscaling.runtime.slurm_queue import Queue

assert plugin  # as in Snakemake, which loads it before the rules

LIMIT = "AssocMaxSubmitJobLimit; Job violates accounting/QOS policy (job submit limit)"
NOWHERE = "invalid partition specified: nowhere; Invalid partition name specified"
IMPOSSIBLE = "Requested node configuration is not available"

PASS = (
    LIMIT, "QOSMaxSubmitJobPerUserLimit; Job violates accounting/QOS policy",
    "Socket timed out on send/recv operation",
    "Unable to contact slurm controller (connect failure)",
    "Slurm temporarily unable to accept job, sleeping and retrying",
    "Zero Bytes were transmitted or received",
    "Required partition not available (inactive or drain)",
    "Rate limit exceeded, please retry momentarily",
)  # fmt: skip
STAY = {  # and the keys of the profile that a user must change
    NOWHERE: "slurm_partition", "Invalid qos specification": "qos",
    "Invalid account or account/partition combination specified": "slurm_account slurm_partition",
    "QOSMaxWallDurationPerJobLimit; Job violates accounting/QOS policy (job submit limit)": "",
    IMPOSSIBLE: "", f"Memory specification can not be satisfied; {IMPOSSIBLE}": "",
    "Requested time limit is invalid (missing or exceeds some limit)": "",
}  # fmt: skip


def test_limits_and_a_busy_controller_pass_and_what_a_user_must_change_does_not():
    assert [reason for reason in PASS if not slurm_rejections.passes(reason)] == []
    assert [reason for reason in STAY if slurm_rejections.passes(reason)] == []
    assert {reason: " ".join(slurm_rejections.keys(reason)) for reason in STAY} == STAY


def test_the_place_to_edit_is_the_line_with_the_value_or_where_it_belongs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text(
        "default-resources:\n  # slurm_account: mine\n  slurm_partition: gpu\n"
        "set-resources:\n    slurm_partition: cpu\n"
    )
    for key, value, found, *words in (
        ("slurm_partition", "cpu", "p.yaml:5"),
        ("slurm_partition", "gpu", "p.yaml:3"),
        ("slurm_account", None, "p.yaml:2"),
        ("qos", "high", "p.yaml:1"),
        ("qos", "high", "train:qos=high", "--set-resources", "train:qos=high"),
    ):
        told = slurm_rejections.place(Path("p.yaml"), key, value, words)
        assert {key, found} & set(told.split()) >= {found}
        sentence("submission", told)


class Slurm:
    """Programs with the names of Slurm's, whose answers a test gives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("asked", "answers", "states", "cancelled"):
            (folder / name).touch()
        self.program("squeue", "true")
        self.program("scontrol", "echo ClusterName = here; echo MinJobAge = 300")
        self.program("scancel", f'echo "$@" >> {folder}/cancelled')

    def program(self, name: str, script: str) -> None:
        program(self.folder, name, f"echo {name} >> {self.folder}/asked\n{script}")

    def asked(self, name: str) -> int:
        return (self.folder / "asked").read_text().split().count(name)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return Slurm(tmp_path / "bin")


# Rejects jobs with the sentences in a file, one after the other, or runs them at once.
SBATCH = """
cd {folder}
exec 9> lock
flock 9  # the plugin submits from two threads
IFS= read -r answer < answers
[ "$(wc -l < answers)" -gt 1 ] && sed -i 1d answers
exec 9>&-
if [ "$answer" != ok ]; then
    echo "sbatch: error: ${{answer%%; *}}" >&2
    echo "sbatch: error: Batch job submission failed: ${{answer##*; }}" >&2
    exit 1
fi
cd - > /dev/null
for word in "$@"; do
    case $word in --wrap=*) command=${{word#--wrap=}} ;; esac
done
number=$$
bash -c "$command" > /dev/null 2>&1 && state=COMPLETED || state=FAILED
echo "$number|$state" >> {folder}/states
echo $number
"""
SQUEUE = 'case "$*" in *--states=all*) cat {folder}/states ;; esac'
SRUN = 'while [[ $1 == -* ]]; do shift; done; exec "$@"'


@pytest.mark.ci
@pytest.mark.race
@pytest.mark.parametrize(
    ("answers", "extra", "named", "n_ended"),
    [
        # A job that no node can run fails without a retry, and the others go on.
        (["ok", "ok", "ok", IMPOSSIBLE, "ok"], "", IMPOSSIBLE, 1),
        ([IMPOSSIBLE], "", IMPOSSIBLE, 0),
        (["ok", "ok", NOWHERE], "  slurm_partition: nowhere", "profiles/slurm/config.yaml:7", 0),
        (["ok"], "  slurm_extra: --nodes=2 --job-name=x", "slurm_extra", 0),
    ],
    ids=["no node", "nothing accepted", "wrong name", "option of the plugin"],
)
def test_what_a_user_must_change_ends_submitting(cluster, tmp_path, answers, extra, named, n_ended):
    """A study of two chunks of text and two cells."""
    place = without_verbs(tmp_path / "product")
    place.study(
        calibrate=None, branches=None, evaluate=None, speed=None,
        axes={"attention": ["softmax"], "seed": [0, 1]},
    )  # fmt: skip
    (cluster.folder / "answers").write_text("".join(f"{answer}\n" for answer in answers))
    cluster.program("sbatch", SBATCH.format(folder=cluster.folder))
    cluster.program("squeue", SQUEUE.format(folder=cluster.folder))
    cluster.program("srun", SRUN)
    begin = "\ndefault-resources:\n"
    place.edit("profiles/slurm/config.yaml", begin, f"{begin}{extra}\n")
    typed = place.typed(
        "--profile", "slurm", "--latency-wait", "5", "--retries", "3", "--until", "train",
        "--slurm-init-seconds-before-status-checks", "1",
    )  # fmt: skip
    typed["env"]["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'tests' / 'slurm_polls'}"
    done = subprocess.run(**typed, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    said = done.stdout + done.stderr
    assert not re.search("Traceback|restart|sacct", said), said
    n_trained = len(list(place.results.glob("runs/*/run.json")))
    assert (done.returncode, n_trained) == (1, n_ended), said
    assert named in said
    most = len(answers) + (not n_ended)  # one more of the second thread
    assert cluster.asked("sbatch") in range(most + 1)
    cancelled = (cluster.folder / "cancelled").read_text().splitlines()
    if NOWHERE in answers:  # jobs that run go on
        assert [words.split()[0] for words in cancelled] == ["--state=PENDING"]
    if n_ended:
        assert (cluster.asked("sbatch"), cancelled) == (most, [])


def listing(*jobs):
    return "\n".join(f"echo '{'|'.join(job)}'" for job in jobs)


@pytest.mark.race
def test_a_run_waits_for_jobs_with_the_same_results(cluster, tmp_path, monkeypatch, capfd):
    for name in ("here", "other"):
        (tmp_path / name / "results" / "tiny").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    now = [slurm_queue.time.monotonic()]
    monkeypatch.setattr(slurm_queue.time, "monotonic", lambda: now[0])
    cluster.program("squeue", listing(
        ("7", "anna", f"{tmp_path}/link", "rule_train_wildcards_a"),
        ("8", "anna", f"{tmp_path}/other", "rule_train_wildcards_a"),
        ("9", "anna", f"{tmp_path}/here", "rule_tokenize_wildcards_a"),
        ("10", "anna", f"{tmp_path}/here", "rule_branch_wildcards_b"),
        ("11", "bob", "/nowhere", "(null)"),
    ))  # fmt: skip
    queue = Queue(Path("results/tiny"), ["train", "branch"])
    after = {"a": "--dependency=afterany:7", "b": "--dependency=afterany:10", "c": ""}
    assert {run: queue.dependency(run) for run in after} == after
    assert cluster.asked("squeue") == 1  # not for each job
    now[0] += 10 * PATIENCE_SECONDS
    cluster.program("squeue", "true")
    assert queue.dependency("a") == ""
    for line in capfd.readouterr().err.splitlines():
        sentence("submission", line)


@pytest.mark.race
def test_a_run_waits_for_the_job_of_its_lock_on_this_cluster(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    for there, waits in (("here", "--dependency=afterany:5"), ("away", "")):
        monkeypatch.setenv("SLURM_CLUSTER_NAME", there)
        queue = Queue(tmp_path, ["train"])
        with lock.hold(tmp_path / "scratch" / "a", "training"):
            assert (queue.dependency("a"), queue.dependency("b")) == (waits, "")


def test_options_of_the_site_come_first_and_lists_are_joined():
    signal, after, sick = ours = ("--signal=TERM@9", "--dependency=afterany:7", "--exclude=n1")
    both = "--dependency=singleton,afterany:7 --mail-type=END"
    for site, *result in (
        ("", *ours),
        ("--exclusive", "--exclusive", *ours),
        ("--exclude=n3,n4", "--exclude=n3,n4,n1", signal, after),
        ("-x n3", "--exclude=n3,n1", signal, after),
        ("--dependency=singleton --mail-type=END", both, signal, sick),
    ):
        assert slurm.joined(site, *ours) == " ".join(result)
        assert slurm.joined(site, "") == site


@pytest.fixture
def srun(tmp_path, cluster):
    """Takes the place of Slurm's step, and keeps its options and what it was given of Slurm's."""
    cluster.program("srun", f"(echo ${{!SLURM_@}}; echo $*) > {tmp_path}/step\n{SRUN}")
    return tmp_path / "step"


def batch_of(command, as_script=True, **changed):
    values = {"log": [], "output": ["a b/$HOME/out"], "input": [], "threads": 3, "resources": {}}
    return slurm.batch_command(SimpleNamespace(**values | changed), command, as_script)


@pytest.mark.parametrize("as_script", [True, False])
def test_a_job_starts_the_command_of_its_rule_whatever_its_characters(srun, as_script, monkeypatch):
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "1000")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    text = """a'b "c" $d `e` \\f {g}"""
    command = f"printf '%s' {shlex.quote(text)} $OMP_NUM_THREADS > 'a b/$HOME/out'"
    batch = batch_of(command, as_script)
    if not as_script:  # the shell of the machine that submits reads it first
        quoted = batch.replace('"', '\\"')
        batch = subprocess.check_output(f'printf %s "{quoted}"', shell=True, text=True)
    subprocess.run(["sh", "-c", batch], check=True)
    assert Path("a b/$HOME/out").read_text() == f"{text}3"
    names, options = srun.read_text().splitlines()
    assert {"SLURM_JOB_ID", "SLURM_MEM_PER_CPU"} & {*names.split()} == {"SLURM_JOB_ID"}
    expected = "-n1 --cpu-bind=q --cpus-per-task=3 --nodes=1 env OMP_NUM_THREADS=3"
    assert options.split()[:6] == expected.split()


def test_a_job_asks_its_step_for_the_gpus_of_its_rule_and_fails_with_its_command(srun):
    batch = batch_of("exit 75", resources={"gpu": 2, "nodes": 1})
    assert subprocess.run(["sh", "-c", batch], check=False).returncode == 75
    assert {"--gpus=2", "--nodes=1"} <= set(srun.read_text().split())


@pytest.mark.race
def test_a_job_waits_for_inputs_that_are_not_seen_yet(srun):
    batch = batch_of("cat 'late file'", input=["late file"])
    words = ["sh", "-c", f"echo begun; {batch}"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    eventually(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(), "wait")
    assert process.poll() is None
    Path("late file").write_text("seen")
    assert process.communicate(timeout=PATIENCE_SECONDS)[0] == "seen"
