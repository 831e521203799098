"""Jobs of one machine do not share a GPU, and a job that ends frees what it held."""

import os
import subprocess
import sys
from contextlib import redirect_stderr
from io import StringIO

import pytest

from lmscaling.runtime import gpus, rank

pytestmark = pytest.mark.race
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


HOLD = """
import os, time
from lmscaling.runtime import gpus, rank
gpus.installed = lambda: {gpus}
with gpus.reserved({n}):
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def other():
    """Another process that holds two GPUs, and what it was given."""
    code = HOLD.format(gpus=THREE, n=2)
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
    (None, ["GPU-aaaa", "GPU-bbbb", "GPU-cccc"]),
    ("", []),
    ("GPU-cc, 0", ["GPU-cccc", "GPU-aaaa"]),
    ("0,-1,1", ["GPU-aaaa"]),
])  # fmt: skip
def test_visible_reads_the_variable_as_cuda_does(setting, found):
    assert gpus.visible(setting, THREE) == found


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
    code += "import lmscaling.evaluate.loss_by_position, lmscaling.evaluate.gradient_error\n"
    code += "print('torch._inductor.config' in sys.modules, torch.cuda.is_initialized())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
