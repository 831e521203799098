"""Verbs that define a study, estimate its cost, show its progress and examine its machine."""

import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from lmscaling import files, registry
from lmscaling.cli.verb import RESULTS, SET, STUDY_NAME, argument, path, verb
from lmscaling.errors import UserError
from lmscaling.formatting import folded, painted

if TYPE_CHECKING:
    from lmscaling.config.grid import Grid
    from lmscaling.config.places import Values
    from lmscaling.plan.footprint import Shape
    from lmscaling.plan.study_plan import Plan

WATCH_SECONDS = 10.0
"""Time between two tables of ``status --watch``."""


@verb(path("out", "study.json"), by_workflow=True)
def record(args: Namespace) -> str:
    """Write the study that standard input describes as JSON, and its sweeps."""
    from lmscaling.config import study_file, sweeps

    grid = study_file.write_record(args.out, files.parse_json(sys.stdin.read(), "study"))
    sweeps.write(args.out.parent, grid.study)
    tasks = f" and {len(grid.tasks)} of tasks" if grid.tasks else ""
    return f"study: {args.out}, {len(grid.cells)} cells{tasks}"


STUDY = path("study", "study files, laid over config/study.yaml; - reads JSON", nargs="*")
DEVICE = argument("--device", "of the estimates; by default the measured one, or H100", default="")


def _values(args: Namespace) -> "Values":
    """The study that is named, with ``--set`` laid over it."""
    from lmscaling.config import study_file

    if args.study == [Path("-")]:
        return study_file.overridden(files.parse_json(sys.stdin.read(), "study"), args.set)
    base = registry.project_file("config/study.yaml")
    over = [path for path in args.study if not (path.exists() and path.samefile(base))]
    return study_file.read_study([base, *over], overrides=args.set)


@verb(STUDY, SET)
def study(args: Namespace) -> str:
    """Print the complete study that study files and --set make."""
    return yaml.safe_dump(dict(_values(args)), sort_keys=False, default_flow_style=None, width=100)


def _planned(args: Namespace) -> "tuple[Grid, Path, dict[str, Shape], Plan]":
    """Cells, ``results/<study>``, model sizes and costs of the study that is named."""
    from lmscaling.config import grid, new_study
    from lmscaling.data import document_positions, shards
    from lmscaling.model import sizing
    from lmscaling.plan import study_plan

    values, is_record = _values(args), args.study == [Path("-")]
    if not is_record and new_study.needs_counts(values):
        sizing.count(values)
    cells = grid.expand(values) if is_record else new_study.plan(values, str(args.results))
    results = args.results / cells.study.study
    masked: dict[int, dict[int, float]] = {}  # lengths of documents by context
    manifest = results / "tokens" / cells.tokens / "manifest.json"
    if cells.study.documents != "mixed" and manifest.is_file():
        train = shards.read_manifest(manifest, "train")
        counts = document_positions.of_shards(manifest.with_name(shard.file) for shard in train)
        lengths = document_positions.lengths_in_windows
        masked = {n: lengths(counts, n) for n in cells.study.axes.context}
    # Cells of one calibration have one model, and building a model takes longer than planning it.
    models = {cell.calibration: cell for cell in cells.cells.values()}
    made = {name: sizing.shape(cell, masked.get(cell.context)) for name, cell in models.items()}
    shapes = {run: made[cell.calibration] for run, cell in cells.cells.items()}
    estimate = study_plan.make(cells, shapes, args.device, results)
    return cells, results, shapes, estimate


@verb(STUDY, SET, DEVICE, RESULTS, path("--out", "plan.json"))
def plan(args: Namespace) -> str:
    """Estimate what a study costs and list the cells that cannot run."""
    from lmscaling.config import code
    from lmscaling.status import stale

    grid, results, _, estimate = _planned(args)
    if args.out:
        files.write_json(args.out, estimate.to_json())
    old = code.stale_line(results.name, len(stale.runs(results, grid)))
    return "\n".join([estimate.table(), *(line for text in old for line in folded(text))])


@verb(
    STUDY,
    SET,
    DEVICE,
    RESULTS,
    path("--stated", "CSV of losses in place of predicted ones: columns name, median and others"),
    argument("--seal", "write the predictions where they stay", action="store_true"),
    argument("--verify", "compare sealed predictions with their hashes", action="store_true"),
)
def forecast(args: Namespace) -> str:
    """Predict time, memory and final loss of the runs of a study that have not begun."""
    from lmscaling.status import sealing

    grid, results, shapes, estimate = _planned(args)
    if args.verify:
        return sealing.verify(results)
    costs = dict(zip(grid.cells, estimate.forecasts, strict=True))
    found = sealing.predict(results, grid, costs, shapes)
    if not found:
        return f"every cell of {results} has begun, so there is nothing to predict"
    if args.stated:
        found = sealing.stated(args.stated, found)
    told = sealing.table(found)
    if not args.seal:
        return told
    sealed, sha256 = sealing.seal(results, grid, found)
    return f"{told}\nsealed: {sealed}\nSHA-256 to publish: {sha256}"


@verb(
    path("study", "results/<study>"),
    argument("--failed", "list failed runs only, with reason and remedy", action="store_true"),
    argument("--watch", "show it again every few seconds, until Ctrl-C", action="store_true"),
)
def status(args: Namespace) -> str:
    """Show the progress of every cell of a study."""
    from lmscaling.status import failures, table

    if args.failed:
        return failures.listed(args.study)
    while args.watch:
        told = painted(table.progress(args.study), table.COLOURS)
        print(f"\x1b[H\x1b[2J{told}", flush=True)  # from the upper corner of an empty terminal
        time.sleep(WATCH_SECONDS)
    return painted(table.progress(args.study), table.COLOURS)


@verb(RESULTS)
def doctor(args: Namespace) -> str:
    """Check this machine and this Python, and say what will work and what to type."""
    from lmscaling.runtime import doctor

    told, can_run = doctor.examine(args.results)
    print(painted(told, doctor.COLOURS), flush=True)
    if not can_run:
        sys.exit(1)
    return ""


@verb(
    argument("cell", "cell, run, or kind/size[/point] of a measurement", nargs="?"),
    argument("--status", "every run with this status of its record, or held"),
    argument("--context", "every run of this context (and --status, if given)", type=int),
    STUDY_NAME,
    argument("--stale", "every run trained by other code", action="store_true"),
    argument("--go-on", "keep the checkpoints and let held runs go on", action="store_true"),
    RESULTS,
)
def reset(args: Namespace) -> str:
    """Move the records of runs or measurements to the attic, so that snakemake repeats them."""
    from lmscaling.status import reset

    if args.cell and "/" in args.cell and not args.go_on:
        study, paths = reset.select_measurements(args.results, args.study, args.cell)
        attic = reset.move_measurements(study, paths)
        return f"moved to {attic}: {', '.join(paths)}; the next snakemake measures again"
    if not (args.cell or args.status or args.context or args.stale):
        raise UserError("nothing is selected; name a cell, or give --status, --context or --stale")
    study, runs = reset.select(
        args.results, args.study, args.cell, args.status, args.context, args.stale
    )
    if args.go_on:
        return f"free: {', '.join(reset.free(study, runs))}; the next snakemake continues"
    attic = reset.move(study, runs)
    return f"moved to {attic}: {', '.join(runs)}; the next snakemake trains from update 0"


@verb(path("out", "config/study.schema.json"))
def schema(args: Namespace) -> str:
    """Write the JSON schema of the study file, for editors."""
    from lmscaling.config import study

    files.write_json(args.out, study.schema())
    return f"schema: {args.out}"
