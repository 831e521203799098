"""A kind of measurement is one file: it is planned, measured and stored by being there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import lmscaling
from lmscaling.config import grid, sweeps
from lmscaling.config.speed import AnySweep
from lmscaling.config.study import schema
from lmscaling.config.types import dump
from lmscaling.config.validation import checked

KIND = '''"""Time nothing at all."""

from pydantic.dataclasses import dataclass

from lmscaling.config.speed import point
from lmscaling.config.types import STRICT, Distinct, Positive
from lmscaling.records.timing import Outcome


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Nothing:
    """Nothing."""

    contexts: Distinct[Positive]
    """Tokens."""


SECTION = Nothing


def sweeps(section, planner):
    points = [point("linear", context=context) for context in section.contexts]
    yield planner.sweep(kind="time_nothing", name="nothing", points=points)


def measure(sweep, point):
    import torch

    from lmscaling.bench.clock import Timing

    return Timing([1.0, 2.0, 3.0], 1, False, None).outcome(point, torch.float32)
'''


@pytest.fixture
def run(tmp_path):
    """The command line of a copy of the package that has one more file."""
    source = Path(lmscaling.__file__).parent
    shutil.copytree(source, tmp_path / "src" / "lmscaling", ignore=shutil.ignore_patterns("*.pyc"))
    (tmp_path / "src/lmscaling/bench/kinds/time_nothing.py").write_text(KIND)

    def run(*arguments, given=""):
        done = subprocess.run(
            [sys.executable, "-m", "lmscaling", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
            input=given,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 or "error: " in done.stderr, done.stderr
        return done

    return run


def test_a_kind_is_added_by_its_file(run, tmp_path, values):
    common = {"timeout_seconds": 20, "repeats": 3, "target_seconds": 0.1}
    values["speed"] = common | {"time_nothing": {"contexts": [16, 32]}}
    study = tmp_path / "results" / "tiny"
    run("study", study / "study.json", given=json.dumps({"command": "", "study": values}))
    (path,) = study.glob("sweeps/time_nothing/*.json")
    run("time_nothing", path, study / "speed" / "time_nothing" / path.stem)
    run("collect", study)
    with duckdb.connect(study / "store" / "store.duckdb", read_only=True) as db:
        query = "SELECT kind, context, median_seconds, status FROM measurements ORDER BY ALL"
        assert db.sql(query).fetchall() == [
            ("time_nothing", 16, 2.0, "done"), ("time_nothing", 32, 2.0, "done"),
        ]  # fmt: skip
    values["speed"]["time_nothin"] = None
    done = run("study", study / "study.json", given=json.dumps({"command": "", "study": values}))
    assert "unknown key 'time_nothin' in speed; nearest is 'time_nothing'" in done.stderr


def test_every_kind_has_a_section_in_the_schema_and_a_description():
    properties = schema()["$defs"]["Speed"]["properties"]
    assert set(sweeps.KINDS) <= set(properties)
    assert {len(text.splitlines()) for text in sweeps.KINDS.values()} == {1}
    assert all(section["description"] for section in properties.values())


def test_keys_of_earlier_versions_are_read(values):
    task = {
        "attentions": ["linear"], "n_layer": 1, "n_head": 1, "d_model": 8, "symbols": 4,
        "contexts": [8, 16], "tokens": 16, "learned": [8], "updates": 2, "lr": 0.1,
    }  # fmt: skip
    values["speed"] = {"limit_seconds": 20, "repeats": 3, "point_seconds": 1, "copy_task": task}
    (sweep,) = sweeps.expand(grid.expand(values).study).values()
    assert (sweep.timeout_seconds, sweep.target_seconds) == (20, 1)
    assert [point.updates for point in sweep.points] == [0, 0]  # the sweep learned once
    old = {"limit_seconds" if k == "timeout_seconds" else k: v for k, v in dump(sweep).items()}
    assert checked(AnySweep, old, "sweep") == sweep
    values["speed"]["timeout_seconds"] = 30  # laid over the former key
    (later,) = sweeps.expand(grid.expand(values).study).values()
    assert later.timeout_seconds == 30
