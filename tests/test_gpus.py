"""Jobs of one machine do not share a GPU, and a job that ends frees what it held."""

import os
import signal
import subprocess
import sys
import time

import pytest

from lmscaling.runtime import gpus, rank

THREE = [("0", "GPU-aaaa"), ("1", "GPU-bbbb"), ("2", "GPU-cccc")]


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine with three GPUs on which nothing runs."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(gpus.tempfile, "tempdir", None)
    monkeypatch.setattr(gpus, "installed", lambda: THREE)
    monkeypatch.setattr(gpus, "RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    for name in (rank.RANK, gpus.COMPILERS, *gpus.ALLOCATORS):
        monkeypatch.delenv(name, raising=False)


HOLD = """
import os, time
from lmscaling.runtime import gpus, rank
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
    monkeypatch.setenv(rank.RANK, "1")
    monkeypatch.setenv(gpus.VISIBLE, "GPU-aaaa")
    with gpus.reserved(1):
        assert os.environ[gpus.VISIBLE] == "GPU-aaaa"


@pytest.mark.parametrize("installed", [THREE, []])
def test_a_job_with_gpus_gets_segments_that_grow_and_its_share_of_the_cores(monkeypatch, installed):
    monkeypatch.setattr(gpus, "installed", lambda: installed)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    with gpus.reserved(3):
        assert os.environ[gpus.ALLOCATOR] == "expandable_segments:True"
        assert os.environ[gpus.COMPILERS] == "21"
    assert gpus.ALLOCATOR not in os.environ
    assert gpus.COMPILERS not in os.environ
    with gpus.reserved(1):
        assert os.environ[gpus.COMPILERS] == "32"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    with gpus.reserved(3):
        assert os.environ[gpus.COMPILERS] == "1"


@pytest.mark.parametrize("name", gpus.ALLOCATORS)
def test_settings_of_the_user_stay(monkeypatch, name):
    monkeypatch.setenv(name, "max_split_size_mb:512")
    monkeypatch.setenv(gpus.COMPILERS, "5")
    with gpus.reserved(1):
        found = {
            key: os.environ[key] for key in (*gpus.ALLOCATORS, gpus.COMPILERS) if key in os.environ
        }
        assert found == {name: "max_split_size_mb:512", gpus.COMPILERS: "5"}
    assert os.environ[name] == "max_split_size_mb:512"


def test_a_job_on_the_cpu_gets_no_settings():
    before = dict(os.environ)
    with gpus.reserved(0):
        assert dict(os.environ) == before


def test_pytorch_reads_the_settings_only_after_they_are_made():
    """The verbs load the packages before they reserve GPUs."""
    code = """
import sys
import lmscaling.train.calibrate, lmscaling.bench.sweep
import lmscaling.evaluate.loss_by_position, lmscaling.evaluate.gradient_error
import torch
print("torch._inductor.config" in sys.modules, torch.cuda.is_initialized())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
