"""Shards on the local disk of a node: the same ids, shared by runs, gone with who made them."""

import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import write_tokens

from lmscaling.data import local_copies
from lmscaling.data.stream import Stream

LENGTHS = [500] * 8


@pytest.fixture
def manifest(tmp_path):
    return write_tokens(tmp_path / "shared", LENGTHS, [100])


def copies(folder):
    return sorted(folder.glob("lmscaling-*/*.bin"))


def wait_for(n, folder):
    deadline = time.monotonic() + 60
    while len(copies(folder)) < n:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_read_next_is_copied_and_read_from_there_with_the_same_ids(manifest, tmp_path):
    expected = Stream(manifest, "train").read(0, sum(LENGTHS))
    stream, local = Stream(manifest, "train", tmp_path / "local"), tmp_path / "local"
    assert np.array_equal(stream.read(0, 10), expected[:10])
    wait_for(local_copies.AHEAD, local)
    time.sleep(0.1)
    assert len(copies(local)) == local_copies.AHEAD
    for k in (2, 3):
        (manifest.parent / f"train-{k:05d}.bin").unlink()
    assert np.array_equal(stream.read(0, 2000), expected[:2000])


def test_two_runs_of_a_node_share_a_copy(manifest, tmp_path):
    first, local = Stream(manifest, "train", tmp_path / "local"), tmp_path / "local"
    first.read(0, 10)
    wait_for(local_copies.AHEAD, local)
    before = {path: path.stat().st_ino for path in copies(local)}
    Stream(manifest, "train", local).read(0, 10)
    time.sleep(0.3)
    assert {path: path.stat().st_ino for path in copies(local)} == before


def test_a_copy_that_is_not_the_shard_is_not_used(manifest, tmp_path, capfd):
    expected = Stream(manifest, "train").read(0, sum(LENGTHS))
    stream, local = Stream(manifest, "train", tmp_path / "local"), tmp_path / "local"
    stream.read(0, 10)
    wait_for(local_copies.AHEAD, local)
    for path in copies(local):
        path.write_bytes(path.read_bytes()[:-2] + b"xx")
    assert np.array_equal(stream.read(0, sum(LENGTHS)), expected)
    assert "node_scratch: a copy is not used: shard " in capfd.readouterr().err


def test_a_full_or_a_missing_disk_costs_a_sentence(manifest, tmp_path, capfd, monkeypatch):
    full = SimpleNamespace(total=1000, free=40, used=960)
    monkeypatch.setattr(local_copies.shutil, "disk_usage", lambda _: full)
    (tmp_path / "file").touch()
    for folder, reason in (("local", "has no more room"), ("file", "Not a directory")):
        stream = Stream(manifest, "train", tmp_path / folder)
        assert len(stream.read(0, sum(LENGTHS))) == sum(LENGTHS)
        time.sleep(0.3)
        said = capfd.readouterr().err
        assert reason in said
        assert said.count("node_scratch: ") == 1
    assert not copies(tmp_path / "local")


def test_a_process_deletes_the_copies_that_it_made_and_no_others(manifest, tmp_path):
    code = """
import sys, time
from pathlib import Path
from lmscaling.data.stream import Stream
local = Path(sys.argv[2])
Stream(Path(sys.argv[1]), "train", local).read(0, 10)
while len(list(local.glob("*/*.bin"))) < 4: time.sleep(0.01)
time.sleep(0.2)
if sys.argv[3:]: next(local.iterdir()).joinpath("of-another-run.bin").touch()
"""
    command = [sys.executable, "-c", code, str(manifest), str(tmp_path / "local")]
    subprocess.run(command, check=True, timeout=60)
    assert not list((tmp_path / "local").iterdir())
    subprocess.run([*command, "other"], check=True, timeout=60)
    assert [path.name for path in copies(tmp_path / "local")] == ["of-another-run.bin"]


def test_without_a_folder_nothing_is_copied(manifest):
    stream = Stream(manifest, "train")
    stream.read(0, 10)
    assert stream._copies is None


def test_a_rank_that_copies_nothing_reads_the_copies_of_another(manifest, tmp_path):
    expected, local = Stream(manifest, "train").read(0, 2000), tmp_path / "local"
    other = Stream(manifest, "train", local, copies=False)
    other.read(0, 10)
    Stream(manifest, "train", local).read(0, 10)
    wait_for(local_copies.AHEAD, local)
    time.sleep(0.1)
    for k in (2, 3):
        (manifest.parent / f"train-{k:05d}.bin").unlink()
    assert np.array_equal(other.read(0, 2000), expected)
    assert len(copies(local)) >= local_copies.AHEAD
