"""The cost of planning a large study: how many jobs, and how it grows."""

import importlib.util
import math

import pytest
from conftest import ROOT

SPECIFICATION = importlib.util.spec_from_file_location("planning", ROOT / "benchmarks/planning.py")
assert SPECIFICATION
planning = importlib.util.module_from_spec(SPECIFICATION)


@pytest.fixture(scope="module")
def plans():
    assert SPECIFICATION.loader
    SPECIFICATION.loader.exec_module(planning)
    return [planning.plan(cells) for cells in (72, 288, 1008)]


@pytest.mark.ci
def test_a_full_cell_is_three_jobs_and_the_text_is_sixty_four_chunks(plans):
    """Training, its branches and its evaluation; calibrations do not depend on the seed."""
    text = 2 * (64 + 1)  # fetch and tokenize, of training and validation
    once = plans[0].jobs - 72 - 3 * 72 - text  # vocabulary, plan, figures and so on
    assert 0 < once < 50
    for plan in plans:
        assert plan.jobs == 3 * plan.cells + 72 + text + once


@pytest.mark.ci
def test_the_time_to_plan_grows_no_faster_than_the_cells(plans):
    small, large = plans[1:]
    exponent = math.log(large.seconds / small.seconds) / math.log(large.cells / small.cells)
    assert exponent < 1.1
    assert large.megabytes < 250
