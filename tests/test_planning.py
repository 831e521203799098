"""The cost of planning a large study: how many jobs, and how it grows."""

import math
import subprocess
import sys
from typing import NamedTuple

import pytest
from conftest import ROOT

CALIBRATED = 7
"""Cells whose times tell those of all."""


class Plan(NamedTuple):
    cells: int
    jobs: int
    seconds: float
    megabytes: float


@pytest.fixture(scope="module")
def plans():
    """The rows of the table that the bench prints; in this process, memory would be that of it."""
    command = [sys.executable, ROOT / "benchmarks" / "planning.py", "288", "1008"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.replace(",", "").split("|")[1:-1] for line in said.splitlines()[2:]]
    return [
        Plan(int(cells), int(jobs), float(seconds), float(megabytes))
        for cells, jobs, seconds, _, megabytes in rows
    ]


@pytest.mark.ci
def test_a_full_cell_is_three_jobs_and_the_text_is_sixty_four_chunks(plans):
    """Training, its branches and its evaluation; calibrations do not depend on the seed."""
    text = 2 * (64 + 1)  # fetch and tokenize, of training and validation
    once = plans[0].jobs - CALIBRATED - 3 * 288 - text  # vocabulary, plan, figures and so on
    assert 0 < once < 50
    for plan in plans:
        assert plan.jobs == 3 * plan.cells + CALIBRATED + text + once


@pytest.mark.ci
def test_the_time_to_plan_grows_no_faster_than_the_cells(plans):
    small, large = plans
    exponent = math.log(large.seconds / small.seconds) / math.log(large.cells / small.cells)
    assert exponent < 1.1


@pytest.mark.ci
def test_a_thousand_cells_are_planned_in_250_megabytes(plans):
    assert plans[-1].megabytes < 250
