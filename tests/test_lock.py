"""Locks of folders and of GPUs: who holds one, when it is free, and that it is never held twice."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr, suppress
from dataclasses import asdict, replace
from io import StringIO

import psutil
import pytest
from conftest import ROOT, refused
from forked import SECONDS
from slurm_cluster import program

from lmscaling.errors import TRY_AGAIN, UserError
from lmscaling.runtime import gpus, lock, rank

pytestmark = pytest.mark.race
ELSEWHERE = lock.Holder(host="node7", namespace="pid:[1]", pid=17, job="4711", cluster="c")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "scratch" / "lock"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lock, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.1)


def leave(path, who, age=0.0):
    """A lock as another process has left it."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(asdict(who)))
    os.utime(path, (time.time() - age, time.time() - age))


def take(path):
    """Hold a lock for a moment."""
    with lock.hold(path.parent, "run r is being trained"):
        assert lock.holder(path.parent) == lock.this_process()


def holding(path, body):
    """Words of a process that holds the lock meanwhile."""
    code = f"import os, sys, time, pathlib; sys.path.insert(0, {str(ROOT / 'src')!r})\n"
    code += "from lmscaling.runtime import lock; lock.BEAT_SECONDS = 0.05\n"
    code += f"with lock.hold(pathlib.Path({str(path.parent)!r}), 'x'):\n    {body}"
    return [sys.executable, "-c", code]


def test_a_holder_that_lives_is_named_at_once_and_its_lock_is_gone_when_the_block_ends(path):
    busy = pytest.raises(lock.Busy, match=f"process {os.getpid()} ")
    with lock.hold(path.parent, "first"), busy:
        take(path)
    take(path)
    assert not list(path.parent.iterdir())
    assert lock.holder(path.parent) is None


def test_a_process_of_this_host_that_has_ended_holds_nothing(path, capfd):
    subprocess.run(holding(path, "os.kill(os.getpid(), 9)"), check=False)
    assert path.exists()
    assert lock.holder(path.parent) is None
    take(path)
    assert "its process has" in capfd.readouterr().err
    leave(path, replace(lock.this_process(), born=1.0))  # its number is that of another one
    assert lock.holder(path.parent) is None
    take(path)


def test_a_holder_stays_the_holder_when_the_clock_is_set_or_in_another_container(path, monkeypatch):
    """psutil computes the start of a process from the clock, as this does."""
    me = lock.this_process()
    leave(path, replace(me, namespace="pid:[1]", pid=2**22))
    assert lock.holder(path.parent) is not None
    leave(path, me)
    start, boot = psutil.Process().create_time(), psutil.boot_time()
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: start + 3600)
    monkeypatch.setattr(psutil, "boot_time", lambda: boot + 3600)
    assert lock.holder(path.parent) == me


def test_a_holder_on_another_node_is_gone_once_it_was_silent_for_long(path, capfd):
    leave(path, ELSEWHERE, age=lock.STALE_SECONDS - 60)
    assert lock.holder(path.parent) == ELSEWHERE
    with pytest.raises(lock.Busy, match="4711 on node7"):
        take(path)
    assert json.loads(path.read_text()) == asdict(ELSEWHERE)
    leave(path, ELSEWHERE, age=lock.STALE_SECONDS + 1)
    assert lock.holder(path.parent) is None
    take(path)
    assert "4711 on node7" in capfd.readouterr().err


def test_a_lock_that_names_no_holder_holds_until_it_was_silent_for_long(path):
    path.parent.mkdir()
    path.write_text("")
    assert lock.holder(path.parent) == lock.Holder()
    leave(path, lock.Holder(), age=lock.STALE_SECONDS + 1)
    take(path)


def test_of_many_that_break_a_stale_lock_at_once_one_gets_it(path):
    leave(path, replace(lock.this_process(), born=1.0))
    inside, most = [], []

    def enter():
        with suppress(lock.Busy), lock.hold(path.parent, "r"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.05)  # longer than the others look
            inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert not list(path.parent.iterdir())


def test_a_holder_whose_lock_was_broken_ends(path):
    command = holding(path, "print(1, flush=True); time.sleep(3600)")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"1\n"
        path.unlink()
        leave(path, ELSEWHERE)
        assert b"taken over" in process.communicate(timeout=SECONDS)[1]
        assert process.returncode == TRY_AGAIN
    assert lock.holder(path.parent) == ELSEWHERE


THREE = [("0", "GPU-aaaa"), ("1", "GPU-bbbb"), ("2", "GPU-cccc")]


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine with three GPUs on which nothing runs."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(gpus.tempfile, "tempdir", None)
    monkeypatch.setattr(gpus, "installed", lambda: THREE)
    monkeypatch.setattr(gpus, "RETRY_SECONDS", (0.01, 0.02))
    for name in (gpus.VISIBLE, rank.RANK, gpus.COMPILERS, *gpus.ALLOCATORS):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def other():
    """Another process that holds two GPUs, and what it was given."""
    code = "import os, time; from lmscaling.runtime import gpus\n"
    code += f"gpus.installed = lambda: {THREE}\nwith gpus.reserved(2):\n"
    code += "    print(os.environ[gpus.VISIBLE], flush=True); time.sleep(3600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout
        yield job, job.stdout.readline().strip()
        job.kill()


