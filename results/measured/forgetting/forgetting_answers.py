"""Answers to questions.md, by the rules given there.

    python results/measured/forgetting/forgetting_answers.py            # of the records beside it
    python results/measured/forgetting/forgetting_answers.py results    # of studies in a folder
    python results/measured/forgetting/forgetting_answers.py results --seal    # H6, before its runs
    python results/measured/forgetting/forgetting_answers.py results --keep    # their losses

Each hypothesis is a list of conditions on means over seeds. Its p-value is the largest of theirs,
and those of all hypotheses are corrected by Holm's method. It is refuted if a condition is violated
significantly, its p-value times the number of conditions being below 5 %.
"""

import argparse
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame, concat, read_csv
from scipy.stats import t

from lmscaling import Study
from lmscaling.fits import seeds
from lmscaling.fits.noise import holm

HERE = Path(__file__).parent
SEAL = Path(__file__).with_name("sealed.json")
PAIRED, GATES = (Path(__file__).with_name(f"{name}.jsonl") for name in ("paired", "gates"))
LEVEL = 0.05
READER = "a reader that cannot forget, plus k"
FORMS = {
    "linear_parts": "sum",
    "linear_parts.normrms": "rms",
    "linear_parts.gatescalar": "gate",
    "linear_parts.gatedecay.half_life64": "decay 64",
    "linear_parts.gatedecay.half_life256": "decay 256",
    "softmax": "softmax",
    "local.window32": "window 32",
    "local.window128": "window 128",
}
PARTS = ("", "reset", "longer", "two", "two_longer")
"""Ends of the names of the studies."""
QUERIES = {
    "validations": """
        SELECT run, attention, context, seed, "update" AS step, flops, val_loss AS loss
        FROM validation WHERE status = 'done' ORDER BY run, step
    """,
    "floors": "SELECT name, context, loss FROM floors WHERE context IS NOT NULL ORDER BY ALL",
}
KEYS = {"validations": ["part", "run", "step"], "floors": ["part", "name", "context"]}


class Condition(NamedTuple):
    """That the mean of a sample is above a bound."""

    words: str
    sample: Sequence[float]
    bound: float

    @property
    def statistic(self) -> float:
        error = np.std(self.sample, ddof=1) / math.sqrt(len(self.sample))
        return float((np.mean(self.sample) - self.bound) / error)

    @property
    def p(self) -> float:
        return float(t.sf(self.statistic, len(self.sample) - 1))

    @property
    def contrary(self) -> float:
        """The p-value that the mean is below the bound."""
        return float(t.cdf(self.statistic, len(self.sample) - 1))


def above(words: str, sample: Sequence[float], bound: float) -> list[Condition]:
    return [Condition(f"{words} > {bound:g}", sample, bound)]


def below(words: str, sample: Sequence[float], bound: float) -> list[Condition]:
    return [Condition(f"{words} < {bound:g}", [-x for x in sample], -bound)]


def within(words: str, sample: Sequence[float], low: float, high: float) -> list[Condition]:
    return above(words, sample, low) + below(words, sample, high)


class Losses(NamedTuple):
    """Validation losses by form, context and seed, and what readers reach."""

    last: dict[tuple[str, int], dict[int, float]]
    floors: dict[tuple[str, int], float]

    def excess(self, form: str, context: int) -> dict[int, float]:
        exact = self.floors["exact", context]
        return {seed: loss - exact for seed, loss in self.last[form, context].items()}

    def lag(self, context: int) -> float:
        """Excess of a reader that cannot forget, nats."""
        return self.floors["cannot forget", context] - self.floors["exact", context]

    def mean(self, form: str, context: int) -> float:
        return float(np.mean([*self.excess(form, context).values()]))


def folder_of(part: str, results: Path) -> Path:
    return results / "_".join(filter(None, ("forgetting", part)))


def read(kind: str, part: str, results: Path | None) -> DataFrame:
    """Rows of one of ``QUERIES``, of a study in a folder of results or as they are kept."""
    if results is None:
        kept = read_csv(HERE / f"{kind}.csv", keep_default_na=False)
        return kept.loc[kept.part == part]
    return Study(folder_of(part, results), fresh=True).query(QUERIES[kind])


def losses_of(part: str, results: Path | None, prefix: str = "") -> Losses:
    last: dict[tuple[str, int], dict[int, float]] = {}
    for row in read("validations", part, results).to_dict("records"):  # in the order of steps
        place = prefix + FORMS[row["attention"]], row["context"]
        last.setdefault(place, {})[row["seed"]] = row["loss"]
    known = read("floors", part, results).to_dict("records")
    floors = {(row["name"], int(row["context"])): row["loss"] for row in known}
    return Losses(last, floors)


