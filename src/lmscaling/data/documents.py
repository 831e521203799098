"""Text of files as documents, read as a stream by Hugging Face's ``datasets``.

A file is a path on this machine or an address of the hub, ``hf://datasets/<owner>/<name>@<commit>/
<path>``, and is read while it arrives, with the user's login, mirror and proxy. JSON lines are read
as lines of text and parsed here: the JSON reader of ``datasets`` has one schema for a file, so it
ends at the first line with other keys, and text that looks like a number or a date becomes one.

Training and validation never share a document. A row lists validation files, or holds out a share
of its documents by a hash of their content; ``Selection`` then drops the validation documents from
training, also where they differ in white space or case alone.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import orjson
import xxhash

from lmscaling.data import file_names
from lmscaling.data.dataset import Documents
from lmscaling.data.rows import Corpus
from lmscaling.errors import UserError, choose
from lmscaling.files import replacing, sha256_of
from lmscaling.types import Split

if TYPE_CHECKING:
    from datasets import IterableDataset

HUB = "hf://"
STRINGS = {f"{size}{kind}" for kind in ("string", "binary") for size in ("", "large_")}
STRINGS |= {"string_view", "binary_view"}
"""Types of the columns of text that programs write to Parquet."""

BATCH, FINGERPRINT_BYTES = 250, 16
"""Rows that are decoded at once; length of a fingerprint."""

RECODE = (
    "write it anew as UTF-8, as iconv -f LATIN1 -t UTF-8 does with a text of Latin-1, and iconv -c "
    "-t UTF-8 without the bytes that are wrong"
)
REMEDY = "get the file again from its source, or leave this document out of a copy of it"


def digest(text: str) -> bytes:
    """First 16 bytes of the SHA-256 of a document; decides on which side it is held out."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def fingerprint(text: str) -> bytes:
    """Sixteen bytes that identify a document; several times as fast as ``digest``, not secure."""
    return xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass"))


def read_shard(corpus: Corpus, split: Split, shard: int) -> Documents:
    """The documents of one source shard; the errors are those of ``Dataset.read``."""
    n = len(corpus.source.files(split))
    if not 0 <= shard < n:
        raise UserError(
            f"{corpus.dataset} has no {split} shard {shard}; allowed: from 0 to {n - 1}"
        )
    documents = corpus.source.read(split, shard)
    if corpus.source.shuffle == "documents":  # by fingerprints, which ignore what a text is about
        return replace(documents, texts=iter(sorted(documents.texts, key=fingerprint)))
    return documents


def hold_out(documents: Documents, split: Split, share: float) -> Documents:
    """The documents of one split, where a share of all documents is held out for validation."""
    below = int(share * 2**64)

    def is_of_split(text: str) -> bool:
        return (int.from_bytes(digest(text)[:8], "big") < below) == (split == "validation")

    return replace(documents, texts=filter(is_of_split, documents.texts))


def of_files(paths: list[str]) -> Documents:
    """Plain-text files, plain or compressed, as a document each, with ``\\n`` at the end of lines;
    UserError at the first one that is not UTF-8 or binary."""
    return Documents(_text(path) for path in paths)


def _text(path: str) -> str:
    """The text of a file."""
    if _packing(path) == "parquet":
        raise UserError(f"{path} is Parquet; write kind: jsonl in the dataset's row")
    text = "".join(_values("text", path, "text", sample_by="document"))
    if (at := text.find("\0")) >= 0:
        raise UserError(f"{path} is binary, character {at:,} is 0; leave it out, or get its text")
    return text


def of_records(path: str, key: str) -> Documents:
    """The documents under a key or column of a file of JSON lines or Parquet; UserError at the
    first one that is no text."""
    if _packing(path) == "parquet":
        texts = _values("parquet", path, key, columns=[key], batch_size=BATCH)
    else:
        lines = enumerate(_values("text", path, "text"), 1)
        texts = (_parsed(line, key, path, n) for n, line in lines if line.strip())

    def describe_file() -> dict[str, Any]:  # a commit of the hub names its content
        file = Path(path)
        is_local = not path.startswith(HUB)
        return {"bytes": file.stat().st_size, "sha256": sha256_of(file)} if is_local else {}

    return Documents(_checked(texts, path), describe_file)


def _packing(path: str) -> str:
    """See ``file_names.packing``. Files of the hub are known by their names, as it has them.

    Raises:
        UserError: There is no such file.
    """
    if path.startswith(HUB):
        return "parquet" if path.lower().endswith(".parquet") else ""
    if os.path.isfile(path):
        return file_names.packing(path)
    if os.path.exists(path):
        raise UserError(f"{path} is no regular file; write its text into one")
    folder = Path(path).parent
    names = sorted(p.name for p in folder.iterdir())[:20] if folder.is_dir() else []
    raise UserError(f"dataset file {path} does not exist; {choose(Path(path).name, names)}")


def _checked(texts: Iterator[Any], path: str) -> Iterator[str]:
    for n, text in enumerate(texts, 1):
        if isinstance(text, bytes):  # of Parquet, whose strings some programs write as bytes
            try:
                text = text.decode()
            except UnicodeDecodeError:
                raise UserError(
                    f"{path}, document {n}: bytes that are no UTF-8; {REMEDY}"
                ) from None
        if not isinstance(text, str):
            found = "null" if text is None else type(text).__name__
            raise UserError(f"{path}, document {n}: {found} in place of text; {REMEDY}")
        yield text


