"""The shipped coefficients: those of a software stack that nobody has measured, on published times.

``coefficients.json`` has the logarithms of the coefficients, their covariance, and the sources with
the number of updates of each. ``benchmarks/fit_throughput.py`` writes it.
"""

from functools import cache
from pathlib import Path

import numpy as np

from lmscaling.config.devices import Device
from lmscaling.files import read_json
from lmscaling.plan.throughput.model import NAMES, Coefficients

SHIPPED = Path(__file__).with_name("coefficients.json")


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
