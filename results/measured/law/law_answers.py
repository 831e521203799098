"""Answers to questions.md, by the rules given there.

    python results/measured/law/law_answers.py                 # print them
    python results/measured/law/law_answers.py results/law     # of a study that still runs
    python results/measured/law/law_answers.py --write         # into answers.md, for the docs

Every number is from a query of the store.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from lmscaling import Study
from lmscaling.fits import forecast_scores, seeds
from lmscaling.fits.uncertainty import LEVEL

FOLDER = Path(__file__).parent
PAGE = FOLDER / "answers.md"
SMALL, LARGE, HELD_OUT = "14k", "220k", "400k"
OTHERS = ("linear", "retention")

MULTIPLIERS = """
    SELECT attention, size, loss, flops, flops_low, flops_high, why
    FROM multipliers JOIN (SELECT size, max(params) AS params FROM known GROUP BY size) USING (size)
    WHERE with_baseline ORDER BY attention, params
"""
ENDS = "SELECT attention, size, params, seed, share, val_loss AS loss FROM endpoints ORDER BY ALL"
SURFACES = """
    SELECT attention, E, E_low, E_high, alpha, alpha_low, alpha_high, beta, beta_low, beta_high, why
    FROM surfaces WHERE losses LIKE '%decayed%' OR schedule = 'decayed' ORDER BY attention DESC
"""
FLOORS = "SELECT name, min(loss) AS loss FROM floors GROUP BY name ORDER BY loss DESC"
SEALED = """
    SELECT attention, size, seed, median, sd, degrees, measured
    FROM forecast_scores WHERE quantity = 'loss' AND name LIKE '%-b1' AND state = 'scored'
    ORDER BY attention DESC
