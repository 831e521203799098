"""Verbs from text to tokens."""

import sys
from argparse import Namespace
from pathlib import Path

from lmscaling.cli.verb import argument, path, verb
from lmscaling.errors import UserError
from lmscaling.files import parse_json


@verb(
    path("out", "gpt2.tiktoken, or another encoding; or the copy of FILE"),
    path("--file", "a tokenizer.json to check and copy"),
    argument("--row", "JSON of its row under tokenizers, which it is compared with"),
    by_workflow=True,
)
def vocabulary(args: Namespace) -> str:
    """Download the vocabulary of an encoding, for jobs that have no network, or copy a file."""
    from lmscaling.config.validation import checked
    from lmscaling.data import tokenizer_file, vocabulary
    from lmscaling.data.rows import Tokenizer

    if not args.file:
        vocabulary.fetch(args.out)
        return f"vocabulary: {args.out}"
    row = args.row and checked(Tokenizer, parse_json(args.row, "--row"), "--row")
    made = tokenizer_file.copy(args.file, args.out, row)
    values = f"{{file: {args.file}, sha256: {made.sha256}, vocab_size: {made.n_vocab}}}"
    return f"vocabulary: {args.out}; its row under tokenizers: {values}"


@verb(
    argument("chunk", "<split>-<first>-<last> with five digits: train-00000-00015"),
    path("out", "folder of the shards and their sidecars"),
    path("--vocabulary", "file that vocabulary wrote"),
    by_workflow=True,
)
def tokenize(args: Namespace) -> str:
    """Tokenize the missing shards of a chunk of a corpus; standard input has the corpus as JSON."""
    from lmscaling.config.validation import checked
    from lmscaling.data.rows import Corpus
    from lmscaling.data.tokenize import borrowed, tokenize_all
    from lmscaling.plan.text_needs import Chunk, missing

    corpus = checked(Corpus, parse_json(sys.stdin.read(), "corpus"), "corpus")
    wanted = Chunk.named(args.chunk)

    def is_missing(folder: Path, i: int) -> bool:
        return bool(missing(corpus.source, folder, wanted.split, i + 1, i))

    linked = borrowed(wanted.split, wanted.numbers, args.out, is_missing)
    n = tokenize_all(
        corpus, wanted.split, wanted.numbers, args.out,
        is_missing=lambda i: is_missing(args.out, i), ranks=args.vocabulary,
    )  # fmt: skip
    made = f"{n} of {len(wanted.numbers)} shards were missing" if n else "all its shards exist"
    made += f", {linked} linked from another study" if linked else ""
    return f"tokenize: {corpus.dataset} {wanted}, {made}"


@verb(
    path("out", "manifest.json"),
    argument("train", "number of training shards beside it", type=int),
    argument("validation", "number of validation shards beside it", type=int),
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
    path("folder", "results/<study>, or results/<study>/tokens/<text>"),
    path("--mark", "file that lists what was right before; it is updated"),
    argument("--threads", "shards that are read at the same time", type=int, default=2),
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
