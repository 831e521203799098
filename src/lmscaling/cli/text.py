"""Verbs from text to tokens."""

import signal
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from lmscaling.cli.verb import Verb, argument, verb
from lmscaling.errors import UserError
from lmscaling.files import parse_json
from lmscaling.plan.text_needs import Chunk, missing

VERBS: list[Verb] = []


def _corpus_from_stdin() -> Any:
    """The corpus that standard input describes as JSON."""
    from lmscaling.config.datasets import Corpus
    from lmscaling.config.validation import checked

    return checked(Corpus, parse_json(sys.stdin.read(), "corpus"), "corpus")


@verb(
    VERBS,
    argument("out", type=Path, help="gpt2.tiktoken, or another encoding; or the copy of FILE"),
    argument("--file", type=Path, help="a tokenizer.json to check and copy"),
    argument("--row", help="JSON of its row under tokenizers, which it is compared with"),
    by_workflow=True,
)
def vocabulary(args: Namespace) -> str:
    """Download the vocabulary of an encoding, for jobs that have no network, or copy a file."""
    from lmscaling.config.datasets import Tokenizer
    from lmscaling.config.validation import checked
    from lmscaling.data import tokenizer_file, vocabulary

    if not args.file:
        vocabulary.fetch(args.out)
        return f"vocabulary: {args.out}"
    row = args.row and checked(Tokenizer, parse_json(args.row, "--row"), "--row")
    made = tokenizer_file.copy(args.file, args.out, row)
    values = f"{{file: {args.file}, sha256: {made.sha256}, vocab_size: {made.n_vocab}}}"
    return f"vocabulary: {args.out}; its row under tokenizers: {values}"


@verb(
    VERBS,
    argument("out", type=Path, help="the tokenizer; a file beside it says on what it was trained"),
    argument("--sources", type=Path, help="folder of downloaded files"),
    by_workflow=True,
)
def train_bpe(args: Namespace) -> str:
    """Train the tokenizer of a corpus on its text; standard input has the corpus as JSON."""
    from lmscaling.data import train_bpe

    corpus = _corpus_from_stdin()
    if args.out.is_file():  # shards may have its tokens
        return f"{args.out} exists and stays as it is"
    made = train_bpe.train(corpus, args.out, args.sources)
    return (
        f"train-bpe: {args.out}, {made['train_bpe']['vocab_size']:,} tokens from "
        f"{made['bytes']:,} bytes in {made['documents']:,} documents of {corpus.dataset}"
    )


CHUNK = argument("chunk", help="<split>-<first>-<last> with five digits: train-00000-00015")


@verb(
    VERBS,
    CHUNK,
    argument("out", type=Path, help="destination; a file beside each gets the SHA-256"),
    argument("--missing-in", type=Path, required=True, help="folder of the shards"),
    argument("--at-once", type=int, default=1, help="largest number of simultaneous downloads"),
    by_workflow=True,
)
def fetch(args: Namespace) -> str:
    """Download the files of the missing shards of a chunk; standard input has the corpus."""
    from lmscaling.data import chunk

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # do not wait for the other downloads
    source = _corpus_from_stdin().source
    wanted = Chunk.named(args.chunk)
    files = source.files(wanted.split)
    numbers = missing(source, args.missing_in, wanted.split, wanted.last + 1, wanted.first)
    n_bytes = chunk.fetch(source, [files[i] for i in numbers], args.out, args.at_once)
    return f"fetch: {wanted}, {len(numbers)} files, {n_bytes:,} bytes"


@verb(
    VERBS,
    CHUNK,
    argument("out", type=Path, help="folder of the shards and their sidecars"),
    argument("--sources", type=Path, help="folder of downloaded files, which are used up"),
    argument("--vocabulary", type=Path, help="file that vocabulary or train-bpe wrote"),
    by_workflow=True,
)
def tokenize(args: Namespace) -> str:
    """Tokenize the missing shards of a chunk of a corpus; standard input has the corpus as JSON."""
    from lmscaling.data import chunk

    corpus = _corpus_from_stdin()
    wanted = Chunk.named(args.chunk)
    n = chunk.tokenize(
        corpus, wanted.split, wanted.numbers, args.out,
        is_missing=lambda i: bool(missing(corpus.source, args.out, wanted.split, i + 1, i)),
        sources=args.sources, ranks=args.vocabulary,
    )  # fmt: skip
    made = f"{n} of {len(wanted.numbers)} shards were missing" if n else "all its shards exist"
    return f"tokenize: {corpus.dataset} {wanted}, {made}"


@verb(
    VERBS,
    argument("out", type=Path, help="manifest.json"),
    argument("train", type=int, help="number of training shards beside it"),
    argument("validation", type=int, help="number of validation shards beside it"),
    by_workflow=True,
)
def manifest(args: Namespace) -> str:
    """Check shards and chain them into streams."""
    from lmscaling.data import document_positions, shards
    from lmscaling.plan import documents

    counts = {"train": args.train, "validation": args.validation}
    own = shards.write_manifest(args.out, counts)
    shares = document_positions.shares(own["train" if args.train else "validation"])
    long = ", ".join(f"{n:,}: {share:.2g}" for n, share in shares.items() if n >= 1024)
    kept = documents.count(args.out.parent, counts)
    return "\n".join(
        [
            f"manifest: {args.train} training and {args.validation} validation shards in "
            f"{args.out.parent}; share of tokens with at least so many tokens of their own "
            f"document before them: {long or 'none has 1,024'}",
            *documents.sentences(kept),
        ]
    )


@verb(
    VERBS,
    argument("folder", type=Path, help="results/<study>, or results/<study>/tokens/<text>"),
    argument("--mark", type=Path, help="file that lists what was right before; it is updated"),
    argument("--threads", type=int, default=2, help="shards that are read at the same time"),
    name="verify tokens",
)
def verify_tokens(args: Namespace) -> str:
    """Read every shard of a text once: checksum, tokens and documents."""
    from lmscaling.data import verify

    folders = [args.folder, *sorted(args.folder.glob("tokens/*"))]
    manifests = [path for path in (f / "manifest.json" for f in folders) if path.is_file()]
    if not manifests:
        raise UserError(
            f"{args.folder} has no manifest.json and no tokens/*/manifest.json; name "
            "results/<study> or the folder of a text, once snakemake has tokenized it"
        )
    found = [verify.verify(path, args.mark, args.threads) for path in manifests]
    return "\n".join(f"verify: {sentence}" for sentence in found)
