"""Command line: one verb per workflow rule. Paths are arguments; numbers live in the cell."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


def refuse(missing: ModuleNotFoundError) -> NoReturn:
    """End in one sentence where a package is missing; a module of ours that is, is a bug."""
    package = (missing.name or "").partition(".")[0]
    if package in ("", "lmscaling"):
        raise missing
    sys.exit(
        f"error: this Python has no {package}; install it, or for make gpu put its wheel into "
        "wheels/ (pydantic comes with pydantic_core, annotated_types and typing_inspection)"
    )


try:
    from lmscaling.cli import verbs
    from lmscaling.config import sweeps
    from lmscaling.errors import UserError
except ModuleNotFoundError as missing:
    refuse(missing)


def main() -> None:
    parser = argparse.ArgumentParser(prog="lmscaling", description=__doc__)
    subparsers = parser.add_subparsers(required=True, metavar="VERB")
    for group in (of_text, of_studies, of_runs, of_results, of_devices):
        group(subparsers)
    args = parser.parse_args()
    try:
        said = args.do(args)
    except UserError as error:
        if not os.path.samestat(os.fstat(1), os.fstat(2)):
            # Rules send standard error to a log; whoever watches the workflow sees this line.
            print(f"{args.do.__name__.replace('_', ' ')}: error: {error}", flush=True)
        sys.exit(f"error: {error}")
    except ModuleNotFoundError as error:
        refuse(error)
    if said:
        print(said, flush=True)


def add(
    subparsers: Any, do: Callable[[argparse.Namespace], str], name: str = "", **values: Any
) -> argparse.ArgumentParser:
    """A verb under its function's name, or another; ``values`` are arguments that it always has."""
    what = values.pop("what", do.__doc__)
    sub = subparsers.add_parser(name or do.__name__, help=what, description=what)
    sub.set_defaults(do=do, **values)
    return sub


def family(subparsers: Any, name: str, what: str) -> Any:
    """A verb whose second word says what it is about."""
    return subparsers.add_parser(name, help=what).add_subparsers(required=True, metavar="WHAT")


def of_text(subparsers: Any) -> None:
    """Verbs from text to tokens."""
    v = add(subparsers, verbs.vocabulary)
    v.add_argument("out", type=Path, help="results/<study>/vocabulary/gpt2.tiktoken")

    v = add(subparsers, verbs.fetch)
    v.add_argument("file", help="path in the repository")
    v.add_argument("out", type=Path, help="where it goes; its hash is written beside it")

    v = add(subparsers, verbs.tokenize)
    v.add_argument("split", choices=["train", "validation"])
    v.add_argument("shard", type=int, help="number of the source shard, from 0")
    v.add_argument("out", type=Path, help="the .bin; its sidecar is written beside it")
    v.add_argument("--source", type=Path, help="file of a hub row as it was fetched")
    v.add_argument("--vocabulary", type=Path, help="as the verb vocabulary wrote it")

    v = add(subparsers, verbs.manifest)
    v.add_argument("out", type=Path, help="manifest.json")
    v.add_argument("train", type=int, help="training shards beside it")
    v.add_argument("validation", type=int, help="validation shards beside it")


def of_studies(subparsers: Any) -> None:
    """Verbs that lay a study out, and say what it will cost and how far it is."""
    v = add(subparsers, verbs.study)
    v.add_argument("out", type=Path, help="study.json")

    v = add(subparsers, verbs.plan)
    v.add_argument(
        "study",
        type=Path,
        nargs="*",
        default=[Path("config/study.yaml")],
        help="study files, each laid over those before it; - reads JSON",
    )
    v.add_argument("--device", default="NVIDIA H100", help="what guesses are made for")
    v.add_argument("--results", type=Path, default=Path("results"), help="folder of the studies")
    v.add_argument("--out", type=Path, help="plan.json")

    v = add(subparsers, verbs.status)
    v.add_argument("study", type=Path, help="results/<study>")
    v.add_argument("--failed", action="store_true", help="only what failed, why, and what to do")

    v = add(subparsers, verbs.rerun)
    v.add_argument(
        "cell", nargs="?", help="name of a cell or a run, or kind/size[/point] of a measurement"
    )
    v.add_argument("--status", help="every run whose record has this status")
    v.add_argument("--context", type=int, help="every run of this context; of both, with --status")
    v.add_argument("--study", help="name of the study, if several have such a run")
    v.add_argument("--results", type=Path, default=Path("results"), help="folder of the studies")

    v = add(subparsers, verbs.schema)
    v.add_argument("out", type=Path, help="config/study.schema.json")


