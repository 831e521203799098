"""A ``tokenizer.json`` of Hugging Face's ``tokenizers``, as a tokenizer of ordinary text.

Every text must come back from its tokens, or a loss per byte would mean nothing. So the file must
be a byte-level BPE with all 256 bytes, without random merges, and with no other normalization than
to NFC, which leaves text canonically equivalent; and a probe must come back.

What the file adds around a text is not used: tokens of a post-processor, padding and truncation. A
special token in a text is ordinary text; any other added token is a token of the vocabulary.
End-of-text is the id after the largest of ordinary text.
"""

import hashlib
import json
import os
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lmscaling.config.datasets import Tokenizer
from lmscaling.errors import UserError
from lmscaling.files import parse_json, read_json, replacing

if TYPE_CHECKING:
    import tokenizers

PROBE = "A\r\n\t  b's 0123456789 {}()<|x|>_%\0\x7f ßéÅ→\u00a0\u2003漢字🙂\u200b\ufeff  \n \n"
"""Text that has to come back from its tokens."""


class Loaded(NamedTuple):
    """A tokenizer file that was checked."""

    tokenizer: "tokenizers.Tokenizer"
    sha256: str
    """SHA-256 of the file."""
    n_vocab: int
    """Number of ids of ordinary text, including unused ones, and end-of-text."""


def load(row: Tokenizer, path: Path | None = None) -> Loaded:
    """The tokenizer of a row with ``file`` or ``train_bpe``.

    Args:
        row: The tokenizer.
        path: The file; if None, that of the row.

    Raises:
        UserError: The file is missing, was changed, cannot represent any text, or has another
            number of tokens than the row.
    """
    if path is None and row.train_bpe:
        raise UserError(
            "a tokenizer that is trained is read from a file that snakemake makes; give it with "
            "--vocabulary"
        )
    path = path or Path(row.file)
    loaded = read(path)
    expected = row.sha256
    if row.train_bpe and described_at(path).is_file():
        expected = read_json(described_at(path), "description of a tokenizer")["sha256"]
    if expected not in ("", loaded.sha256):
        raise UserError(
            f"tokenizer {path} has SHA-256 {loaded.sha256}, but {expected} is expected; put the "
            "file back, or state the new one in the tokenizer's row"
        )
    if loaded.n_vocab != row.n_vocab:
        raise UserError(
            f"tokenizer {path} has {loaded.n_vocab} tokens, but its row states vocab_size "
            f"{row.n_vocab}; write vocab_size: {loaded.n_vocab}"
        )
    return loaded


def described_at(path: Path) -> Path:
    """Path of the description of a trained tokenizer: the text that it has read."""
    return path.with_suffix(".trained")


def copy(file: Path, out: Path, row: Tokenizer | None = None) -> Loaded:
    """Copy a tokenizer file, after all checks, those against its row too if there is one.

    Raises:
        UserError: As for ``load`` and ``read``.
    """
    loaded = load(row, file) if row else read(file)
    data = file.read_bytes()
    with replacing(out) as target:
        target.write(data)
    return loaded


def read(path: Path) -> Loaded:
    """A tokenizer file for ordinary text.

    Raises:
        UserError: The file is missing, is no tokenizer, or cannot represent any text.
    """
    # One core for each shard: Snakemake runs several jobs side by side.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    if not path.is_file():
        raise UserError(f"tokenizer {path} does not exist; correct its path")
    data = path.read_bytes()
    content = parse_json(data, f"tokenizer {path}")
    try:
        tokenizer = tokenizers.Tokenizer.from_str(data.decode())
    except Exception as error:  # the package raises no narrower one
        problem = " ".join(str(error).split())
        raise UserError(
            f"{path} is no file of tokenizers: {problem}; name a tokenizer.json of that package"
        ) from None
    if reason := _unfit(content):
        raise UserError(
            f"tokenizer {path} {reason}; allowed: a byte-level BPE from whose tokens every text "
            "comes back, the kind of GPT-2, GPT-NeoX, Llama 3 and Qwen"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    _probe(tokenizer, content, path)
    return Loaded(tokenizer, hashlib.sha256(data).hexdigest(), _n_vocab(content))


def _unfit(content: dict[str, Any]) -> str:
    """Why a text might not come back from its tokens; empty if it does."""
    model, parts = content["model"], _parts(content.get("pre_tokenizer"))
    if model.get("type") != "BPE" or not any(part["type"] == "ByteLevel" for part in parts):
        return f"is a {model.get('type')} model without byte-level pieces"
    if model.get("dropout"):
        return f"merges at random (dropout {model['dropout']})"
    if lacking := sum(character not in model["vocab"] for character in _alphabet()):
        return f"lacks {lacking} of the 256 bytes"
    changes = [part["type"] for part in _parts(content.get("normalizer")) if part["type"] != "NFC"]
    return f"changes text by {changes[0]}" if changes else ""


def _parts(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The parts of a sequence of normalizers or pre-tokenizers, or the only one."""
    if not step:
        return []
    inner = step.get("pretokenizers", step.get("normalizers"))
    return [step] if inner is None else [part for each in inner for part in _parts(each)]


def _alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return ByteLevel.alphabet()


def _n_vocab(content: dict[str, Any]) -> int:
    """One more than the largest id of ordinary text, and end-of-text."""
    added = content.get("added_tokens") or []
    special = {token["content"] for token in added if token["special"]}
    ids = [id_ for token, id_ in content["model"]["vocab"].items() if token not in special]
    ids += [token["id"] for token in added if not token["special"]]
    return max(ids) + 2


def _probe(tokenizer: "tokenizers.Tokenizer", content: dict[str, Any], path: Path) -> None:
    added = [token for token in content.get("added_tokens") or [] if not token["special"]]
    normal = any(part["type"] == "NFC" for part in _parts(content.get("normalizer")))
    for text in (PROBE, "x", *(f"a {token['content']} b" for token in added)):
        expected = unicodedata.normalize("NFC", text) if normal else text
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if (found := tokenizer.decode(ids, skip_special_tokens=False)) != expected:
            raise UserError(
                f"tokenizer {path} does not keep text: {json.dumps(expected)} comes back from its "
                f"tokens as {json.dumps(found)}; remove what changes it from the file, such as "
                "add_prefix_space, a pre-tokenizer that deletes, or lstrip of an added token"
            )
