"""Who holds a lock, when it is stale, and that it is never held twice."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace

import psutil
import pytest
from conftest import ROOT
from forked import SECONDS

from lmscaling.errors import TRY_AGAIN
from lmscaling.runtime import lock

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


def test_a_holder_on_another_node_is_refused_after_its_next_sign_of_life(path):
    leave(path, ELSEWHERE)
    ended = threading.Event()

    def live():
        while not ended.wait(0.02):
            os.utime(path)

    living = threading.Thread(target=live)
    living.start()
    with pytest.raises(lock.Busy, match="4711 on node7"):
        take(path)
    ended.set()
    living.join()
    assert lock.holder(path.parent) == ELSEWHERE


def test_a_holder_on_another_node_that_stays_silent_is_gone(path, monkeypatch, capfd):
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.3)
    leave(path, ELSEWHERE)
    began = time.monotonic()
    take(path)
    assert time.monotonic() - began > 0.2
    assert "4711 on node7" in capfd.readouterr().err


def test_the_same_job_on_another_node_has_been_requeued(path, monkeypatch, capfd):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    leave(path, ELSEWHERE)
    take(path)
    assert "requeued" in capfd.readouterr().err


@pytest.mark.parametrize(("cluster", "answer", "ended"), [
    ("c", "echo RUNNING", False),
    ("c", "echo COMPLETING", False),
    ("c", "echo FAILED", True),
    ("c", "echo PENDING", True),
    ("c", "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1", True),
    ("c", "echo no route to host >&2; exit 1", False),
    ("d", "echo FAILED", False),
])  # fmt: skip
def test_slurm_is_asked_whether_a_silent_job_of_its_cluster_has_ended(
    path, monkeypatch, tmp_path, capfd, cluster, answer, ended
):
    """If it has not, the lock holds until it was silent for long."""
    asked = tmp_path / "asked"
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho $* >> {asked}\n{answer}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", cluster)
    monkeypatch.setattr(lock, "STALE_SECONDS", 600.0 if ended else 0.8)
    leave(path, ELSEWHERE)
    take(path)
    assert asked.exists() == (cluster == ELSEWHERE.cluster)
    assert not asked.exists() or "--jobs=4711" in asked.read_text()
    assert ("its job" in capfd.readouterr().err) == ended


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
