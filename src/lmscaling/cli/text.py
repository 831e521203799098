"""Verbs from text to tokens."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from lmscaling.cli.verb import Verb, argument, verb
from lmscaling.files import parse_json

VERBS: list[Verb] = []


def _corpus_from_stdin() -> Any:
    """The corpus that standard input describes as JSON."""
    from lmscaling.config.datasets import Corpus
    from lmscaling.config.validation import checked

    return checked(Corpus, parse_json(sys.stdin.read(), "corpus"), "corpus")


@verb(VERBS, argument("out", type=Path, help="results/<study>/vocabulary/gpt2.tiktoken"))
def vocabulary(args: Namespace) -> str:
    """Download the vocabulary of GPT-2, for jobs that have no network."""
    from lmscaling.data import vocabulary

    vocabulary.fetch(args.out)
    return f"vocabulary: {args.out}"


@verb(
    VERBS,
    argument("file", help="path in the repository"),
    argument("out", type=Path, help="destination; a file beside it gets the SHA-256"),
)
def fetch(args: Namespace) -> str:
    """Download one file of a corpus from the Hugging Face Hub; standard input has the corpus."""
    fetched = _corpus_from_stdin().source.fetch(args.file, args.out)
    return f"fetch: {args.file}, {fetched['bytes']:,} bytes, SHA-256 {fetched['sha256']}"


@verb(
    VERBS,
    argument("split", choices=["train", "validation"]),
    argument("shard", type=int, help="number of the source shard, from 0"),
    argument("out", type=Path, help="the .bin file; its sidecar is written beside it"),
    argument("--source", type=Path, help="downloaded file, for a dataset of kind hub"),
    argument("--vocabulary", type=Path, help="file that the verb vocabulary wrote"),
)
def tokenize(args: Namespace) -> str:
    """Tokenize one source shard of a corpus; standard input has the corpus as JSON."""
    from lmscaling.data.tokenize import tokenize

    sidecar = tokenize(
        _corpus_from_stdin(), args.split, args.shard, args.out, args.source, args.vocabulary
    )
    return (
        f"tokenize: {sidecar['dataset']} {args.split} {args.shard}, {sidecar['tokens']:,} tokens "
        f"in {sidecar['documents']:,} documents"
    )


@verb(
    VERBS,
    argument("out", type=Path, help="manifest.json"),
    argument("train", type=int, help="number of training shards beside it"),
    argument("validation", type=int, help="number of validation shards beside it"),
)
def manifest(args: Namespace) -> str:
    """Check shards and chain them into streams."""
    from lmscaling.data import document_positions, shards

    counts = {"train": args.train, "validation": args.validation}
    own = shards.write_manifest(args.out, counts)
    shares = document_positions.shares(own["train" if args.train else "validation"])
    long = ", ".join(f"{n:,}: {share:.2g}" for n, share in shares.items() if n >= 1024)
    return (
        f"manifest: {args.train} training and {args.validation} validation shards in "
        f"{args.out.parent}; share of tokens with at least so many tokens of their own document "
        f"before them: {long or 'none has 1,024'}"
    )
