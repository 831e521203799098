"""Who holds a lock, when it is stale, and that it is never held twice."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import psutil
import pytest
from conftest import ROOT

from lmscaling.errors import TRY_AGAIN
from lmscaling.runtime import lock

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


def test_a_lock_is_gone_when_the_block_ends_and_names_its_holder_before(path):
    with lock.hold(path.parent, "x"):
        assert lock.holder(path.parent) == lock.this_process()
    assert not list(path.parent.iterdir())
    assert lock.holder(path.parent) is None


def test_a_holder_that_lives_is_named_at_once(path):
    with (
        lock.hold(path.parent, "run r is being trained"),
        pytest.raises(
            lock.Busy, match=rf"^run r is being trained by process {os.getpid()} on \S+$"
        ),
        lock.hold(path.parent, "run r is being trained"),
    ):
        pass


def test_a_process_of_this_host_that_has_ended_holds_nothing(path, capfd):
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); import os, pathlib\n"
    code += "from lmscaling.runtime import lock\n"
    code += f"with lock.hold(pathlib.Path({str(path.parent)!r}), 'x'):\n"
    subprocess.run([sys.executable, "-c", f"{code}    os.kill(os.getpid(), 9)"], check=False)
    assert path.exists()
    assert lock.holder(path.parent) is None
    with lock.hold(path.parent, "r"):
        assert lock.holder(path.parent) == lock.this_process()
    assert "is broken: its process has ended" in capfd.readouterr().err


def test_a_number_that_was_given_to_another_process_holds_nothing(path):
    leave(path, replace(lock.this_process(), born=1.0))
    assert lock.holder(path.parent) is None
    with lock.hold(path.parent, "r"):
        pass


def test_a_holder_stays_the_holder_when_the_clock_is_set(path, monkeypatch):
    """psutil computes the start of a process from the clock, as this does."""
    me = lock.this_process()
    leave(path, me)
    start, boot = psutil.Process().create_time(), psutil.boot_time()
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: start + 3600)
    monkeypatch.setattr(psutil, "boot_time", lambda: boot + 3600)
    assert lock.holder(path.parent) == me


def test_the_lock_of_an_earlier_version_holds(path):
    leave(path, replace(lock.this_process(), born=psutil.Process().create_time()))
    assert lock.holder(path.parent) is not None


def test_a_process_in_another_container_of_this_host_is_not_looked_up_by_its_number(path):
    leave(path, replace(lock.this_process(), namespace="pid:[1]", pid=2**22))
    assert lock.holder(path.parent) is not None


def test_a_holder_on_another_node_is_refused_after_its_next_sign_of_life(path):
    leave(path, ELSEWHERE)
    living = threading.Timer(0.2, os.utime, [path])
    living.start()
    with pytest.raises(lock.Busy, match="by job 4711 on node7"), lock.hold(path.parent, "r"):
        pass
    living.join()
    assert lock.holder(path.parent) == ELSEWHERE


def test_a_holder_on_another_node_that_stays_silent_is_gone(path, monkeypatch, capfd):
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.3)
    leave(path, ELSEWHERE)
    began = time.monotonic()
    with lock.hold(path.parent, "r"):
        assert 0.2 < time.monotonic() - began < 5
    assert "the lock of job 4711 on node7 is broken: it was not touched" in capfd.readouterr().err


def test_the_same_job_on_another_node_has_been_requeued(path, monkeypatch, capfd):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    leave(path, ELSEWHERE)
    with lock.hold(path.parent, "r"):
        pass
    assert "is broken: this job was requeued" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        ("echo RUNNING", False),
        ("echo COMPLETING", False),
        ("echo FAILED", True),
        ("echo PENDING", True),
        ("echo slurm_load_jobs error: Invalid job id specified >&2; exit 1", True),
        ("echo no route to host >&2; exit 1", False),
    ],
)
def test_slurm_is_asked_whether_a_silent_job_has_ended(path, monkeypatch, tmp_path, answer, ended):
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    assert bool(lock._why_stale(ELSEWHERE, 1.0)) == ended
    assert not lock._why_stale(ELSEWHERE, 0.1)
    assert not lock._why_stale(replace(ELSEWHERE, cluster="d"), 1.0)


def test_a_lock_of_an_older_version_holds_until_it_was_silent_for_long(path):
    path.parent.mkdir()
    path.write_text("")
    assert lock.holder(path.parent) == lock.Holder()
    leave(path, lock.Holder(), age=lock.STALE_SECONDS + 1)
    with lock.hold(path.parent, "r"):
        pass


def test_of_many_that_break_a_stale_lock_at_once_one_gets_it(path):
    leave(path, replace(lock.this_process(), born=1.0))
    inside, most, taken = [], [], []

    def take():
        try:
            with lock.hold(path.parent, "r"):
                inside.append(1)
                most.append(len(inside))
                taken.append(1)
                time.sleep(0.05)
                inside.pop()
        except lock.Busy:
            pass

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert taken
    assert not list(path.parent.iterdir())


def test_a_holder_whose_lock_was_broken_ends(path):
    code = f"import sys, time, pathlib; sys.path.insert(0, {str(ROOT / 'src')!r})\n"
    code += "from lmscaling.runtime import lock; lock.BEAT_SECONDS = 0.05\n"
    code += f"with lock.hold(pathlib.Path({str(path.parent)!r}), 'x'):\n    print(1, flush=True)\n"
    command = [sys.executable, "-c", f"{code}    time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"1\n"
        path.unlink()
        leave(path, ELSEWHERE)
        assert process.wait(10) == TRY_AGAIN
        assert process.stderr
        assert b"was taken over" in process.stderr.read()
    assert lock.holder(path.parent) == ELSEWHERE
