"""Verbs that train runs and use their weights."""

import json
import sys
import traceback
from argparse import Namespace

from lmscaling.cli.verb import RESULTS, RUN, STUDY_NAME, argument, path, verb
from lmscaling.errors import UserError
from lmscaling.runtime import planned, rank

CELL = path("cell", "cell.json")
FINISHED = path("run", "results/<study>/runs/<run>")
MANIFEST = path("--manifest", "manifest.json of the tokens", required=True)
MEASURED = FINISHED, MANIFEST, path("--out", "file of what was measured or drawn", required=True)


@verb(CELL, path("out", "checks/<name>.json"), by_workflow=True)
def check_cell(args: Namespace) -> str:
    """Check the kernels that a cell trains with on this GPU."""
    from lmscaling.train.calibrate import check

    check(args.cell, args.out)
    return f"check: {args.out.stem} is right"


@verb(CELL, path("out", "calibration.json"), by_workflow=True)
def calibrate(args: Namespace) -> str:
    """Measure the fastest way to train a cell on this device."""
    from lmscaling.train.calibrate import calibrate

    calibration = calibrate(args.cell, args.out)
    return (
        f"calibrate: {args.out.stem}: micro-batch of {calibration.micro_batch} sequences, "
        f"{calibration.update_seconds:.3g} s per update"
    )


@verb(
    path("cells", "cell.json, or those of the branches of a trunk", nargs="+"),
    MANIFEST,
    path("--scratch", "has a folder of checkpoints and ledger for each run", required=True),
    path("--out", "copy of run.json, which is in <run>/ beside it with the log", required=True),
    path("--calibration", "calibration.json; an estimate by default"),
    path("--calibrated", "cell.json that was calibrated, if it is another one", metavar="CELL"),
    argument("--stop-after", "save then, and let Slurm go on", type=float, metavar="SECONDS"),
    argument("--loggers", "as in a study file", type=json.loads, default={}, metavar="JSON"),
    argument("--progress-bar", "show Lightning's bar", action="store_true"),
    argument("--profiler", "one of Lightning's", choices=("simple", "advanced", "pytorch")),
    by_workflow=True,
)
def train(args: Namespace) -> str:
    """Train a cell, or the branches of a trunk one after another."""
    rank.die_with_parent()
    import torch

    from lmscaling.train.run import train

    said, failed = [], []
    records = [args.out.parent / cell.stem / planned.RECORD for cell in args.cells]
    for cell, record in zip(args.cells, records, strict=True):
        try:
            run = train(
                cell, args.manifest, args.scratch / cell.stem, record,
                args.calibration, args.stop_after, args.calibrated,
                args.loggers, enable_progress_bar=args.progress_bar, profiler=args.profiler,
            )  # fmt: skip
        except Exception as error:
            # After an error a GPU may fail whatever this process does.
            if len(args.cells) == 1 or torch.cuda.is_initialized():
                raise
            if isinstance(error, UserError):
                print(f"error: {error}", file=sys.stderr, flush=True)
            else:
                traceback.print_exception(error)
            failed.append(cell.stem)
            continue
        if run is None:  # this is not rank 0, which starts others for the next run
            return ""
        loss = "" if run.last_val_loss is None else f", validation loss {run.last_val_loss:.4f}"
        spent = f"{run.updates} updates, {run.train_seconds:.0f} s"
        said.append(f"train: {run.name} {run.status} after {spent}{loss}")
    if failed:
        raise UserError(
            f"{len(failed)} of {len(args.cells)} runs failed: {', '.join(failed)}; correct the "
            "cause said above, then run snakemake again"
        )
    planned.copy(records, args.out)
    return "\n".join(said)


@verb(*MEASURED, by_workflow=True)
def evaluate(args: Namespace) -> str:
    """Measure the loss of the final weights of a run by position."""
    from lmscaling.evaluate.loss_by_position import evaluate

    return f"evaluate: {evaluate(args.run, args.manifest, args.out)}"


LIMITS = {"tokens": (1, 10**9), "temperature": (1e-3, 1e3), "seed": (0, 2**32 - 1)}
"""Least and most of the options of ``sample``."""


@verb(
    RUN,
    STUDY_NAME,
    RESULTS,
    argument("--prompt", "text to go on from; by default a new document begins", default=""),
    argument("--tokens", "most tokens to draw", type=int, default=200, metavar="N"),
    argument("--temperature", "0 takes the most likely token", type=float, default=1.0),
    argument("--seed", "another seed draws other text", type=int, default=0),
)
def sample(args: Namespace) -> str:
    """Write text with the final weights of a run, and say how fast it came."""
    from lmscaling.evaluate import sampling
    from lmscaling.status import reset

    for name, (low, high) in LIMITS.items():
        value = getattr(args, name)
        if not low <= value <= high and (name, value) != ("temperature", 0):
            raise UserError(f"--{name} is {value}; allowed: from {low:,} to {high:,}")
    run, *others = reset.folders(args.results, args.study, args.run)
    if others:
        raise UserError(f"{args.run} has {len(others) + 1} runs; name one, such as {run.name}")
    said = sampling.sample(run, args.prompt, args.tokens, args.temperature, args.seed)
    print(flush=True)
    print(f"sample: {said}", file=sys.stderr)
    return ""


@verb(*MEASURED, by_workflow=True)
def draw_images(args: Namespace) -> str:
    """Draw images with the final weights of a run that trained on images."""
    from lmscaling.evaluate import drawing

    return f"draw-images: {drawing.draw_images(args.run, args.manifest, args.out)}"


@verb(FINISHED, path("folder", "gets the weights and config.json"))
def export(args: Namespace) -> str:
    """Write a finished run as a folder for ``transformers``."""
    from lmscaling.model import huggingface

    huggingface.export(args.run, args.folder)
    return f"export: {args.folder}"
