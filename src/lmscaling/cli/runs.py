"""Verbs that train runs and use their weights."""

import json
import sys
from argparse import Namespace
from pathlib import Path

from lmscaling.cli.verb import RESULTS, RUN, STUDY_NAME, Verb, argument, verb
from lmscaling.errors import UserError
from lmscaling.runtime import planned, rank

VERBS: list[Verb] = []

CELL = argument("cell", type=Path, help="cell.json")
FINISHED = argument("run", type=Path, help="results/<study>/runs/<run>")
MANIFEST = argument("--manifest", type=Path, required=True, help="manifest.json of the tokens")


@verb(
    VERBS,
    CELL,
    argument("out", type=Path, help="checks/<name>.json"),
    name="check cell",
    by_workflow=True,
)
def check_cell(args: Namespace) -> str:
    """Check the kernels that a cell trains with on this GPU."""
    from lmscaling.train.calibrate import check

    return f"check: {args.out.stem}: {check(args.cell, args.out) or 'right'}"


@verb(VERBS, CELL, argument("out", type=Path, help="calibration.json"), by_workflow=True)
def calibrate(args: Namespace) -> str:
    """Measure the fastest way to train a cell on this device."""
    from lmscaling.train.calibrate import calibrate

    calibration = calibrate(args.cell, args.out)
    return (
        f"calibrate: {args.out.stem}: micro-batch of {calibration.micro_batch} sequences, "
        f"{calibration.update_seconds:.3g} s per update"
    )


@verb(
    VERBS,
    CELL,
    MANIFEST,
    argument("--scratch", type=Path, required=True, help="folder of checkpoints and ledger"),
    argument(
        "--out",
        type=Path,
        required=True,
        help="runs/<run>.json, a copy of run.json; that is in runs/<run>/ with log and weights",
    ),
    argument("--calibration", type=Path, help="calibration.json; an estimate by default"),
    argument(
        "--calibrated",
        type=Path,
        metavar="CELL",
        help="cell.json that was calibrated, if it is another one: the nearest",
    ),
    argument(
        "--stop-after",
        type=float,
        metavar="SECONDS",
        help="save so long after the start of this process, and let Slurm queue the job again",
    ),
    argument(
        "--loggers",
        type=json.loads,
        default={},
        metavar="JSON",
        help="loggers of Lightning with their options, as loggers: in a study file",
    ),
    argument("--progress-bar", action="store_true", help="show Lightning's bar"),
    argument("--profiler", choices=("simple", "advanced", "pytorch"), help="one of Lightning's"),
    by_workflow=True,
)
def train(args: Namespace) -> str:
    """Train a cell, unless it has ended and nobody asks for it again."""
    rank.die_with_parent()
    from lmscaling.train.run import train

    record = planned.record_of(args.out)
    run = train(
        args.cell, args.manifest, args.scratch, record,
        args.calibration, args.stop_after, args.calibrated,
        args.loggers, enable_progress_bar=args.progress_bar, profiler=args.profiler,
    )  # fmt: skip
    if run is None:  # this is not rank 0
        return ""
    planned.copy(record, args.out)
    loss = "" if run.last_val_loss is None else f", validation loss {run.last_val_loss:.4f}"
    spent = f"{run.updates} updates, {run.train_seconds:.0f} s"
    return f"train: {run.name} {run.status} after {spent}{loss}"


@verb(
    VERBS,
    FINISHED,
    MANIFEST,
    argument("--out", type=Path, required=True, help="JSON lines, one for each bin of positions"),
    by_workflow=True,
)
def evaluate(args: Namespace) -> str:
    """Measure the loss of the final weights of a run by position."""
    from lmscaling.evaluate.loss_by_position import evaluate

    return f"evaluate: {evaluate(args.run, args.manifest, args.out)}"


@verb(
    VERBS,
    argument("run", type=Path, help="results/<study>/runs/<run> of linear attention"),
    MANIFEST,
    argument("--out", type=Path, required=True, help="JSON lines, one for each layer and method"),
)
def gradient_error(args: Namespace) -> str:
    """Measure the rounding errors of gradients in the layers of a trained model."""
    from lmscaling.evaluate.gradient_error import numerics

    return f"gradient-error: {numerics(args.run, args.manifest, args.out)}"


@verb(
    VERBS,
    RUN,
    STUDY_NAME,
    RESULTS,
    argument("--prompt", default="", help="text to go on from; by default a new document begins"),
    argument("--tokens", type=int, default=200, metavar="N", help="most tokens to draw"),
    argument("--temperature", type=float, default=1.0, help="0 takes the most likely token"),
    argument("--seed", type=int, default=0, help="another seed draws other text"),
)
def sample(args: Namespace) -> str:
    """Write text with the final weights of a run, and say how fast it came."""
    from lmscaling.evaluate import sampling
    from lmscaling.status import reset

    for name, low, high in (
        ("tokens", 1, 10**9),
        ("temperature", 1e-3, 1e3),
        ("seed", 0, 2**32 - 1),
    ):
        value = getattr(args, name)
        if not low <= value <= high and (name, value) != ("temperature", 0):
            zero = "0 or " if name == "temperature" else ""
            raise UserError(f"--{name} is {value}; allowed: {zero}from {low:,} to {high:,}")
    run, *others = reset.folders(args.results, args.study, args.run)
    if others:
        raise UserError(f"{args.run} has {len(others) + 1} runs; name one, such as {run.name}")
    said = sampling.sample(run, args.prompt, args.tokens, args.temperature, args.seed)
    print(flush=True)
    print(f"sample: {said}", file=sys.stderr)
    return ""


@verb(
    VERBS,
    FINISHED,
    MANIFEST,
    argument("--out", type=Path, required=True, help="samples/<run>.json"),
    by_workflow=True,
)
def draw_images(args: Namespace) -> str:
    """Draw images with the final weights of a run that trained on images."""
    from lmscaling.evaluate import drawing

    return f"draw-images: {drawing.draw_images(args.run, args.manifest, args.out)}"


@verb(VERBS, FINISHED, argument("folder", type=Path, help="gets model.safetensors and config.json"))
def export(args: Namespace) -> str:
    """Write a finished run in the format of Hugging Face's GPT-2."""
    from lmscaling.model import huggingface

    huggingface.export(args.run, args.folder)
    return f"export: {args.folder}"
