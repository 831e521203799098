"""Verbs that measure a device."""

from argparse import Namespace
from pathlib import Path

from lmscaling import registry
from lmscaling.cli.verb import SET, argument, path, verb
from lmscaling.errors import UserError, choose
from lmscaling.gpu import PARTS


@verb(
    path("sweep", "results/<study>/sweeps/<kind>/<sweep>.json"),
    path("out", "folder; gets a record for each point and sweep.json"),
    path("--checks", "what check kernels has written"),
    by_workflow=True,
)
def measure(args: Namespace) -> str:
    """Measure one sweep of the speed study on this device."""
    from lmscaling.bench import sweep

    return sweep.measure(args.sweep, args.out, args.checks)


@verb(path("study", "study.json"), path("out", "speed/kernels-<hash>.json"), by_workflow=True)
def check_kernels(args: Namespace) -> str:
    """Compare the kernels that a study times with exact results on this device."""
    from lmscaling.bench.checks import timed

    wrong = [found for found in timed.check(args.study, args.out) if found.message]
    told = [f"{found.way} is wrong and is not timed: {found.message}" for found in wrong]
    return f"check: {'; '.join(told) or 'every kernel is right'}"


@verb(
    path(
        "study",
        "study files, each laid over those before it",
        nargs="*",
        default=[registry.project_file(f"config/{name}.yaml") for name in ("study", "gpu")],
    ),
    SET,
    path("--out", "build/measured, or results/measured/<device> of an import"),
    path("--archive", "folder of the file with all records; --out by default"),
    argument("--minutes", "time limit of this call", type=float, default=9.3),
    argument("--only", "parts; all by default", nargs="+", choices=PARTS),
    argument("--size", "rows under sizes; all by default", nargs="+"),
    path("--import", "put the records of an archive there", dest="imported"),
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
    argument("rows", "as in axes.attention, such as linear or '{local: {window: 64}}'", nargs="*"),
    argument("--cpu", "check the CPU", action="store_true"),
)
def check_attention(args: Namespace) -> str:
    """Check that attentions are causal, repeatable and decode what they compute on this device."""
    import torch

    from lmscaling.bench.checks import variant
    from lmscaling.config import attention_row, yaml_file
    from lmscaling.runtime import environment, gpus

    alone = (name for name in registry.attentions() if not registry.takes_any_option(name))
    found = [yaml_file.parse(text, "attention")[0] for text in args.rows] or alone
    layers = [each for row in found for each in attention_row.layers(row)]
    with gpus.reserved(0 if args.cpu else 1):
        on_gpu = torch.cuda.is_available() and not args.cpu
        device, known = torch.device("cuda" if on_gpu else "cpu"), environment.device_name(on_gpu)
        for layer in layers:
            given = {"name": layer.attention, "options": layer.options, "masked": True}
            for rotated in (False, True):
                variant.check(variant.Variant(**given, rotated=rotated), device)
            told = "with rotated positions or without, of mixed and of masked documents"
            where = f"on {known} up to {variant.CONTEXT:,} tokens"
            print(f"check: attention {layer.label} is right {where}, {told}")
    return ""
