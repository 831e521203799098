"""What each verb of the command line does: a rule of the workflow, or what a person asks for.

A verb gets its arguments as ``__main__`` parsed them and returns what there is to say. It imports
what it needs when it is called: a figure needs no torch, and a plan needs neither wing.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from lmscaling import files
from lmscaling.config import sweeps
from lmscaling.errors import UserError

LEFT = os.EX_TEMPFAIL
"""Exit code of ``gpu`` while something is left to do: call again."""


def corpus_given() -> Any:
    """The corpus that standard input holds as JSON."""
    from lmscaling.config.datasets import Corpus
    from lmscaling.config.validation import checked

    return checked(Corpus, files.parse_json(sys.stdin.read(), "corpus"), "corpus")


def vocabulary(args: argparse.Namespace) -> str:
    """Fetch GPT-2's vocabulary, for jobs that have no network."""
    from lmscaling.data import vocabulary

    vocabulary.fetch(args.out)
    return f"vocabulary: {args.out}"


def fetch(args: argparse.Namespace) -> str:
    """Fetch one file of the hub repository of the corpus that standard input holds as JSON."""
    from lmscaling.data.download import fetch

    made = fetch(corpus_given().source, args.file, args.out)
    return f"fetch: {args.file}, {made['bytes']:,} bytes, SHA-256 {made['sha256']}"


def tokenize(args: argparse.Namespace) -> str:
    """Tokenize one source shard of the corpus that standard input holds as JSON."""
    from lmscaling.data.tokenize import tokenize

    made = tokenize(corpus_given(), args.split, args.shard, args.out, args.source, args.vocabulary)
    return (
        f"tokenize: {made['dataset']} {args.split} {args.shard}, {made['tokens']:,} tokens "
        f"in {made['documents']:,} documents"
    )


def manifest(args: argparse.Namespace) -> str:
    """Chain shards into streams."""
    from lmscaling.data import document_positions, shards

    counts = {"train": args.train, "validation": args.validation}
    own = shards.write_manifest(args.out, counts)
    shares = document_positions.shares(own["train" if args.train else "validation"])
    long = ", ".join(f"{share:.2g} have {n:,}" for n, share in shares.items() if n >= 1024)
    return (
        f"manifest: {args.train} + {args.validation} shards in {args.out.parent}; share of tokens "
        f"by tokens of their own document before them: {long or 'none has 1,024'}"
    )


def plan(args: argparse.Namespace) -> str:
    """Say what a study will cost and what of it cannot run."""
    from lmscaling.config import grid, study_file
    from lmscaling.model import gpt
    from lmscaling.plan import study_plan as plan

    if args.study == [Path("-")]:
        values = files.parse_json(sys.stdin.read(), "study")
    else:
        values = study_file.read_study(args.study)
    laid_out = grid.expand(values)
    shapes = {run: gpt.shape(cell) for run, cell in laid_out.cells.items()}
    made = plan.make(laid_out, shapes, args.device, args.results / laid_out.study.study)
    if args.out:
        files.write_json(args.out, made.to_json())
    return made.table()


def calibrate(args: argparse.Namespace) -> str:
    """Measure how this device computes a cell fastest."""
    from lmscaling.train.calibrate import calibrate

    found = calibrate(args.cell, args.out)
    return (
        f"calibrate: {args.out.stem} takes {found.micro_batch} sequences at once, "
        f"{found.update_seconds:.3g} s per update"
    )


def train(args: argparse.Namespace) -> str:
    """Train one cell."""
    from lmscaling.train.run import train

    run = train(
        args.cell, args.manifest, args.scratch, args.record, args.calibration, args.stop_after
    )
    if run is None:
        return ""
    return f"train: {run.name} {run.status} after {run.updates} updates, {run.train_seconds:.0f} s"


def measure(args: argparse.Namespace) -> str:
    """Measure one sweep of the speed study."""
    from lmscaling.bench import sweep

    return sweep.measure(args.sweep, args.kind, args.out, args.chunks, args.checks)


def evaluate(args: argparse.Namespace) -> str:
    """Evaluate the final weights of a run position by position."""
    from lmscaling.evaluate.loss_by_position import evaluate

    return f"evaluate: {evaluate(args.run, args.manifest, args.out)}"


def study(args: argparse.Namespace) -> str:
    """Write down the study that standard input holds as JSON."""
    from lmscaling.config import study_file

    made = study_file.write_record(args.out, files.parse_json(sys.stdin.read(), "study"))
    sweeps.write(args.out.parent, made.study)
    return f"study: {args.out}, {len(made.cells)} cells"


