"""Verbs from records to figures, claims and a report."""

from argparse import Namespace
from pathlib import Path

from lmscaling.cli.verb import argument, path, verb

STUDY = path("study", "results/<study>")
STUDY_OR_PUBLISHED = path("study", "results/<study>, or results/published")


def _built(study: Path) -> dict[str, int]:
    """Build the store of a study, with the floors of the texts that are here."""
    from lmscaling.evaluate import floors
    from lmscaling.store import build

    floors.write(study)
    return build.build(study)


@verb(STUDY, by_workflow=True)
def build_store(args: Namespace) -> str:
    """Build the database of a study from its records and logs."""
    counts = _built(args.study)
    return f"store: {', '.join(f'{n:,} {name}' for name, n in counts.items())}"


@verb(STUDY, argument("names", "names of figures", nargs="*"), by_workflow=True)
def figure(args: Namespace) -> str:
    """Draw the figures of a study that have changed, or those that are named, from the store."""
    from lmscaling import figures

    places = args.study / "store", args.study / "figures"
    named = (figures.save(name, *places) for name in args.names)
    paths = list(named if args.names else figures.save_all(*places))
    return "\n".join(f"figure: {made}" for made in paths) or "figures: none with data has changed"


@verb(STUDY)
def report(args: Namespace) -> str:
    """Write the report from the store and the figures."""
    from lmscaling import report

    return f"report: {report.write(args.study)}"


@verb(STUDY_OR_PUBLISHED)
def claims(args: Namespace) -> str:
    """Judge the claims of the literature by the existing records and logs."""
    from lmscaling import claims

    _built(args.study)
    verdicts = claims.write(args.study)
    summary = f"claims: {args.study / 'claims.json'}; {claims.summary(verdicts)}"
    return f"{claims.text(verdicts)}\n{summary}"


@verb(STUDY_OR_PUBLISHED)
def figures(args: Namespace) -> str:
    """Build store, figures, claims and report from the existing records and logs."""
    from lmscaling import claims, figures, report
    from lmscaling.store import published

    _built(args.study)
    blank = not published.is_folder(args.study)
    for made in figures.save_all(args.study / "store", args.study / "figures", blank):
        print(f"figure: {made}", flush=True)
    judged = claims.write(args.study)
    print(f"claims: {args.study / 'claims.json'}; {claims.summary(judged)}", flush=True)
    return f"report: {report.write(args.study, judged)}"
