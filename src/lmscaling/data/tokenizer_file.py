"""A ``tokenizer.json`` of Hugging Face's ``tokenizers``, as a tokenizer of ordinary text.

Every text must come back from its tokens, up to canonical equivalence, or a loss per byte would
mean nothing. Special tokens, padding and truncation are not used. End-of-text is the last id.
"""

import os
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

from lmscaling.config.datasets import Tokenizer
from lmscaling.errors import UserError
from lmscaling.files import replacing, sha256_of

KINDS = (*range(0x800), *range(0x800, 0xD800, 0x400), *range(0x10000, 0x110000, 0x4000))
PROBE = f"A\r\n\t  b's 01234 {{}}<|x|>\ufeff  \n{''.join(map(chr, KINDS))}"  # all bytes of UTF-8


class Loaded(NamedTuple):
    """A tokenizer file that was checked."""

    tokenizer: Any  # tokenizers.Tokenizer
    sha256: str
    n_vocab: int  # ids up to the largest of ordinary text, and end-of-text


def load(path: Path, row: Tokenizer | None = None) -> Loaded:
    """The tokenizer of a file; UserError if it changes text, or is not the one of its row."""
    if not path.is_file():
        raise UserError(f"tokenizer {path} does not exist; correct its path")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a core runs one shard
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises no narrower one
        raise UserError(f"{path} is no file of the package tokenizers: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    added, changes = tokenizer.get_added_tokens_decoder().values(), "merges at random"
    if not getattr(tokenizer.model, "dropout", None):
        texts = [PROBE, "x", *(f"a {token.content} b" for token in added if not token.special)]
        ids = [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
        found = tokenizer.decode_batch(ids, skip_special_tokens=False)
        nfc = ([unicodedata.normalize("NFC", text) for text in both] for both in (texts, found))
        changes = next((f"changes {a!r:.40} to {b!r:.40}" for a, b in zip(*nfc, strict=True) if a != b), "")
    if changes:
        raise UserError(f"tokenizer {path} {changes}; name a byte-level BPE that keeps all text")
    special = {token.content for token in added if token.special}
    n_vocab = max(i for token, i in tokenizer.get_vocab().items() if token not in special) + 2
    loaded = Loaded(tokenizer, sha256_of(path), n_vocab)
    if row and (row.sha256, row.vocab_size) != (loaded.sha256, n_vocab):
        differs = f"{path} has sha256 {loaded.sha256} and vocab_size {n_vocab}, but its row states"
        raise UserError(f"tokenizer {differs} {row.sha256} and {row.vocab_size}; correct the row")
    return loaded


def copy(file: Path, out: Path, row: Tokenizer | None = None) -> Loaded:
    """Copy a tokenizer file, after the checks of ``load``."""
    loaded = load(file, row)
    with replacing(out) as target:
        target.write(file.read_bytes())
    return loaded
