"""The shipped coefficients: those of a software stack that nobody has measured, on published times.

``coefficients.json`` has the logarithms of the coefficients, their covariance, and the sources with
the number of updates of each. ``lmscaling fit-throughput`` writes it.
"""

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lmscaling.config.devices import Device
from lmscaling.files import read_json, write_json
from lmscaling.plan.throughput import facts
from lmscaling.plan.throughput.model import NAMES, Coefficients, pooled
from lmscaling.plan.throughput.terms import TERMS

SHIPPED = Path(__file__).with_name("coefficients.json")
DIGITS = 5


@cache
def shipped() -> Coefficients:
    """The coefficients that come with the package."""
    known = read_json(SHIPPED, "coefficients of the throughput model")
    cov = np.zeros((len(NAMES) + 1, len(NAMES) + 1))
    cov[np.tril_indices_from(cov)] = [value for row in known["covariance"] for value in row]
    return Coefficients(np.array(known["mean"]), cov + np.tril(cov, -1).T)


def known_of(device: Device) -> Coefficients:
    """The shipped coefficients, less certain of a device that no published time is of."""
    return shipped() if device.published else shipped().of_unpublished()


def fit(step_time: Path, out: Path) -> Coefficients:
    """Fit the coefficients to all published updates and write them.

    Args:
        step_time: The steps of the post, ``results/published/step_time.csv``.
        out: ``coefficients.json``.
    """
    post = [timing for _, timing in facts.read_post(step_time)]
    known = pooled([post, *facts.read().values()])
    write_json(out, _content(known, {facts.POST_SOURCE: len(post), **_sources()}))
    return known


def _sources() -> dict[str, int]:
    with facts.FACTS.open(newline="") as file:
        named = [row["source"] for row in csv.DictReader(file)]
    return {source: named.count(source) for source in dict.fromkeys(named)}


def _content(known: Coefficients, sources: dict[str, int]) -> dict[str, Any]:
    rounded = [
        [float(f"{value:.{DIGITS}g}") for value in row[: i + 1]]
        for i, row in enumerate(known.cov_KK)
    ]
    return {
        "sources": sources,
        "names": [*NAMES, "stack"],
        "units": [term.unit for term in TERMS.values()],
        "coefficients": [float(f"{value:.3g}") for value in np.exp(known.mean_K)],
        "mean": [float(f"{value:.{DIGITS}g}") for value in known.mean_K],
        "covariance": rounded,
    }