def losses(results: Path | None) -> Losses:
    """Part A, with states that are emptied as forms of the same table."""
    scratch, emptied = losses_of("", results), losses_of("reset", results, "emptied ")
    return Losses(scratch.last | emptied.last, scratch.floors)


def keep(results: Path) -> None:
    """Add the validation losses of the studies that are there, and what readers reach, to those
    that are kept beside this file."""
    for kind, keys in KEYS.items():
        path = HERE / f"{kind}.csv"
        parts = [read_csv(path, keep_default_na=False)] if path.exists() else []
        for part in PARTS:
            if folder_of(part, results).is_dir():
                parts.append(read(kind, part, results).assign(part=part))
        concat(parts).drop_duplicates(keys, keep="last").to_csv(path, index=False)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def state_or_norm(of: Losses) -> list[Condition]:
    """H2."""
    sums, emptied = of.excess("sum", 2048), of.excess("emptied sum", 2048)
    rms, both = of.excess("rms", 2048), of.excess("emptied rms", 2048)
    return (
        above("sum minus emptied", seeds.differences(sums, emptied), 0.3)
        + within("rms minus sum", seeds.differences(rms, sums), -0.1, 0.1)
        + within("the same, emptied", seeds.differences(both, emptied), -0.1, 0.1)
    )


def gate_finds_it(of: Losses, gates: Sequence[Mapping[str, float]]) -> list[Condition]:
    """H3, from the lines of paired.py, too."""
    gap = seeds.differences(of.excess("gate", 2048), of.excess("emptied sum", 2048))
    return (
        within("gate minus emptied", gap, -0.05, 0.05)
        + below("log gate at the end-of-text", [row["end"] for row in gates], -3)
        + above("log gate elsewhere", [row["elsewhere"] for row in gates], -0.01)
    )


def no_fixed_decay(of: Losses) -> list[list[Condition]]:
    """H4: of each half-life, one of the conditions has to hold."""
    emptied = {context: of.excess("emptied sum", context) for context in (512, 2048)}
    return [
        [
            Condition(
                f"{form} at {context} minus emptied > 0.1",
                seeds.differences(of.excess(form, context), loss),
                0.1,
            )
            for context, loss in emptied.items()
        ]
        for form in ("decay 64", "decay 256")
    ]


def u_shape(of: Losses) -> list[Condition]:
    """H5."""
    found: list[Condition] = []
    sums = {c: of.last["sum", c] for c in (256, 512, 1024, 2048, 4096)}
    best = {s: min(sums[512][s], sums[1024][s]) for s in sums[512]}
    for other in (256, 2048, 4096):
        found += above(f"sum at {other} minus its best", seeds.differences(sums[other], best), 0)
    for form in ("gate", "softmax"):
        for less, more in ((256, 512), (512, 1024), (1024, 2048), (2048, 4096)):
            falls = seeds.differences(of.last[form, less], of.last[form, more])
            found += above(f"{form} from {less} to {more} falls", falls, 0)
    return found


def rises(path: Path = PAIRED) -> dict[str, dict[int, list[float]]]:
    """D(b) of each seed by form and b, from the lines of paired.py."""
    rows = lines_of(path)
    none = {(row["attention"], row["seed"]): row["loss"] for row in rows if not row["before"]}
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        of_form = found.setdefault(FORMS[row["attention"]], {})
        rise = row["loss"] - none[row["attention"], row["seed"]]
        of_form.setdefault(row["before"], []).append(rise)
    return found


def misled() -> list[Condition]:
    """H1."""
    of = {form: by[3584] for form, by in rises().items()}
    return (
        above("D of sum", of["sum"], 0.5)
        + within("D of gate", of["gate"], -0.05, 0.05)
        + below("D of softmax", of["softmax"], 0.15)
    )


def equal_flops(along: DataFrame, one: str, other: str, context: int = 2048) -> list[float]:
    """Losses of two forms at the FLOPs that the cheaper run has spent, first minus second."""
    found: list[float] = []
    rows = along[along.context == context].assign(form=along.attention.map(FORMS))
    for _, seed in rows.groupby("seed"):
        curves = [seed.loc[seed.form == form] for form in (one, other)]  # by step
        if all(map(len, curves)):
            at = math.log(min(curve.flops.max() for curve in curves))
            losses = [float(np.interp(at, np.log(c.flops), c.loss)) for c in curves]
            found.append(losses[0] - losses[1])
    return found


def equal_compute_and_state(of: Losses, along: DataFrame) -> list[Condition]:
    """H7."""
    found = above("sum minus softmax", equal_flops(along, "sum", "softmax"), 0.2)
    found += above("softmax minus gate", equal_flops(along, "softmax", "gate"), 0)
    for context in (512, 2048):
        gap = seeds.differences(of.excess("window 32", context), of.excess("emptied sum", context))
        found += above(f"window 32 minus emptied at {context}", gap, 0.5)
    return found


