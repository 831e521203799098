"""Verbs that measure a device."""

import sys
from argparse import Namespace
from pathlib import Path

from lmscaling import registry
from lmscaling.cli.studies import SET
from lmscaling.cli.verb import Verb, argument, verb
from lmscaling.config import sweeps
from lmscaling.errors import TRY_AGAIN

VERBS: list[Verb] = []


def _measure(args: Namespace) -> str:
    """Measure one sweep of the speed study; the verb is its kind."""
    from lmscaling.bench import sweep

    chunks = getattr(args, "chunks", None)
    return sweep.measure(args.sweep, args.verb.name, args.out, chunks, args.checks)


VERBS += [
    Verb(
        name=kind,
        summary=summary,
        run=_measure,
        by_workflow=True,
        arguments=(
            argument("sweep", type=Path, help="results/<study>/sweeps/<kind>/<sweep>.json"),
            argument("out", type=Path, help="folder; gets a record for each point and sweep.json"),
            argument("--checks", type=Path, help="folder of checks; only what passed is timed"),
            *(
                [argument("--chunks", type=Path, help="sweep.json of tune_chunk at this size")]
                if kind == "time_step"
                else []
            ),
        ),
    )
    for kind, summary in sweeps.KINDS.items()
]


@verb(
    VERBS,
    argument(
        "study",
        type=Path,
        nargs="*",
        default=[registry.project_file(f"config/{name}.yaml") for name in ("study", "gpu")],
        help="study files, each laid over those before it",
    ),
    SET,
    argument("--out", type=Path, help="results/measured/<device> by default"),
    argument(
        "--validation", nargs="+", default=[], help="JSON lines; a share of the text by default"
    ),
    argument("--minutes", type=float, default=8.5, help="time limit of this call"),
)
def gpu(args: Namespace) -> str:
    """Measure this machine's device until the time limit; the next call continues."""
    from lmscaling.device.measure import measure

    message, complete = measure(args.study, args.out, args.validation, args.minutes, args.set)
    print(message, flush=True)
    if not complete:
        sys.exit(TRY_AGAIN)
    return ""


@verb(
    VERBS,
    argument("--out", type=Path, help="file of entries; that of the source tree by default"),
    name="tune kernels",
)
def tune_kernels(args: Namespace) -> str:
    """Find the fastest configuration of the fused kernels on this GPU."""
    from lmscaling.bench import tune
    from lmscaling.runtime import gpus

    with gpus.reserved(1):
        return tune.tune(args.out)


CPU = argument("--cpu", action="store_true", help="check the CPU")


@verb(
    VERBS,
    argument("names", nargs="*", help="file stems in attention/; all by default"),
    CPU,
    name="check attention",
)
def check_attention(args: Namespace) -> str:
    """Check that attentions are causal, repeatable and decode what they compute on this device."""
    import torch

    from lmscaling.bench.checks import variant
    from lmscaling.runtime import environment, gpus

    with gpus.reserved(0 if args.cpu else 1):
        on_gpu = torch.cuda.is_available() and not args.cpu
        device, known = torch.device("cuda" if on_gpu else "cpu"), environment.device_name(on_gpu)
        for name in args.names or registry.attentions():
            for rotated in (False, True):
                variant.check(variant.Variant(name=name, rotated=rotated, masked=True), device)
            print(
                f"check: attention {name} is right on {known}, with rotated positions or without, "
                "of mixed and of masked documents"
            )
    return ""


@verb(
    VERBS,
    argument("names", nargs="*", help="such as linear/chunked; all by default"),
    argument("--out", type=Path, required=True, help="JSON lines, one for each comparison"),
    CPU,
    name="check kernels",
)
def check_kernels(args: Namespace) -> str:
    """Compare every implementation of attention with exact results on this device."""
    from lmscaling.bench.checks import kernels as checks
    from lmscaling.runtime import gpus

    with gpus.reserved(0 if args.cpu else 1):
        return checks.check(args.out, args.names, 0 if args.cpu else 1)
