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
    argument("--tokens", "of a study read every token, too", action="store_true"),
    path("--mark", "file that lists what was right before; it is updated"),
    argument("--threads", "shards that are read at the same time", type=int, default=2),
)
def verify(args: Namespace) -> str:
    """Read again what was written, and compare it with what is recorded."""
    from lmscaling.data import verify

    folders = [args.folder, *sorted(args.folder.glob("tokens/*"))]
    manifests = [path for path in (f / "manifest.json" for f in folders) if path.is_file()]
    is_study = (args.folder / "study.json").is_file()
    if not manifests and not is_study:
        raise UserError(
            f"{args.folder} has no study.json, manifest.json or tokens/*/manifest.json; name "
            "results/<study> or the folder of a text, once snakemake has tokenized it"
        )
    said = [_verified(args.folder, manifests)] if is_study else []
    if args.tokens or not is_study:
        said += [verify.verify(path, args.mark, args.threads) for path in manifests]
    return "\n".join(f"verify: {sentence}" for sentence in said)


def _verified(study: Path, manifests: list[Path]) -> str:
    """What is whole in a study, in words; of shards their sizes, sidecars and order.

    Raises:
        UserError: Something is not; standard error says what.
    """
    from lmscaling.data import shards
    from lmscaling.store import whole

    wrong = list(whole.problems(study))
    places = [(manifest, split) for manifest in manifests for split in ("train", "validation")]
    for manifest, split in places:
        try:
            for i, shard in enumerate(shards.read_manifest(manifest, split)):
                sidecar = (manifest.parent / shard.file).with_suffix(".json")
                if shards.read_sidecar(sidecar, split, i)["sha256"] != shard.sha256:
                    wrong.append(f"{sidecar} is of other tokens than {manifest} lists")
        except UserError as error:
            wrong.append(str(error))
    for problem in wrong:
        print(f"verify: {problem}", file=sys.stderr)
    if wrong:
        raise UserError(
            f"{len(wrong)} things in {study} are damaged or belong elsewhere, as said above; "
            f"correct each as its line says, then type lmscaling verify {study} again"
        )
    runs = len(list(study.glob("runs/*/run.json")))
    return f"{study}: {runs} records and all that belongs to them are whole"
