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
from lmscaling.config import sweeps
from lmscaling.config.study import schema

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
    run("build-store", study)
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