def of_runs(subparsers: Any) -> None:
    """Verbs of training."""
    v = add(subparsers, verbs.calibrate)
    v.add_argument("cell", type=Path, help="cell.json")
    v.add_argument("out", type=Path, help="calibration.json")

    v = add(subparsers, verbs.train)
    v.add_argument("cell", type=Path, help="cell.json")
    v.add_argument("--manifest", type=Path, required=True, help="manifest.json of the tokens")
    v.add_argument("--scratch", type=Path, required=True, help="what must outlive an attempt")
    v.add_argument("--record", type=Path, required=True, help="run.json; the log lands beside it")
    v.add_argument("--calibration", type=Path, help="calibration.json; a guess without")
    v.add_argument(
        "--stop-after",
        type=float,
        metavar="SECONDS",
        help="save and stop so long after this process began, to go on in another job",
    )

    v = add(subparsers, verbs.evaluate)
    v.add_argument("run", type=Path, help="results/<study>/runs/<run>")
    v.add_argument("--manifest", type=Path, required=True, help="manifest.json of the tokens")
    v.add_argument("--out", type=Path, required=True, help="JSON lines, one a bin")

    v = add(subparsers, verbs.export)
    v.add_argument("run", type=Path, help="results/<study>/runs/<run>")
    v.add_argument("folder", type=Path, help="gets model.safetensors and config.json")


def of_results(subparsers: Any) -> None:
    """Verbs from records to a report."""
    v = add(subparsers, verbs.collect)
    v.add_argument("study", type=Path, help="results/<study>")

    v = add(subparsers, verbs.figure)
    v.add_argument("name", help="file stem in figures/")
    v.add_argument("store", type=Path, help="results/<study>/store")
    v.add_argument("folder", type=Path, help="where the figure goes")

    v = add(subparsers, verbs.report)
    v.add_argument("study", type=Path, help="results/<study>")

    v = add(subparsers, verbs.claims)
    v.add_argument("study", type=Path, help="results/<study>, or results/published")

    v = add(subparsers, verbs.figures)
    v.add_argument("study", type=Path, help="results/<study>, or results/published")

    v = add(subparsers, verbs.targets)
    v.add_argument("study", type=Path, nargs="?", help="results/measured/<device>")


def of_devices(subparsers: Any) -> None:
    """Verbs that measure a device."""
    for kind, what in sweeps.KINDS.items():
        v = add(subparsers, verbs.measure, kind, what=what, kind=kind, chunks=None)
        v.add_argument("sweep", type=Path, help="results/<study>/sweeps/<kind>/<sweep>.json")
        v.add_argument("out", type=Path, help="gets a record a point, and sweep.json at the end")
        v.add_argument("--checks", type=Path, help="folder; what has not passed there is not timed")
        if kind == "time_step":
            v.add_argument("--chunks", type=Path, help="sweep.json of tune_chunk at this size")

    v = add(subparsers, verbs.gpu)
    v.add_argument(
        "study",
        type=Path,
        nargs="*",
        default=[Path("config/study.yaml"), Path("config/gpu.yaml")],
        help="study files, each laid over those before it",
    )
    v.add_argument("--out", type=Path, help="results/measured/<device> without")
    v.add_argument(
        "--validation", nargs="+", default=[], help="JSON lines of documents; a share of the text"
    )
    v.add_argument("--parts", nargs="+", default=[], help="these parts and what they need only")
    v.add_argument("--minutes", type=float, default=8.5, help="how long this call may take")

    v = add(subparsers, verbs.numerics)
    v.add_argument("run", type=Path, help="results/<study>/runs/<run> of linear attention")
    v.add_argument("--manifest", type=Path, required=True, help="manifest.json of the tokens")
    v.add_argument("--out", type=Path, required=True, help="JSON lines, one a layer and a way")

    subjects = family(subparsers, "tune", "Find what is fastest on this device.")
    v = add(subjects, verbs.tune_kernels, "kernels")
    v.add_argument("--out", type=Path, help="file of entries; that of the source tree without")

    subjects = family(subparsers, "check", "Compare what this device computes with what is right.")
    v = add(subjects, verbs.check_kernels, "kernels")
    v.add_argument("names", nargs="*", help="such as linear/chunked; all if none is named")
    v.add_argument("--out", type=Path, required=True, help="JSON lines, one a comparison")
    v.add_argument("--cpu", action="store_true", help="check the CPU")


if __name__ == "__main__":
    main()
