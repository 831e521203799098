"""What predictions of losses have to beat, and what those were worth whose truth has become known:
rows of the view ``forecast_scores``."""

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame
from scipy import stats

from lmscaling.fits.points import Group

LEVELS = (0.8, 0.95)
SKILL = 0.5
"""Largest error over that of a guess that counts as closer than it."""
ALIKE = 0.05
"""Difference of logarithms up to which sizes, or numbers of tokens, are alike."""


def ruler(group: Group, N: float, D: float) -> dict[str, str | float]:
    """The straight line in the logarithms through the two nearest sizes, one on each side if there
    are, at about ``D`` tokens; or through the two nearest lengths of runs of ``N`` parameters.

    Returns:
        ``baseline``, and in nats ``baseline_median`` and the losses ``near`` and ``far``.
    """
    x, z = np.log(group.column("params") / N), np.log(group.column("tokens") / D)
    y = np.log(group.column("loss"))
    if (kept := np.abs(x) < ALIKE).any():
        x = z
    else:
        nearest = [np.abs(z[np.abs(x - at) < ALIKE]).min() for at in x]
        kept = np.abs(z) <= np.array(nearest) + ALIKE
    x, y = x[kept].round(2), y[kept]
    mean = {float(at): float(y[x == at].mean()) for at in x}
    first, *others = sorted(mean, key=abs)
    across = [at for at in others if at * first <= 0]
    second = (across or others or [first])[0]
    slope = (mean[second] - mean[first]) / ((second - first) or 1.0)
    at = np.exp([mean[first] - slope * first, mean[first], mean[second]]).tolist()
    return {"baseline": "a ruler", "baseline_median": at[0], "near": at[1], "far": at[2]}


def interval(rows: DataFrame, level: float) -> tuple[NDArray, NDArray]:
    """Lower and upper ends of the central intervals; NaN without one."""
    degrees = rows["degrees"].astype(float).fillna(np.inf)
    found = stats.t(degrees, loc=np.log(rows["median"]), scale=rows["sd"].astype(float))
    low, high = found.interval(level)
    return np.exp(low), np.exp(high)


def holds(rows: DataFrame, level: float) -> NDArray[np.bool_]:
    """Whether intervals hold what was measured, of the rows that have one."""
    (low, high), measured = interval(rows, level), rows["measured"].to_numpy(float)
    return ((low <= measured) & (measured <= high))[rows["sd"].notna().to_numpy()]


def error(rows: DataFrame, of: str = "median") -> float:
    """Root-mean-square logarithm of measured over predicted values; NaN if one is missing."""
    away = np.log(rows["measured"].to_numpy(float) / rows[of].to_numpy(float))
    return float(np.sqrt(np.mean(away**2))) if len(away) else np.nan


def worth(rows: DataFrame) -> str:
    """Predictions beside what they had to beat; empty without that. They are good only if a loss
    between those of their neighbours could have missed every interval, and none did."""
    baseline = rows["baseline"].iloc[0]
    if not baseline:
        return ""
    if not error(rows) <= SKILL * error(rows, "baseline_median"):
        return f"not twice as close as {baseline}"
    said, (low, high) = f"closer than {baseline}", interval(rows, LEVELS[1])
    if missed := (~holds(rows, LEVELS[1])).sum():
        return f"{said}, {missed} outside their 95 % intervals"
    near, far, sd = (rows[of].to_numpy(float) for of in ("near", "far", "sd"))
    if ((low <= np.minimum(near, far)) & (np.maximum(near, far) <= high)).any():
        return f"{said}, in an interval that holds both neighbours"
    could_fail = not np.isnan(near + sd).any()
    return f"good: {said}, in intervals that could fail" if could_fail else said