def predicted(of: Losses) -> dict[str, dict[str, float]]:
    """H6: the excess of the sum at 2,048 and 4,096 tokens, from that at 256, 512 and 1,024."""
    known = [256, 512, 1024]
    y = np.array([of.mean("sum", c) for c in known])
    k = float(np.mean(y - [of.lag(c) for c in known]))
    slope, offset = np.polyfit(np.log(known), y, 1)
    power, factor = np.polyfit(np.log(known), np.log(y), 1)
    return {
        str(c): {
            READER: of.lag(c) + k,
            "a line in ln T": float(slope * math.log(c) + offset),
            "a power law": float(math.exp(factor) * c**power),
            "the last value": float(y[-1]),
        }
        for c in (2048, 4096)
    }


def sealed(of: Losses) -> str:
    """H6, against the sealed predictions."""
    text = SEAL.read_text()
    errors = {
        int(c): {name: value - of.mean("sum", int(c)) for name, value in given.items()}
        for c, given in json.loads(text).items()
    }
    ours, *others = errors[4096].values()
    near = all(abs(each[READER]) < 0.06 for each in errors.values())
    good = near and abs(ours) < min(map(abs, others)) / 2
    lines = [f"{c}: {name} {error:+.3f}" for c, e in errors.items() for name, error in e.items()]
    digest = hashlib.sha256(text.encode()).hexdigest()
    return "\n".join([f"seal {digest}", *lines, "holds" if good else "refuted"])


class Verdict(NamedTuple):
    """What became of a hypothesis; of H4 one condition of each half-life has to hold."""

    name: str
    verdict: str
    p: float
    corrected: float
    parts: list[Condition]

    def __str__(self) -> str:
        head = f"{self.name}: {self.verdict}, p {self.p:.2g}, corrected {self.corrected:.2g}"
        return "\n    ".join([head, *map(said, self.parts)])


def judged(
    hypotheses: Mapping[str, list[Condition]], either: list[list[Condition]]
) -> list[Verdict]:
    """The verdicts, from the conditions of each hypothesis and those of H4."""
    p = {name: max(one.p for one in parts) for name, parts in hypotheses.items()}
    p["H4"] = max(min(1.0, len(parts) * min(one.p for one in parts)) for parts in either)
    every = {**hypotheses, "H4": [one for parts in either for one in parts]}
    found: list[Verdict] = []
    for (name, raw), corrected in zip(p.items(), holm([*p.values()]), strict=True):
        contrary = min(one.contrary for one in every[name]) * len(every[name])
        is_refuted = contrary < LEVEL and name != "H4"
        verdict = "holds" if corrected < LEVEL else "refuted" if is_refuted else "not decided"
        found.append(Verdict(name, verdict, raw, corrected, every[name]))
    return sorted(found)


def said(one: Condition) -> str:
    """The condition with its mean and interval."""
    centre, ends = seeds.mean(one.sample)
    assert ends
    sign = -1 if " < " in one.words else 1
    low, high = sorted(sign * (end or math.nan) for end in (ends.low, ends.high))
    number = f"{sign * centre:+.3f} ({low:+.3f} to {high:+.3f})"
    return f"{one.words}: {number}, {len(one.sample)} seeds"


def unconverged(along: DataFrame) -> Iterator[str]:
    """Runs that are not 1 nat below ln 63, or that still fall before the rate does."""
    wide = along.pivot_table("loss", ["attention", "context", "seed"], "step")
    for (name, context, seed), at in wide.to_dict("index").items():
        if at[max(at)] > math.log(63) - 1 or abs(at[2000] - at[2500]) >= 0.02:
            yield f"not converged: {FORMS[name]} at {context}, seed {seed}"


def verdicts(results: Path | None) -> list[Verdict]:
    """H1 to H5 and H7."""
    of, along = losses(results), read("validations", "", results)
    hypotheses = {
        "H1": misled(),
        "H2": state_or_norm(of),
        "H3": gate_finds_it(of, lines_of(GATES)),
        "H5": u_shape(losses_of("longer", results)),
        "H7": equal_compute_and_state(of, along),
    }
    return judged(hypotheses, no_fixed_decay(of))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?", help="folder that has the studies")
    parser.add_argument("--seal", action="store_true", help=f"write {SEAL.name}")
    parser.add_argument("--keep", action="store_true", help="write the losses beside this file")
    args = parser.parse_args()
    if args.keep:
        keep(args.results)
    elif args.seal:
        SEAL.write_text(json.dumps(predicted(losses_of("longer", args.results)), indent=1) + "\n")
    else:
        print(*verdicts(args.results), "H6: " + sealed(losses_of("longer", args.results)), sep="\n")
        print(*unconverged(read("validations", "", args.results)), sep="\n")


if __name__ == "__main__":
    main()
