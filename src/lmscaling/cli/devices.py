"""Verbs that measure a device."""

from argparse import Namespace
from pathlib import Path

from lmscaling import registry
from lmscaling.cli.studies import SET
from lmscaling.cli.verb import Verb, argument, verb
from lmscaling.config import sweeps
from lmscaling.errors import UserError, choose
from lmscaling.gpu import PARTS

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
            argument("--checks", type=Path, help="what check kernels has written"),
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
    argument("study", type=Path, help="study.json"),
    argument("out", type=Path, help="speed/kernels-<hash>.json"),
    name="check kernels",
    by_workflow=True,
)
def check_kernels(args: Namespace) -> str:
    """Compare the kernels that a study times with exact results on this device."""
    from lmscaling.bench.checks import timed

    wrong = timed.check(args.study, args.out)
    told = [f"{name} is wrong and is not timed: {fault}" for name, fault in wrong.items()]
    return f"check: {'; '.join(told) or 'every kernel is right'}"


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
    argument("--out", type=Path, help="build/measured, or results/measured/<device> of an import"),
    argument("--archive", type=Path, help="folder of the file with all records; --out by default"),
    argument("--minutes", type=float, default=9.3, help="time limit of this call"),
    argument("--only", nargs="+", choices=PARTS, help="parts; all by default"),
    argument("--size", nargs="+", help="rows under sizes; all by default"),
    argument("--import", type=Path, dest="imported", help="put the records of an archive there"),
)
def gpu(args: Namespace) -> str:
    """Measure this machine's device until the time limit; the next call goes on."""
    from lmscaling.config import study_file
    from lmscaling.gpu import archive, call

    if args.imported:
        return archive.unpack(args.imported, args.out)
    values = study_file.read_study(args.study, overrides=args.set)
    unknown = [name for name in args.size or () if name not in values["sizes"]]
    if unknown:
        raise UserError(f"--size {unknown[0]!r}: {choose(unknown[0], values['sizes'])}")
    out = args.out or Path("build/measured")
    wanted = (args.only or PARTS, args.size)
    return call.measure(values, out, args.archive or out, args.minutes, *wanted)


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
