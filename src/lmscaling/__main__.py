"""Command line: one verb per workflow rule. Paths are arguments; numbers live in the cell."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from lmscaling.errors import UserError


def tokenize(args: argparse.Namespace) -> str:
    """Tokenize one source shard."""
    from lmscaling.tokenize import tokenize

    made = tokenize(args.corpus, args.split, args.shard, args.out)
    return (
        f"{made['dataset']} {args.split} {args.shard}: {made['tokens']:,} tokens "
        f"in {made['documents']:,} documents"
    )


def manifest(args: argparse.Namespace) -> str:
    """Chain shards into streams."""
    from lmscaling import shards

    shards.write_manifest(args.out, args.sidecars)
    return f"{args.out.parent.name}: {len(args.sidecars)} shards chained"


def train(args: argparse.Namespace) -> str:
    """Train one cell."""
    from lmscaling.train.run import train

    run = train(args.cell, args.manifest, args.scratch, args.record)
    if run is None:
        return ""
    return f"{run.name}: {run.status} after {run.updates} updates, {run.train_seconds:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="lmscaling", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(do: Callable[[argparse.Namespace], str]) -> argparse.ArgumentParser:
        sub = verbs.add_parser(do.__name__, help=do.__doc__, description=do.__doc__)
        sub.set_defaults(do=do)
        return sub

    v = verb(tokenize)
    v.add_argument("corpus", type=Path, help="corpus.json")
    v.add_argument("split", choices=["train", "validation"])
    v.add_argument("shard", type=int, help="number of the source shard, from 0")
    v.add_argument("out", type=Path, help="the .bin; its sidecar is written beside it")

    v = verb(manifest)
    v.add_argument("out", type=Path, help="manifest.json")
    v.add_argument("sidecars", type=Path, nargs="+", help="in the order of the stream")

    v = verb(train)
    v.add_argument("cell", type=Path, help="cell.json")
    v.add_argument("--manifest", type=Path, required=True, help="manifest.json of the tokens")
    v.add_argument("--scratch", type=Path, required=True, help="what must outlive an attempt")
    v.add_argument("--record", type=Path, required=True, help="run.json; the log lands beside it")

    args = parser.parse_args()
    try:
        said = args.do(args)
    except UserError as error:
        sys.exit(f"error: {error}")
    if said:
        print(said, flush=True)


if __name__ == "__main__":
    main()
