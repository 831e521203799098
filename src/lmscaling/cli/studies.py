"""Verbs that define a study, estimate its cost, show its progress and examine its machine."""

import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmscaling import files, registry
from lmscaling.cli.verb import RESULTS, RUN, STUDY_NAME, Verb, argument, verb
from lmscaling.config.grid import Grid
from lmscaling.errors import UserError
from lmscaling.formatting import aligned, folded, painted

if TYPE_CHECKING:
    from lmscaling.plan.estimate import Shape
    from lmscaling.plan.study_plan import Plan

VERBS: list[Verb] = []

WATCH_SECONDS = 10.0
"""Time between two tables of ``status --watch``."""

SET = argument(
    "--set",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    help="lay a value over the study files, as axes.context=[1024]; may be repeated",
)


@verb(VERBS, argument("out", type=Path, help="study.json"), by_workflow=True)
def study(args: Namespace) -> str:
    """Write the study that standard input describes as JSON, and its sweeps."""
    from lmscaling.config import study_file, sweeps

    record = study_file.write_record(args.out, files.parse_json(sys.stdin.read(), "study"))
    sweeps.write(args.out.parent, record.study)
    tasks = f" and {len(record.tasks)} of tasks" if record.tasks else ""
    return f"study: {args.out}, {len(record.cells)} cells{tasks}"


STUDY = argument(
    "study",
    type=Path,
    nargs="*",
    help="study files, laid over config/study.yaml in their order; - reads JSON",
)
DEVICE = argument(
    "--device",
    default="",
    help="device that the estimates assume; by default that of the measurements, or an H100",
)


@verb(VERBS, STUDY, SET, DEVICE, RESULTS, argument("--out", type=Path, help="plan.json"))
def plan(args: Namespace) -> str:
    """Estimate what a study costs and list the cells that cannot run."""
    from lmscaling.config import code
    from lmscaling.status import predicted, stale

    expanded, _, estimate = _planned(args)
    results = args.results / expanded.study.study
    if args.out:
        files.write_json(args.out, estimate.to_json())
    old = code.stale_line(results.name, len(stale.runs(results, expanded)))
    said = [*predicted.lines(results, expanded), *old]
    return "\n".join([estimate.table(), *(line for text in said for line in folded(text))])


def _planned(args: Namespace) -> "tuple[Grid, dict[str, Shape], Plan]":
    """The cells of the study that the arguments name, their model sizes, and what they cost."""
    from lmscaling.config import grid, study_file
    from lmscaling.plan import study_plan

    if args.study == [Path("-")]:
        values = study_file.overridden(files.parse_json(sys.stdin.read(), "study"), args.set)
        expanded = grid.expand(values)
    else:
        _, expanded = _read(args)
    results = args.results / expanded.study.study
    shapes = _shapes(expanded, results)
    return expanded, shapes, study_plan.make(expanded, shapes, args.device, results)


@verb(
    VERBS,
    STUDY,
    SET,
    DEVICE,
    RESULTS,
    argument("--seal", action="store_true", help="write the predictions where they stay"),
    argument("--verify", action="store_true", help="compare sealed predictions with their hashes"),
)
def forecast(args: Namespace) -> str:
    """Predict time, memory and final loss of the runs of a study that have not begun."""
    from lmscaling.config import devices
    from lmscaling.status import sealing

    expanded, shapes, estimate = _planned(args)
    results = args.results / expanded.study.study
    if args.verify:
        told, is_intact = sealing.verify(results)
        if not is_intact:
            raise UserError(f"{told}; put the file back that was sealed")
        return told
    costs = dict(zip(expanded.cells, estimate.forecasts, strict=True))
    device = devices.find(estimate.device, expanded.study.own_devices)
    found = sealing.predict(results, expanded, costs, shapes, device)
    if not found:
        return f"every cell of {results} has begun, so there is nothing to predict"
    told = sealing.table(found)
    if not args.seal:
        return told
    path, sha256 = sealing.seal(results, expanded, found)
    return f"{told}\nsealed: {path}\nSHA-256 to publish: {sha256}"


def _read(args: Namespace) -> tuple[dict[str, Any], Grid]:
    """The study of study files, and its cells."""
    from lmscaling.config import new_study, study_file

    base = registry.project_file("config/study.yaml")
    over = [path for path in args.study if not (path.exists() and path.samefile(base))]
    values = study_file.read_study([base, *over], overrides=args.set)
    return values, new_study.plan(values, over, str(args.results))


def _shapes(grid: Grid, results: Path) -> "dict[str, Shape]":
    """Model size of every cell, by run."""
    from lmscaling.model import gpt

    lengths = _masked_lengths(grid, results)
    return {run: gpt.shape(cell, lengths.get(cell.context)) for run, cell in grid.cells.items()}


