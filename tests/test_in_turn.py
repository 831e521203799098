"""Several cells one after another in processes of their own, as a job trains branches."""

import json
import os
import signal
from dataclasses import replace

import forked
import pytest
from conftest import calibration, write_tokens

from lmscaling.errors import UserError
from lmscaling.train import in_turn

pytestmark = pytest.mark.ci


def train(*given):
    """As the verb does."""
    try:
        in_turn.train(*given)
    except UserError as error:
        raise SystemExit(f"error: {error}") from None


@pytest.fixture
def turn(cell, tmp_path):
    """Starts two cells of so many updates, and again; and their records."""

    def made(updates, tokens=3000):
        cells = [replace(cell, seed=seed, budget=f"{updates} updates") for seed in (0, 1)]
        files = [tmp_path / f"{each.run}.json" for each in cells]
        for each, file in zip(cells, files, strict=True):
            file.write_text(each.to_json())
        records = [tmp_path / "runs" / each.run / "run.json" for each in cells]
        manifest = write_tokens(tmp_path / "tokens", [tokens], [1000])
        scratch, way = tmp_path / "scratch" / cells[1].run, calibration(tmp_path, cells[0])
        given = files, manifest, scratch, records[1], way, None
        return lambda: forked.start(train, tmp_path / "said", *given), records

    return made


def test_one_that_fails_is_named_and_stops_no_other_and_what_has_a_record_is_left_out(
    turn, tmp_path
):
    start, records = turn(2)
    scratch = tmp_path / "scratch" / records[0].parent.name
    scratch.parent.mkdir()
    scratch.write_text("a file where a folder must be")
    assert forked.code(start(), tmp_path / "said") == 1
    assert f"failed: {records[0].parent.name};" in (tmp_path / "said").read_text()
    assert [path.is_file() for path in records] == [False, True]
    scratch.unlink()
    before = records[1].stat().st_ino
    assert forked.code(start(), tmp_path / "said") == 0
    assert [json.loads(path.read_text())["status"] for path in records] == ["done", "done"]
    assert records[1].stat().st_ino == before


def test_asked_to_stop_it_ends_its_process_and_begins_no_other(turn, tmp_path):
    start, records = turn(100_000, tokens=5_000_000)
    job = start()
    log = tmp_path / "scratch" / records[0].parent.name / "attempt-001.jsonl"
    forked.until(lambda: log.is_file() and log.stat().st_size > 5000, tmp_path / "said")
    os.kill(job.pid, signal.SIGTERM)
    assert forked.code(job, tmp_path / "said") == os.EX_TEMPFAIL
    assert list(log.parent.glob("checkpoint-*"))
    assert not (tmp_path / "scratch" / records[1].parent.name).exists()