def test_a_job_sees_what_no_other_job_has(other):
    with gpus.reserved(1):
        assert os.environ[gpus.VISIBLE] == "GPU-cccc"
    assert other[1] == "GPU-aaaa,GPU-bbbb"
    assert gpus.VISIBLE not in os.environ


def test_a_job_waits_until_enough_are_free_and_a_killed_job_frees_its_own(other):
    class Said(StringIO):
        def write(self, text):
            other[0].kill()  # as soon as the job says that it waits
            return super().write(text)

    with redirect_stderr(Said()) as said, gpus.reserved(2):
        assert os.environ[gpus.VISIBLE] == "GPU-aaaa,GPU-bbbb"
    assert said.getvalue().count("2 of 3 GPUs") == 1


def test_locks_in_a_folder_of_somebody_else_are_refused_and_those_elsewhere_hold(
    monkeypatch, tmp_path
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    name = f"lmscaling-gpus-{os.getuid()}"
    (tmp_path / "theirs").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "theirs")
    with refused(UserError, name, "TMPDIR"), gpus.reserved(1):
        pass
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "mine"))
    with gpus.reserved(1):
        assert os.environ[gpus.VISIBLE] == "GPU-aaaa"


@pytest.mark.parametrize("in_rank", [False, True])
def test_only_what_the_scheduler_allows_is_taken_and_a_rank_uses_what_its_parent_holds(
    monkeypatch, in_rank
):
    if in_rank:
        monkeypatch.setenv(rank.RANK, "1")
    monkeypatch.setenv(gpus.VISIBLE, "2,GPU-a")
    with gpus.reserved(1):
        assert os.environ[gpus.VISIBLE] == ("2,GPU-a" if in_rank else "GPU-cccc")
    assert os.environ[gpus.VISIBLE] == "2,GPU-a"


@pytest.mark.parametrize(("setting", "found"), [
    ("", []),
    ("GPU-cc, 0", ["GPU-cccc", "GPU-aaaa"]),
    ("0,-1,1", ["GPU-aaaa"]),
])  # fmt: skip
def test_the_variable_is_read_as_cuda_does(monkeypatch, setting, found):
    assert gpus.available() == ["GPU-aaaa", "GPU-bbbb", "GPU-cccc"]
    monkeypatch.setenv(gpus.VISIBLE, setting)
    assert gpus.available() == found


@pytest.mark.parametrize("n", [0, 4])
def test_nothing_is_reserved_for_the_cpu_or_beyond_what_there_is(n):
    before = dict(os.environ)
    with gpus.reserved(n):
        assert gpus.VISIBLE not in os.environ
        assert (dict(os.environ) == before) == (n == 0)


@pytest.mark.parametrize("installed", [THREE, []])
def test_a_job_with_gpus_gets_segments_that_grow_and_its_share_of_the_cores(monkeypatch, installed):
    monkeypatch.setattr(gpus, "installed", lambda: installed)
    for cores, n, compilers in ((64, 3, "21"), (64, 1, "32"), (2, 3, "1")):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: range(cores))
        with gpus.reserved(n):
            assert os.environ[gpus.ALLOCATOR] == "expandable_segments:True"
            assert os.environ[gpus.COMPILERS] == compilers
        assert not {gpus.ALLOCATOR, gpus.COMPILERS} & os.environ.keys()


@pytest.mark.parametrize("name", gpus.ALLOCATORS)
def test_settings_of_the_user_stay(monkeypatch, name):
    monkeypatch.setenv(name, "max_split_size_mb:512")
    monkeypatch.setenv(gpus.COMPILERS, "5")
    with gpus.reserved(1):
        found = {key: os.environ.get(key) for key in (*gpus.ALLOCATORS, gpus.COMPILERS)}
    own = {name: "max_split_size_mb:512", gpus.COMPILERS: "5"}
    assert found == dict.fromkeys(gpus.ALLOCATORS) | own
    assert os.environ[name] == "max_split_size_mb:512"


@pytest.mark.ci
def test_pytorch_reads_the_settings_only_after_they_are_made():
    """The verbs load the packages before they reserve GPUs."""
    code = "import sys, torch, lmscaling.train.calibrate, lmscaling.bench.sweep\n"
    code += "import lmscaling.train.run, lmscaling.runtime.faults\n"
    code += "import lmscaling.evaluate.loss_by_position\n"
    code += "print('torch._inductor.config' in sys.modules, torch.cuda.is_initialized())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_slurms_signal_ends_a_job_that_is_queued_again_but_not_the_commands_that_say_so(tmp_path):
    """Slurm signals every process of a job as soon as it is requeued."""
    log = tmp_path / "typed"
    program(tmp_path, "scontrol", f'kill -TERM $PPID $$\necho "$*" >> {log}')
    given = os.environ | {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    text = "from lmscaling.runtime import slurm; slurm.queue_again(behind='5')"
    ended = subprocess.run([sys.executable, "-c", text], env=given, timeout=60)
    assert ended.returncode == TRY_AGAIN
    assert log.read_text() == "requeue 7\nupdate JobId=7 Dependency=afterany:5\n"
