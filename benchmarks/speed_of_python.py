"""Limits in seconds are those of a reference machine; another machine has them in proportion."""

import inspect
import textwrap
import time

REFERENCE_SECONDS = 0.17
"""Processor time of the Python below on the reference machine, where ``snakemake -n`` of the study
took 4.6 s at version b610f6c. That is 27 times as long: the median of six runs elsewhere."""


def slowness() -> float:
    """How many times as long as the reference machine this one takes now; at least 1."""
    begun = time.process_time()
    for _ in range(20_000):
        inspect.signature(textwrap.fill)
    return max(1.0, (time.process_time() - begun) / REFERENCE_SECONDS)
