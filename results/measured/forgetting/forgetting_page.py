"""The tables of docs/forgetting.md, from the records and by the rules of questions.md.

python results/measured/forgetting/forgetting_page.py    # writes answers.md beside it
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import divisor_answers
import forgetting_answers as answers

from lmscaling.fits import seeds

PAGE = Path(__file__).with_name("answers.md")
TWO = Path(__file__).with_name("paired_two.jsonl")
FORMS = [*answers.FORMS.values()]
FORMS[1:1] = ["emptied sum", "emptied rms"]
SHORT = ("sum", "gate", "softmax")
"""Those of parts B and C."""
BRANCHES = 714
"""Those of ``divisor.py``."""
LONGER = (256, 512, 1024, 2048, 4096)
STABLE = 2500
"""Steps of the last validation before the learning rate falls."""


def table(*rows: Sequence[str]) -> str:
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *others))


def ranged(values: Sequence[float]) -> str:
    """A mean over seeds with its 95 % interval."""
    centre, ends = seeds.mean(values)
    return f"{centre:.2f} ({ends.low:.2f} to {ends.high:.2f})" if ends else f"{centre:.2f}"


def excesses(of: answers.Losses, forms: Sequence[str], contexts: Sequence[int]) -> str:
    """Losses above the exact one, nats, with that of a reader that cannot forget."""
    rows = [
        [form] + [
            ranged([*of.excess(form, c).values()]) if (form, c) in of.last else "" for c in contexts
        ]
        for form in forms
        if any((form, c) in of.last for c in contexts)
    ]  # fmt: skip
    reader = ["*a reader that cannot forget*", *(f"{of.lag(c):.2f}" for c in contexts)]
    return table(["form", *(f"{c:,} tokens" for c in contexts)], *rows, reader)


def behind(path: Path) -> str:
    """D(b) by form, nats."""
    found = answers.rises(path)
    before = sorted(next(iter(found.values())))[1:]
    rows = [[form, *(ranged(by[b]) for b in before)] for form, by in found.items()]
    return table(["form", *(f"{b:,} before" for b in before)], *rows)


def judged() -> Iterator[Sequence[str]]:
    """A row for each quantity of which a hypothesis has one or two bounds."""
    yield "", "verdict", "corrected p", "condition, nats", "measured, with its 95 % CI"
    for one in answers.verdicts(None):
        named = one.name, f"**{one.verdict}**", f"{one.corrected:.2g}"
        for quantity, group in groupby(one.parts, lambda part: part.words.rsplit(" ", 2)[0]):
            parts = [*group]
            bounds = ", ".join(part.words.removeprefix(quantity).strip() for part in parts)
            measured = answers.said(parts[0]).rpartition(": ")[2]
            yield *named, f"{quantity} {bounds}", measured
            named = "", "", ""


def unconverged() -> str:
    """How many seeds of which cells of part A have not converged."""
    cells: Counter[str] = Counter()
    seeds_of = answers.losses(None).last
    for part, prefix in (("", ""), ("reset", "emptied ")):
        for line in answers.unconverged(answers.read("validations", part, None)):
            cells[prefix + line.partition(": ")[2].partition(", seed")[0]] += 1
    named = "; ".join(
        f"{form} at {int(context):,} ({n} of {len(seeds_of[form, int(context)])} seeds)"
        for (form, context), n in ((cell.split(" at "), n) for cell, n in cells.items())
    )
    return f"Not converged: {named or 'none'}."


def before_decay() -> str:
    """H7 without the gain of the decay, which only the cheaper form has at equal FLOPs."""
    along = answers.read("validations", "", None)
    stable = along.loc[along.step <= STABLE]
    pairs = (("sum", "softmax"), ("softmax", "gate"))
    parts = (
        f"{one} minus {other} {ranged(answers.equal_flops(stable, one, other))}"
        for one, other in pairs
    )
    return f"**H7, before the learning rate falls.** {'; '.join(parts)}."


def two_layers() -> list[str]:
    """Part C, if its records are there."""
    if not TWO.exists():
        return []
    two, further = (answers.losses_of(part, None) for part in ("two", "two_longer"))
    both = answers.Losses(two.last | further.last, two.floors | further.floors)
    return [
        "**Part C.** Two layers: losses above the exact one, and behind other documents.",
        excesses(both, SHORT, (512, 2048)),
        behind(TWO),
    ]


def branches() -> list[str]:
    """Part D, if all its records are there."""
    if len(divisor_answers.LINES.read_text().splitlines()) < BRANCHES:
        return []
    told = [line.split(": ", 1) for line in divisor_answers.said()]
    verdicts = dict(told)
    rows: list[Sequence[str]] = []
    for name, group in groupby(told, lambda pair: pair[0].partition(",")[0]):
        named = name, f"**{verdicts[name]}**"
        for label, value in [*group][:-1]:
            rows.append((*named, label.partition(", ")[2], value))
            named = "", ""
    head = "", "verdict", "quantity", "measured"
    return [
        "**Part D.** Branches that blow up, and smallest divisors. Intervals and p-values of "
        "shares take the branches of one model as independent:",
        table(head, *rows),
    ]


def page() -> str:
    of, longer = answers.losses(None), answers.losses_of("longer", None)
    digest, *errors, verdict = answers.sealed(longer).splitlines()
    rows: dict[str, list[str]] = {}
    for name, error in (line.partition(": ")[2].rsplit(" ", 1) for line in errors):
        rows.setdefault(name, []).append(error)
    parts = [
        "**Hypotheses**, corrected by Holm's method:",
        table(*judged()),
        before_decay(),
        f"**H6**, {digest}, {verdict}. Predicted minus measured excess of the sum, nats:",
        table(("", "2,048 tokens", "4,096 tokens"), *((name, *own) for name, own in rows.items())),
        "**Part A.** Loss above the exact one, nats, mean with its 95 % CI over seeds:",
        excesses(of, FORMS, sorted({context for _, context in of.last})),
        unconverged(),
        "**Part B.** The same, of models that go on from 512 tokens:",
        excesses(longer, SHORT, LONGER),
        "**Other documents before** models of B at 4,096: loss minus that behind none, nats:",
        behind(answers.PAIRED),
        *two_layers(),
        *branches(),
    ]
    return "\n\n".join(parts)


def main() -> None:
    PAGE.write_text(page() + "\n")


if __name__ == "__main__":
    main()
