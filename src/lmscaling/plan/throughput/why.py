"""Why a run was as slow as it was: its mean update, predicted and measured, by term."""

import numpy as np

from lmscaling.config.devices import Device
from lmscaling.formatting import folded, noted
from lmscaling.plan.throughput.model import NAMES, Coefficients, Timing, vector
from lmscaling.plan.throughput.terms import TERMS, Work

CAUSE = 1.0
"""A coefficient that moves by so many standard deviations is named as a cause."""


def explain(work: Work, device: Device, seconds: float, known: Coefficients) -> str:
    """A table of the terms of an update, and a sentence on what would explain the difference.

    The second column of times is what the measured update makes of the terms: it is one number, so
    terms of which little is known take most of the difference.

    Args:
        work: The update of one device.
        device: Its kind of device.
        seconds: Mean time of an update.
        known: Coefficients that have not seen this run.
    """
    x_K = vector(work, device)
    predicted = known.predict(x_K, known.trained)
    after = known.measured([Timing(x_K, seconds)], known.trained)
    low, high = predicted.interval(0.8)
    lines = [["term", "predicted", "as measured", "coefficient", "unit"]]
    order = sorted(predicted.shares, key=lambda name: -predicted.shares[name])
    for name in order:
        i = NAMES.index(name)
        parts = [np.exp(c.mean_K[i] + c.mean_K[-1]) * x_K[i] for c in (known, after)]
        now = np.exp(after.mean_K[i])
        lines.append([name, *(f"{1e3 * part:.3g} ms" for part in parts), f"{now:.3g}",
                      TERMS[name].unit])  # fmt: skip
    ratio = seconds / predicted.seconds
    said = (
        f"{1e3 * seconds:.3g} ms an update, predicted {1e3 * predicted.seconds:.3g} ms "
        f"({1e3 * low:.3g} to {1e3 * high:.3g} with a probability of 80 %): {ratio:.2f} times"
    )
    return "\n".join([*noted(lines, left={0, 4}), "", *folded(said), *folded(_cause(known, after))])


def _cause(known: Coefficients, after: Coefficients) -> str:
    """The coefficients that moved most, in standard deviations of what was known of them."""
    moved = (after.mean_K - known.mean_K) / np.sqrt(np.diag(known.cov_KK))
    names = [*NAMES, "all terms alike"]
    causes = [i for i in np.argsort(-np.abs(moved)) if abs(moved[i]) >= CAUSE][:2]
    if not causes:
        return "no coefficient has to differ much from that of other stacks"
    told = ", ".join(
        f"{names[i]} {np.exp(after.mean_K[i] - known.mean_K[i]):.2f} times" for i in causes
    )
    return f"most likely: {told} of what is usual"