def _parsed(line: str, key: str, path: str, n: int) -> Any:
    """What line n of a file has under a key."""
    place, line = f"{path}, line {n}", line.removeprefix("\ufeff") if n == 1 else line
    if n == 1 and (line.startswith("[") or line.strip() == "{"):
        way = "'.[]'" if line.startswith("[") else "."
        raise UserError(f"{path} has no object on each line; write them so, as jq -c {way} does")
    try:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:  # it refuses lone surrogates, which encoders replace
            record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: no JSON: {error}; {REMEDY}") from None
    if not isinstance(record, dict) or key not in record:
        keys = record if isinstance(record, dict) else []
        raise UserError(f"{place} has no {key!r}; {choose(key, keys)}; set text: in the row")
    text = record[key]
    if isinstance(text, str) and not text.isascii():  # half a pair of surrogates is replaced
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _values(reader: str, path: str, column: str, **options: Any) -> Iterator[Any]:
    """The values of a column of a file.

    Raises:
        UserError: The file is not there, cannot be read or has no such column of text.
    """
    with _opened(reader, path, **options) as stream:
        kind = (stream.features or {}).get(column)
        if reader == "parquet" and getattr(kind, "dtype", "") not in STRINGS:
            with _opened(reader, path) as whole:
                what = kind or choose(column, whole.features or {})
            raise UserError(
                f"{path} has no column {column!r} of text: {what}; set text: in the row"
            )
        tables: Any = stream.with_format("arrow").iter(BATCH)
        for table in tables:
            yield from table[column].to_pylist()


@contextmanager
def _opened(reader: str, path: str, **options: Any) -> Iterator["IterableDataset"]:
    """A file as a stream of ``datasets``; nothing of it is stored.

    ``datasets`` knows how a file is packed by its name, so a local one gets the name of its bytes.

    Raises:
        UserError: The file is not there or cannot be read, also while it is read.
    """
    packing = _packing(path)
    try:
        import datasets
        import pyarrow
    except ImportError as error:
        missing = "text is read by the package datasets, which is not installed"
        raise UserError(f"{missing}; pip install datasets") from error
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it logs what it raises
    with TemporaryDirectory() as folder:
        url = path
        if not path.startswith(HUB):
            url = f"{folder}/text.{packing or 'txt'}"
            os.symlink(os.path.abspath(path), url)
        try:
            if packing == "zst":  # of a file that is cut, ``datasets`` reads the rest in silence
                with pyarrow.input_stream(path, compression="zstd") as file:
                    while file.read(1 << 24):
                        pass
            yield datasets.load_dataset(
                reader, data_files={"train": [url]}, split="train", streaming=True, **options
            )
        except UserError:
            raise
        except Exception as error:  # every format, file system and the hub have errors of their own
            problem = " ".join(str(error).replace(url, path).split())[:400]
            remedy = "get the file again from its source"
            if isinstance(error, UnicodeDecodeError):
                remedy = RECODE
            elif path.startswith(HUB):
                remedy = (
                    "correct the dataset's row, log in with `hf auth login`, or set mirror: in the "
                    "row to a local folder with the repository"
                )
            said = problem or type(error).__name__
            raise UserError(f"{path} cannot be read: {said}; {remedy}") from error


class Selection:
    """Leaves out documents of a training shard, and records those of a validation shard in
    ``folder``, the folder of the shards."""

    def __init__(self, split: Split, folder: Path) -> None:
        self._equal: set[bytes] = set() if split == "validation" else _fingerprints(folder)
        self._seen: list[bytes] | None = [] if split == "validation" else None
        self.n = self.n_bytes = self.n_equal = 0
        self.sha256 = hashlib.sha256()
        """Of the fingerprints of the remaining documents, in order."""

    def filter(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            key, near = fingerprint(text), fingerprint("".join(text.split()).casefold())
            if not self._equal.isdisjoint((key, near)):
                self.n_equal += 1
                continue
            self.n += 1
            self.n_bytes += len(text.encode("utf-8", "surrogatepass"))
            self.sha256.update(key)
            if self._seen is not None:
                self._seen += key, near
            yield text

    def summary(self) -> dict[str, Any]:
        """Fields of the sidecar."""
        return {
            "documents": self.n,
            "bytes": self.n_bytes,
            "documents_dropped": self.n_equal,
            "documents_sha256": self.sha256.hexdigest(),
        }

    def write(self, shard: Path) -> None:
        """Write two fingerprints of each document of a validation shard, beside the shard: of the
        text, and of its case-folded characters without white space."""
        if self._seen is not None:
            with replacing(shard.with_suffix(".fingerprints")) as file:
                file.write(b"".join(self._seen))


def _fingerprints(folder: Path) -> set[bytes]:
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("validation-*.fingerprints")))
    return {data[i : i + FINGERPRINT_BYTES] for i in range(0, len(data), FINGERPRINT_BYTES)}
