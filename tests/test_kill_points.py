"""A run that is killed at any file operation of its start, a checkpoint or its end is recorded."""

import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import forked
import pytest
from conftest import calibration
from test_resume import surviving
from test_train import trained

from lmscaling.files import read_json
from lmscaling.train.outcome import attempts

CHANGES = "open", "os.rename", "os.remove", "os.mkdir", "os.link"
EVERY_UPDATE = 0.0


def attempt(folder: Path, manifest: Path, fatal: int, full: bool = False) -> None:
    """Train, and die before the so manyth change of a file of this run; 0 for never. Or the disk is
    full from then on."""
    from lmscaling.train import checkpoint, run

    checkpoint.CHECKPOINT_SECONDS = EVERY_UPDATE
    done = [0]

    def count(event, arguments):
        if event in CHANGES and str(arguments[0]).startswith(str(folder)):
            done[0] += 1
            if done[0] == fatal and not full:
                os._exit(9)
            is_new = event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if full and done[0] >= fatal and is_new and event not in ("os.rename", "os.remove"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))

    sys.addaudithook(count)
    scratch, record = folder / "scratch" / "run", folder / "run" / "run.json"
    run.train(folder / "cell.json", manifest, scratch, record, folder / "calibration.json")


@pytest.mark.ci
def test_killed_at_any_file_operation_it_ends_as_if_undisturbed(cell, tokens, tmp_path):
    cell = replace(cell, budget="2 updates")

    def folder(name):
        made = tmp_path / name
        made.mkdir()
        (made / "cell.json").write_text(cell.to_json())
        calibration(made, cell)
        return made

    def start(place, fatal):
        said = place / "said"
        said.touch()
        return forked.code(forked.start(attempt, said, place, tokens, fatal), said)

    plain, point, code = folder("plain"), 0, 9
    assert start(plain, 0) == 0
    weights = (plain / "run" / "model.safetensors").read_bytes()
    while code == 9:
        point += 1
        place = folder(str(point))
        code = start(place, point)
        if code == 9:
            assert start(place, 0) == 0, (point, (place / "said").read_text())
        assert (place / "run" / "model.safetensors").read_bytes() == weights, point
        assert surviving(place) == surviving(plain), point
        record = read_json(place / "run" / "run.json", "record")
        assert record["status"] == "done"
        left = sorted(path.name for path in (place / "scratch").glob("run/*"))
        # The lock of a process that was killed is broken by the next one that needs it.
        assert [name for name in left if "lock" not in name] == [], point
    assert code == 0
    assert point > 30


@pytest.mark.ci
def test_a_disk_that_is_full_from_any_file_operation_on_holds_the_run(cell, tokens, tmp_path):
    cell, point, code = replace(cell, budget="2 updates"), 1, 1
    while code:
        place = tmp_path / str(point)
        place.mkdir()
        (place / "cell.json").write_text(cell.to_json())
        calibration(place, cell)
        said = place / "said"
        said.touch()
        code = forked.code(forked.start(attempt, said, place, tokens, point, True), said)
        if code:
            assert os.strerror(errno.ENOSPC) in said.read_text()
            assert "is held on" in said.read_text().splitlines()[-1], (point, said.read_text())
            assert forked.code(forked.start(attempt, said, place, tokens, 0), said) == 0
        record = read_json(place / "run" / "run.json", "record")
        assert (record["status"], record["updates"]) == ("done", 2)
        point += 4
    assert point > 20


@pytest.mark.parametrize("header", [b"", b'{"record": "hea', bytes(100), b"{}\n", b"7\n"])
def test_a_log_without_its_header_keeps_no_run_from_its_record(cell, tokens, tmp_path, header):
    scratch = tmp_path / "scratch" / cell.run
    scratch.mkdir(parents=True)
    (scratch / "attempt-002.jsonl").write_bytes(header)  # the first one has been purged
    made, log = trained(tmp_path, cell, tokens)
    assert (made.status, made.attempts) == ("done", 3)
    assert attempts(scratch) == []
    record = json.loads(log.with_name("run.json").read_text())
    lines = log.read_bytes()
    assert record["log_lines"] == lines.count(b"\n") == made.log_lines
    assert record["log_sha256"] == made.log_sha256
