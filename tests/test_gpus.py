"""Jobs of one machine do not share a GPU, and a job that ends frees what it held."""

import os
import signal
import subprocess
import sys
import time

import pytest

from lmscaling.runtime import gpus

THREE = [("0", "GPU-aaaa"), ("1", "GPU-bbbb"), ("2", "GPU-cccc")]


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine with three GPUs on which nothing runs."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(gpus.tempfile, "tempdir", None)
    monkeypatch.setattr(gpus, "installed", lambda: THREE)
    monkeypatch.setattr(gpus, "RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


HOLD = """
import os, time
from lmscaling.runtime import gpus
gpus.installed = lambda: {gpus}
with gpus.reserved({n}):
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    time.sleep(60)
"""


def other(n):
    """Another process that holds n GPUs, and what it was given."""
    code = HOLD.format(gpus=THREE, n=n)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, process.stdout.readline().strip()


def test_a_job_sees_what_no_other_job_has():
    process, theirs = other(2)
    try:
        with gpus.reserved(1):
            assert os.environ[gpus.VISIBLE] == "GPU-cccc"
        assert theirs == "GPU-aaaa,GPU-bbbb"
        assert gpus.VISIBLE not in os.environ
    finally:
        process.kill()
        process.wait()


def test_a_job_waits_until_enough_are_free_and_a_killed_job_frees_its_own(capfd):
    process, _ = other(2)
    begun = time.monotonic()
    subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -{signal.SIGKILL} {process.pid}"])
    with gpus.reserved(2):
        assert time.monotonic() - begun > 0.4
        assert os.environ[gpus.VISIBLE] == "GPU-aaaa,GPU-bbbb"
    process.wait()
    assert capfd.readouterr().err == "gpus: waiting for 2 of 3 GPUs\n"


def test_only_what_the_scheduler_allows_is_taken(monkeypatch):
    monkeypatch.setenv(gpus.VISIBLE, "2,GPU-a")
    with gpus.reserved(1):
        assert os.environ[gpus.VISIBLE] == "GPU-cccc"
    assert os.environ[gpus.VISIBLE] == "2,GPU-a"


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        (None, ["GPU-aaaa", "GPU-bbbb", "GPU-cccc"]),
        ("", []),
        ("1", ["GPU-bbbb"]),
        ("GPU-cc, 0", ["GPU-cccc", "GPU-aaaa"]),
        ("0,-1,1", ["GPU-aaaa"]),
    ],
)
def test_visible_reads_the_variable_as_cuda_does(setting, found):
    assert gpus.visible(setting, THREE) == found


@pytest.mark.parametrize("n", [0, 4])
def test_nothing_is_reserved_for_the_cpu_or_beyond_what_there_is(n):
    with gpus.reserved(n):
        assert gpus.VISIBLE not in os.environ


def test_a_rank_uses_what_its_parent_holds(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv(gpus.VISIBLE, "GPU-aaaa")
    with gpus.reserved(1):
        assert os.environ[gpus.VISIBLE] == "GPU-aaaa"
