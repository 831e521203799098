"""Tables of the documents: of coverage, which tiny runs confirm, and counted costs of kernels."""

from collections.abc import Callable
from dataclasses import replace

import counts
import coverage
import coverage_compute
import coverage_curves
import coverage_gaps
import coverage_noise
import coverage_rates
import coverage_surfaces
import offline
import pytest
from coverage import Row, verdict
from scipy.stats import binom

ROW = Row("surface", "clean", "ours", "beta", 0.001, 0.02, 0.95, 0.04, 0.0, 500)


@pytest.mark.parametrize(("fitter", "share", "refused", "said"), [
    ("ours", 0.919, 0.0, "misses"), ("ours", 0.92, 0.0, "ok"), ("ours", 0.975, 0.0, "ok"),
    ("ours", 0.98, 0.0, "conservative"), ("ours", 1.0, 0.0, "too wide"), ("ours", None, 0.0, ""),
    ("ours", 0.5, 0.97, "refused"), ("ours", 0.5, 0.5, "misses"), ("squares", 0.1, 0.0, ""),
    ("ours: conservative", 1.0, 0.0, "conservative"), ("ours: conservative", 0.91, 0.0, "misses"),
])  # fmt: skip
def test_a_row_is_judged_by_the_share_of_intervals_that_hold_the_truth(
    fitter, share, refused, said
):
    assert verdict(ROW._replace(fitter=fitter, coverage=share, refused=refused)) == said


def test_pages_have_the_numbers_of_their_tables_and_ours_hold_the_bound():
    assert "\n".join(counts.tables()) in counts.DOCUMENT.read_text(), "benchmarks/counts.py --write"
    rows = coverage.read()
    assert coverage.pages(rows) in coverage.PAGE.read_text()
    for row in rows:
        assert verdict(row) != "misses", row
        assert row.law != "surface" or verdict(row) != "too wide", row


FAMILIES = coverage_surfaces.FAMILIES | coverage_surfaces.MORE


def surface(*names: str) -> Callable[[int], list[Row]]:
    of = {name: FAMILIES[name] for name in names}
    return lambda studies: coverage_surfaces.surfaces(studies, ("ours",), of)


TINY: dict[str, tuple[int, Callable[[int], list[Row]]]] = {
    "gaps": (8, lambda n: coverage_gaps.tables("heteroscedastic", "seeds 3 in 6 cells", n)),
    "gaps of shared noise": (8, lambda n: coverage_gaps.tables("shared", "seeds 3", n)),
    "unstable attentions": (
        12,
        lambda n: coverage_noise.tables("10 % of runs 0.3 nats higher", 3, n),
    ),
    "farther": (20, lambda n: coverage_surfaces.farther(n, ["rates off at large sizes"])),
    "multipliers": (12, lambda n: coverage_gaps.curves(0.01, 3, n)),
    "one seed": (12, lambda n: coverage_gaps.curves(0.01, 1, n)),
    "surfaces": (60, surface("heavy", "two blown", "few sizes")),
    "forecasts": (30, coverage_surfaces.forecasts),
    "compute": (6, lambda n: [coverage_compute.multiples("alpha halves above 1e8", "clean", n)]),
    "time laws": (24, lambda n: coverage_curves.time_law("heavy", 2, 0.01, n)),
    "refused time laws": (12, lambda n: coverage_curves.time_law("misspecified", 3, 0.01, n)),
    "best contexts": (24, lambda n: coverage_curves.best_context("heteroscedastic", 2, 0.01, n)),
    "best sizes": (24, lambda n: coverage_curves.best_size("one run blown up", 3, 0.01, n)),
    "rates": (30, lambda n: list(coverage_rates.rates("heavy", n))),
}


@pytest.mark.parametrize("law", TINY)
def test_a_few_studies_agree_with_the_table(law):
    """A share of few studies is as far from that of the table as chance makes it in one of a
    million, were all intervals of a study one."""
    published = {row[:4]: row for row in coverage.read()}
    studies, made = TINY[law]
    rows = made(studies)
    assert {row[:4] for row in rows} <= set(published)
    for row in rows:
        share = published[row[:4]].coverage
        assert (row.refused > 0.5) == (published[row[:4]].refused > 0.5), row
        if row.coverage is not None and share is not None and row.refused < 0.5:
            held = round(row.coverage * studies)
            assert binom.cdf(held, studies, min(share, 0.99)) > 1e-6, row
            assert binom.sf(held - 1, studies, max(share, 0.01)) > 1e-6, row


CONSERVATIVE = ("two blown", "two seeds, blown", "ten sizes")
"""Families in which some intervals are wider than necessary."""


@pytest.mark.ci
@pytest.mark.parametrize("name", FAMILIES)
def test_intervals_of_a_surface_hold_the_truth_in_95_percent_of_500_studies(name):
    for row in surface(name)(500):
        if name == "few sizes":
            assert row.refused == 1
            continue
        assert row.refused <= 0.05, row
        assert row.coverage is not None
        low, high = coverage.BOUND
        assert low <= row.coverage <= (0.995 if name in CONSERVATIVE else high), row


@pytest.mark.ci
def test_right_surfaces_pass_the_forecast_and_bent_ones_fail_it():
    for row in coverage_surfaces.forecasts(200):
        assert row.coverage is not None
        assert row.coverage <= 0.3 if "bent" in row.family else row.coverage >= 0.95, row


def test_a_kernel_takes_the_longer_of_its_memory_and_its_instructions():
    row = offline.Row(
        kernel="chunked_forward_kept_bf16_64", target="sm_90", triton="3.7.1", ptxas="12.8",
        warps=4, registers=225, shared_bytes=59392, loop_instructions=1280, loop_tokens=64,
    )  # fmt: skip
    assert counts.slots(row) == 20
    copied, issued = 652 / 4.3e12, 20 / (132 * 1.755e9)
    low, high = counts.picoseconds(row, counts.DEVICES[0])
    assert (low, high) == pytest.approx((1.13 * copied * 1e12, 1.4 * copied * 1e12))
    low, _ = counts.picoseconds(replace(row, loop_instructions=12800), counts.DEVICES[0])
    assert low == pytest.approx(10 * issued / 0.85 * 1e12)
    assert counts.programs(row) == 2  # 65,536 registers of 4 x 7,424
    assert counts.programs(replace(row, registers=112)) == 3  # 233,472 bytes of 60,416
    assert counts.programs(replace(row, registers=16, shared_bytes=0, warps=16)) == 4