def collect(args: argparse.Namespace) -> str:
    """Rebuild the store of a study from its records and logs."""
    from lmscaling.store import build as store

    counts = store.build(args.study)
    return f"store: {', '.join(f'{n:,} {name}' for name, n in counts.items())}"


def figure(args: argparse.Namespace) -> str:
    """Draw one figure from the store."""
    from lmscaling import figures

    return f"figure: {figures.save(args.name, args.store, args.folder)}"


def report(args: argparse.Namespace) -> str:
    """Write the report from the store and the figures."""
    from lmscaling import report

    return f"report: {report.write(args.study)}"


def claims(args: argparse.Namespace) -> str:
    """Judge the claims of the literature by the records and logs that exist."""
    from lmscaling import claims
    from lmscaling.store import build as store

    store.build(args.study)
    made = claims.write(args.study)
    return f"{claims.text(made)}\nclaims: {args.study / 'claims.json'}; {claims.summary(made)}"


def figures(args: argparse.Namespace) -> str:
    """Rebuild store, figures, claims and report from the records and logs that exist."""
    from lmscaling import claims, figures, report
    from lmscaling.store import build as store
    from lmscaling.store import published

    store.build(args.study)
    blank = not published.is_folder(args.study)
    for path in figures.save_all(args.study / "store", args.study / "figures", blank):
        print(f"figure: {path}", flush=True)
    judged = claims.summary(claims.write(args.study))
    print(f"claims: {args.study / 'claims.json'}; {judged}", flush=True)
    return f"report: {report.write(args.study)}"


def status(args: argparse.Namespace) -> str:
    """Say of every cell of a study how far it is."""
    from lmscaling.status import failures
    from lmscaling.status import table as status

    if args.failed:
        return failures.text(args.study)
    return status.table(args.study)


def rerun(args: argparse.Namespace) -> str:
    """Move what a cell or a measurement has left to the attic: the next snakemake does it again."""
    from lmscaling.status import reset as rerun

    if args.cell and "/" in args.cell:
        study, paths = rerun.select_measurements(args.results, args.study, args.cell)
        attic = rerun.move_measurements(study, paths)
        return f"moved to {attic}: {', '.join(paths)}; the next snakemake measures again"
    if not (args.cell or args.status or args.context):
        raise UserError("rerun of what? name a cell, or give --status or --context")
    study, runs = rerun.select(args.results, args.study, args.cell, args.status, args.context)
    attic = rerun.move(study, runs)
    return f"moved to {attic}: {', '.join(runs)}; the next snakemake trains from update 0"


def tune_kernels(args: argparse.Namespace) -> str:
    """Find the fastest configuration of the fused kernels on this GPU."""
    from lmscaling.bench import tune
    from lmscaling.runtime import gpus

    with gpus.reserved(1):
        return tune.tune(args.out)


def export(args: argparse.Namespace) -> str:
    """Write a finished run in the layout of Hugging Face's GPT-2."""
    from lmscaling.model import huggingface

    huggingface.export(args.run, args.folder)
    return f"export: {args.folder}"


def check_kernels(args: argparse.Namespace) -> str:
    """Compare every implementation of attention with exact results on this device."""
    from lmscaling.bench.checks import kernels as checks
    from lmscaling.runtime import gpus

    with gpus.reserved(0 if args.cpu else 1):
        return checks.check(args.out, args.names, 0 if args.cpu else 1)


def numerics(args: argparse.Namespace) -> str:
    """Measure what the layers of a trained model lose of their gradients."""
    from lmscaling.evaluate.gradient_error import numerics

    return f"numerics: {numerics(args.run, args.manifest, args.out)}"


def gpu(args: argparse.Namespace) -> str:
    """Measure all that this machine's device can tell, as far as this call has time."""
    from lmscaling.device.run import run

    said, complete = run(args.study, args.out, args.validation, args.parts, args.minutes)
    print(said, flush=True)
    if not complete:
        sys.exit(LEFT)
    return ""


def targets(args: argparse.Namespace) -> str:
    """Set what was measured on a device beside what was to be reached."""
    from lmscaling.device import targets
    from lmscaling.store import build as store

    if args.study is None:
        return targets.table(None)
    store.build(args.study)
    return targets.table(args.study / "store")


def schema(args: argparse.Namespace) -> str:
    """Write the JSON schema of the study file, for editors."""
    from lmscaling.config import study as config

    files.write_json(args.out, config.schema())
    return f"schema: {args.out}"
