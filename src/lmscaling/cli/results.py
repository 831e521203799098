"""Verbs from records to figures, claims and a report."""

from argparse import Namespace
from pathlib import Path

from lmscaling.cli.verb import Verb, argument, verb

VERBS: list[Verb] = []

STUDY = argument("study", type=Path, help="results/<study>")
STUDY_OR_PUBLISHED = argument("study", type=Path, help="results/<study>, or results/published")


@verb(VERBS, STUDY, by_workflow=True)
def build_store(args: Namespace) -> str:
    """Build the database of a study from its records and logs."""
    from lmscaling.store import build

    counts = build.build(args.study)
    return f"store: {', '.join(f'{n:,} {name}' for name, n in counts.items())}"


@verb(VERBS, STUDY, argument("names", nargs="*", help="file stems in figures/"), by_workflow=True)
def figure(args: Namespace) -> str:
    """Draw the figures of a study that have changed, or those that are named, from the store."""
    from lmscaling import figures

    places = args.study / "store", args.study / "figures"
    named = (figures.save(name, *places) for name in args.names)
    paths = list(named if args.names else figures.save_changed(*places))
    return "\n".join(f"figure: {path}" for path in paths) or "figures: nothing has changed"


@verb(VERBS, STUDY)
def report(args: Namespace) -> str:
    """Write the report from the store and the figures."""
    from lmscaling import report

    return f"report: {report.write(args.study)}"


@verb(
    VERBS,
    argument("one", type=Path, help="results/<study>, the baseline"),
    argument("two", type=Path, help="results/<another study>, the candidate"),
    argument("-o", "--output", type=Path, help="the page; <one>-against-<two>.html by default"),
)
def compare(args: Namespace) -> str:
    """Compare the same cells in two folders of results, and write a page about them."""
    from lmscaling.report import side_by_side
    from lmscaling.store import build

    for folder in (args.one, args.two):
        build.build(folder)
    page, answer = side_by_side.write(args.one, args.two, args.output)
    return f"{answer}\ncompare: {page}"


@verb(VERBS, STUDY)
def fit_rates(args: Namespace) -> str:
    """Fit the best learning rates of a study over sizes, for ``lr: fitted`` in another study."""
    from lmscaling.report import rates
    from lmscaling.store import build

    build.build(args.study)
    path, laws = rates.write_law(args.study)
    return f"fit-rates: {path}; {laws}"


@verb(VERBS, STUDY_OR_PUBLISHED)
def claims(args: Namespace) -> str:
    """Judge the claims of the literature by the existing records and logs."""
    from lmscaling import claims
    from lmscaling.store import build

    build.build(args.study)
    verdicts = claims.write(args.study)
    summary = f"claims: {args.study / 'claims.json'}; {claims.summary(verdicts)}"
    return f"{claims.text(verdicts)}\n{summary}"


@verb(VERBS, STUDY_OR_PUBLISHED)
def figures(args: Namespace) -> str:
    """Build store, figures, claims and report from the existing records and logs."""
    from lmscaling import claims, figures, report
    from lmscaling.store import build, published

    build.build(args.study)
    blank = not published.is_folder(args.study)
    for path in figures.save_all(args.study / "store", args.study / "figures", blank):
        print(f"figure: {path}", flush=True)
    judged = claims.write(args.study)
    print(f"claims: {args.study / 'claims.json'}; {claims.summary(judged)}", flush=True)
    return f"report: {report.write(args.study, judged)}"
