"""The tables of docs/forgetting.md, from the records and by the rules of questions.md.

python results/measured/forgetting/forgetting_page.py    # writes answers.md beside it
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import divisor_answers
import forgetting_answers as answers

from lmscaling.fits import seeds

PAGE = Path(__file__).with_name("answers.md")
TWO = Path(__file__).with_name("paired_two.jsonl")
FORMS = [*answers.FORMS.values()]
FORMS[1:1] = ["emptied sum", "emptied rms"]
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
    """A row for each hypothesis."""
    yield "", "verdict", "corrected p", "measured, nats"
    for one in answers.verdicts(None):
        numbers = "; ".join(map(answers.said, one.parts))
        yield one.name, f"**{one.verdict}**", f"{one.corrected:.2g}", numbers


def unconverged() -> str:
    """How many seeds of which cells of part A have not converged."""
    lines = answers.unconverged(answers.read("validations", "", None))
    cells = Counter(line.partition(": ")[2].partition(", seed")[0] for line in lines)
    named = "; ".join(f"{cell} ({n} seeds)" for cell, n in cells.items())
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


def page() -> str:
    of, longer, two, further = (
        answers.losses(None),
        *(answers.losses_of(part, None) for part in ("longer", "two", "two_longer")),
    )
    both = answers.Losses(two.last | further.last, two.floors | further.floors)
    digest, *errors, verdict = answers.sealed(longer).splitlines()
    named = [line.partition(": ")[::2] for line in errors]
    rows = [(context, *text.rsplit(" ", 1)) for context, text in named]
    runs = [line.split(": ", 1) for line in divisor_answers.said()]
    parts = [
        "**Part A.** Loss above the exact one, nats, mean with its 95 % CI over seeds:",
        excesses(of, FORMS, (128, 512, 2048)),
        unconverged(),
        "**Part B.** The same, of models that go on from 512 tokens:",
        excesses(longer, ("sum", "gate", "softmax"), LONGER),
        "**Part C.** Two layers:",
        excesses(both, ("sum", "gate", "softmax"), (512, 2048)),
        "**Other documents before.** Loss minus that behind none, one layer, then two, nats:",
        behind(answers.PAIRED),
        behind(TWO),
        "**Hypotheses**, corrected by Holm's method:",
        table(*judged()),
        before_decay(),
        f"**H6**, {digest}, {verdict}. Predicted minus measured excess of the sum, nats:",
        table(("context", "prediction", "error"), *rows),
        "**Part D.**",
        table(("", "runs"), *runs),
    ]
    return "\n\n".join(parts)


def main() -> None:
    PAGE.write_text(page() + "\n")


if __name__ == "__main__":
    main()