"""
HOURS = "SELECT sum(train_seconds) / 3600 AS hours, count(*) AS runs FROM runs"


def rows_of(study: Study, text: str) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in row.items()} for row in study.query(text).to_dict("records")]


def table(*rows: Sequence[str]) -> str:
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *others))


def ranged(value: float, low: float, high: float, digits: int = 2) -> str:
    """A number with its interval; ``n/a`` without an end."""
    if not math.isfinite(value):
        return "n/a"
    is_known = math.isfinite(low) and math.isfinite(high)
    ends = f" ({low:.{digits}f} to {high:.{digits}f})" if is_known else ""
    return f"{value:.{digits}f}{ends}"


def cost(study: Study) -> str:
    """Questions 1 and 2: the compute multiplier at each size."""
    rows = study.query(MULTIPLIERS)
    sizes = [*dict.fromkeys(rows["size"])]
    lines = [["attention", *sizes, f"at {LARGE}"]]
    for name in OTHERS:
        own = rows[rows.attention == name].set_index("size").reindex(sizes)
        cells = [
            ranged(*own.loc[s, ["flops", "flops_low", "flops_high"]].astype(float)) for s in sizes
        ]
        _, low, high = own.loc[LARGE, ["flops", "flops_low", "flops_high"]].astype(float)
        verdict = "costs more" if high < 1 else "costs less" if low > 1 else "not decided"
        lines.append([name, *cells, verdict])
    return table(*lines)


def growth(ends: DataFrame) -> str:
    """Question 3: the gap at 220k and the whole budget minus that at 14k and a quarter."""
    lines = [["attention", f"gap at {SMALL}, a quarter", f"gap at {LARGE}, the whole",
              "difference, by seed", "mean", ""]]  # fmt: skip
    for name in OTHERS:
        small, large = (gaps(ends, name, *place) for place in ((SMALL, 0.25), (LARGE, 1.0)))
        found = [large[seed] - small[seed] for seed in sorted(small)]
        centre, interval = seeds.mean(found)
        low, high = (interval.low or 0, interval.high or 0) if interval else (-math.inf, math.inf)
        verdict = "grows" if low > 0 else "shrinks" if high < 0 else "not decided"
        lines.append([
            name, *(f"{np.mean([*own.values()]):+.3f}" for own in (small, large)),
            ", ".join(f"{value:+.3f}" for value in found), ranged(centre, low, high, 3), verdict,
        ])  # fmt: skip
    return table(*lines)


def gaps(ends: DataFrame, name: str, size: str, share: float) -> dict[int, float]:
    """Losses minus those of softmax at the end of a branch, by seed."""
    at = {
        (row["attention"], row["seed"]): row["loss"]
        for row in ends.to_dict("records")
        if (row["size"], row["share"]) == (size, share)
    }
    seeds_of = sorted(seed for one, seed in at if one == name and ("softmax", seed) in at)
    return {seed: at[name, seed] - at["softmax", seed] for seed in seeds_of}


def exponents(study: Study) -> str:
    """Question 4: the laws and whether the intervals of two attentions exclude each other."""
    lines = [["attention", "E", "alpha", "beta", "status"]]
    for row in rows_of(study, SURFACES):
        numbers: list[str] = []
        for key in ("E", "alpha", "beta"):
            value, low, high = (float(row[f"{key}{end}"]) for end in ("", "_low", "_high"))
            numbers.append(ranged(value, low, high))
        lines.append([row["attention"], *numbers, row["why"]])
    return table(*lines)


def floors(study: Study, ends: DataFrame) -> str:
    """Question 5: which mean losses at the whole budget are below the tables of n-grams."""
    known = rows_of(study, FLOORS)
    whole = ends[ends.share == 1.0].groupby(["attention", "size", "params"]).loss.mean()
    means = whole.reset_index().sort_values("params")
    sizes = [*dict.fromkeys(means["size"])]
    lines = [["loss at the whole budget", *sizes]]
    for name in ("softmax", *OTHERS):
        own = means[means.attention == name].set_index("size").loss
        below = {s: [f["name"] for f in known if own[s] < f["loss"]] for s in own.index}
        lines.append([name, *(f"{own[s]:.3f}, below {below[s][-1]}" if below.get(s) else
                              f"{own[s]:.3f}" if s in own else "" for s in sizes)])  # fmt: skip
    said = ", ".join(f"{row['name']} {row['loss']:.3f}" for row in known)
    return f"{table(*lines)}\n\nFloors, nats per byte: {said}."


def sealed(study: Study, ends: DataFrame) -> str:
    """Question 6: the sealed predictions, and a straight line through the two nearest sizes."""
    means = ends[ends.share == 1.0].groupby(["attention", "size", "params"]).loss.mean()
    lines = [
        ["attention", "sealed, 95 %", "line", "measured", "error of the seal, of the line", ""]
    ]
    errors: list[tuple[float, float]] = []
    inside: list[bool] = []
    for row in rows_of(study, SEALED):
        (low,), (high,) = forecast_scores.interval(DataFrame([row]), LEVEL)
        line, measured = straight(means, row["attention"]), row["measured"]
        errors.append((row["median"] - measured, line - measured))
        inside.append(bool(low <= measured <= high))
        lines.append([
            row["attention"], ranged(row["median"], low, high, 3), f"{line:.3f}",
            f"{measured:.3f}", f"{errors[-1][0]:+.3f}, {errors[-1][1]:+.3f}",
            "inside" if inside[-1] else "outside",
        ])  # fmt: skip
    ours, ruler = np.abs(errors).mean(axis=0)
    verdict = ("good" if ours < ruler / 2 else "held") if all(inside) else "not held"
    return (
        f"{table(*lines)}\n\nMean absolute errors: {ours:.3f} nats of the seal, {ruler:.3f} of the "
        f"line. The forecast is {verdict}."
    )


def straight(means: DataFrame, name: str) -> float:
    """The loss of the held-out size on the line ln(loss) over ln(parameters) through the two
    nearest sizes."""
    own = means.loc[name].reset_index().sort_values("params").reset_index(drop=True)
    at = float(own[own["size"] == HELD_OUT].params.iloc[0])
    x, y = (np.log(own[own["size"] != HELD_OUT][key].to_numpy()[-2:]) for key in ("params", "loss"))
    return float(math.exp(y[1] + (y[1] - y[0]) / (x[1] - x[0]) * (math.log(at) - x[1])))


def answers(study: Study) -> Iterator[tuple[str, str]]:
    """Question and answer."""
    ends = study.query(ENDS)
    yield "1 and 2. Compute multipliers at equal loss, 95 % CI", cost(study)
    yield "3. Does the gap to softmax grow with the compute?", growth(ends)
    yield "4. The laws", exponents(study)
    yield "5. Tables of n-grams", floors(study, ends)
    if HELD_OUT in {*ends["size"]}:
        yield f"6. The sealed losses of {HELD_OUT}", sealed(study, ends)


def page(study: Study) -> str:
    """All answers, and what the runs took."""
    parts = [f"### {question}\n\n{answer}" for question, answer in answers(study)]
    (spent,) = rows_of(study, HOURS)
    parts.append(f"The {spent['runs']} runs took {spent['hours']:.1f} CPU hours of training.")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--write", action="store_true", help=f"write into {PAGE.name}")
    args = parser.parse_args()
    text = page(Study(args.folder, fresh=True))
    PAGE.write_text(f"{text}\n") if args.write else print(text)


if __name__ == "__main__":
    main()
