"""The cost of planning a large study: how many jobs, and how it grows."""

import math
import subprocess
import sys

import pytest
from conftest import ROOT

CALIBRATED = 7
"""Cells whose times tell those of all."""


@pytest.mark.ci
def test_jobs_and_time_of_a_plan_grow_no_faster_than_its_cells():
    """A full cell is three jobs, training, its branches and its evaluation; calibrations do not
    depend on the seed. A thousand cells are planned in 250 megabytes, in a process of their own."""
    command = [sys.executable, ROOT / "benchmarks" / "planning.py", "288", "1008"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.replace(",", "").split("|")[1:-1] for line in said.splitlines()[2:]]
    (cells, jobs, seconds, _, _), (many, more_jobs, longer, _, megabytes) = (
        map(float, row) for row in rows
    )
    text = 64 + 1  # chunks of training and validation
    once = jobs - CALIBRATED - 3 * cells - text  # vocabulary, plan, figures and so on
    assert (cells, many) == (288, 1008)
    assert 0 < once < 50
    assert more_jobs == 3 * many + CALIBRATED + text + once
    assert math.log(longer / seconds) / math.log(many / cells) < 1.1
    assert megabytes < 250
