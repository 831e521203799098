"""What a build of the store leaves behind, and what it costs."""

import errno
import os
import subprocess
import sys

import pytest
from conftest import ROOT
from test_damaged_logs import finished, parquet
from test_store import runs, study

from lmscaling import files
from lmscaling.store import build as store

__all__ = ["finished", "runs", "study"]

FULL = """
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
from lmscaling.errors import UserError
from lmscaling.store.build import build
try:
    build(Path(sys.argv[1]))
except UserError as error:
    print(error)
"""
"""A build whose files cannot grow beyond some bytes, as on a full disk."""


@pytest.mark.parametrize("size", [20_000, 1_000_000])
def test_a_full_disk_is_one_sentence_and_the_store_before_is_unchanged(finished, size):
    before = parquet(finished)
    command = [sys.executable, "-c", FULL, str(finished), str(size)]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    said = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert said.returncode == 0, said.stderr
    assert str(finished) in said.stdout
    assert os.strerror(errno.EFBIG) in said.stdout
    assert parquet(finished) == before
    assert not list((finished / "store").glob(".*"))


def test_what_a_killed_build_has_left_is_removed_and_what_another_machine_writes_is_not(finished):
    killed = finished / "store" / f".build.{files.HOST}.99999999.00.tmp"
    elsewhere = finished / "store" / ".build.elsewhere.1.00.tmp"
    for folder in (killed, elsewhere):
        folder.mkdir()
        (folder / "store.duckdb").touch()
    store.build(finished)
    assert not killed.exists()
    assert elsewhere.exists()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The cost of building 64 and 256 runs of 5,000 updates, the latter twice."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import collecting  # pyright: ignore[reportMissingImports]

    found = {}
    for n in (64, 256):
        folder = collecting.study(tmp_path_factory.mktemp(f"of{n}"), n, 5000)
        found[n] = [collecting.build(folder) for _ in range(2 if n == 256 else 1)]
    return found


@pytest.mark.ci
def test_a_build_grows_with_its_rows_but_its_memory_and_a_second_build_do_not(built):
    (small,), (large, again) = built[64], built[256]
    assert large.seconds < 4 * small.seconds
    # A batch of logs is 400,000 rows; without batches a million rows more took 0.5 GB more.
    assert large.megabytes - small.megabytes < 300
    assert again.seconds < 0.8 * large.seconds  # no log is read again