@verb(
    VERBS,
    STUDY,
    argument(
        "--question",
        required=True,
        help="gap, multiplier, crossing, beta, a, gamma or size, and where, as in "
        "gap:context=4096,size=124M or multiplier:context=4096,size=124M,loss=3.2",
    ),
    argument("--gpu-hours", type=float, help="most that the design may cost"),
    argument("--share", type=float, help="the same, as a share of the price of the whole grid"),
    argument("--gap", type=float, help="say how many seeds find a gap of so many nats"),
    argument("--check", type=int, default=0, metavar="N", help="simulate N studies of the design"),
    argument("--name", default="", help="of the design; by default made from the question"),
    argument("--out", type=Path, help="study file to write; default results/<study>/designs/"),
    argument("--random-seed", type=int, default=0, help="of the truths"),
    SET,
    DEVICE,
    RESULTS,
)
def design(args: Namespace) -> str:
    """Propose the runs that tell most about a question for what may be spent."""
    from lmscaling.design import session
    from lmscaling.plan import study_plan

    if (args.gpu_hours is None) == (args.share is None):
        raise UserError("design needs one of --gpu-hours and --share; write --share 0.3")
    values, grid = _read(args)
    results = args.results / grid.study.study
    shapes = _shapes(grid, results)
    estimate = study_plan.make(grid, shapes, args.device, results)
    prices, unit = session.priced(grid, estimate.forecasts, shapes)
    if args.gpu_hours is not None and unit == session.FLOPS:
        raise UserError(
            f"nothing is known of the time of the cells of {grid.study.study}; write --share 0.3 "
            "of the compute of the grid, or calibrate first"
        )
    request = session.Request(
        question=args.question,
        hours=args.gpu_hours,
        share=args.share,
        studies=args.check,
        gap=args.gap,
        files=tuple(map(str, args.study)),
        name=args.name,
        out=args.out,
        seed=args.random_seed,
    )
    return session.run(request, grid, values, prices, unit, results)


def _masked_lengths(grid: Grid, results: Path) -> dict[int, dict[int, float]]:
    """Lengths of masked documents by context; none if documents are mixed or not tokenized."""
    from lmscaling.data import document_positions, shards

    manifest = results / "tokens" / grid.tokens / "manifest.json"
    if grid.study.documents == "mixed" or not manifest.is_file():
        return {}
    train = shards.read_manifest(manifest, "train")
    counts = document_positions.of_shards(manifest.with_name(shard.file) for shard in train)
    return {n: document_positions.lengths_in_windows(counts, n) for n in grid.study.axes.context}


@verb(
    VERBS,
    argument("study", type=Path, help="results/<study>"),
    argument("--failed", action="store_true", help="list failed runs only, with reason and remedy"),
    argument("--watch", action="store_true", help="show it again every few seconds, until Ctrl-C"),
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


@verb(
    VERBS,
    RUN,
    STUDY_NAME,
    RESULTS,
    name="why-slow",
)
def why_slow(args: Namespace) -> str:
    """Compare the mean update of a run with its prediction, by what takes the time."""
    from lmscaling.model import slow_run
    from lmscaling.status import reset

    runs = reset.folders(args.results, args.study, args.run)
    return "\n\n".join(map(slow_run.explain, runs))


@verb(
    VERBS,
    argument("--out", type=Path, help="coefficients.json to write; only the table by default"),
    name="fit-throughput",
)
def fit_throughput(args: Namespace) -> str:
    """Fit the model that predicts times of updates to published ones, and check it on others."""
    from lmscaling.plan.throughput import accuracy, coefficients

    step_time = registry.project_file("results/published/step_time.csv")
    if args.out:
        coefficients.fit(step_time, args.out)
    return "\n".join(aligned(accuracy.lines(step_time), left={0}))


@verb(VERBS, RESULTS)
def doctor(args: Namespace) -> str:
    """Check this machine and this Python, and say what will work and what to type."""
    from lmscaling.runtime import doctor

    told, can_run = doctor.examine(args.results)
    print(painted(told, doctor.COLOURS), flush=True)
    if not can_run:
        sys.exit(1)
    return ""


@verb(
    VERBS,
    argument("cell", nargs="?", help="cell, run, or kind/size[/point] of a measurement"),
    argument("--status", help="every run with this status of its record, or held"),
    argument("--context", type=int, help="every run of this context (and --status, if given)"),
    argument("--study", help="name of the study, if several have such a run"),
    argument("--stale", action="store_true", help="every run trained by other code"),
    argument("--go-on", action="store_true", help="keep the checkpoints and let held runs go on"),
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


@verb(VERBS, argument("out", type=Path, help="config/study.schema.json"))
def schema(args: Namespace) -> str:
    """Write the JSON schema of the study file, for editors."""
    from lmscaling.config import study

    files.write_json(args.out, study.schema())
    return f"schema: {args.out}"
