"""A ``tokenizer.json`` of Hugging Face's ``tokenizers``. Text must come back from its tokens, up to
canonical equivalence, or a loss per byte would mean nothing. Special tokens, padding and truncation
are not used. End-of-text is the last id."""

import os
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

from lmscaling.data.rows import Tokenizer
from lmscaling.errors import UserError
from lmscaling.files import replacing, sha256_of

CODES = (*range(0x800), *range(0x800, 0xD800, 0x400), *range(0x10000, 0x110000, 0x4000))
PROBE = f"A\r\n\t  b's 01234 {{}}<|x|>\ufeff  \n{''.join(map(chr, CODES))}"  # all bytes of UTF-8


class Loaded(NamedTuple):
    """A tokenizer (``tokenizers.Tokenizer``), its SHA-256, and its ids with end-of-text."""

    tokenizer: Any
    sha256: str
    n_vocab: int


def load(path: Path, row: Tokenizer | None = None) -> Loaded:
    """The tokenizer of a file; UserError if it changes text, or is not the one of its row."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a core runs one shard
    import tokenizers

    try:
        found = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises no narrower one
        raise UserError(f"tokenizer {path} cannot be read: {error}; correct its path") from None
    found.no_truncation()
    found.no_padding()
    found.encode_special_tokens, found.decoder = True, tokenizers.decoders.ByteLevel()
    added = found.get_added_tokens_decoder().values()
    texts = [PROBE, *(f"a {token.content} b" for token in added if not token.special)]
    if not isinstance(found.model, tokenizers.models.BPE) or found.model.dropout:
        raise UserError(f"tokenizer {path} is no BPE, or one with dropout; name another file")
    for text in texts:
        ids = found.encode(text, add_special_tokens=False).ids
        if normalize("NFC", text) != normalize("NFC", back := found.decode(ids, False)):
            raise UserError(f"tokenizer {path} changes {text!r:.40} to {back!r:.40}; name another")
    special = {token.content for token in added if token.special}
    n_vocab = max(id_ for name, id_ in found.get_vocab().items() if name not in special) + 2
    loaded = Loaded(found, sha256_of(path), n_vocab)
    if row and (row.sha256, row.vocab_size) != loaded[1:]:
        right = f"sha256: {loaded.sha256}, vocab_size: {n_vocab}"
        raise UserError(f"tokenizer {path} has {right}; correct its row, or put the file back")
    return loaded


def copy(file: Path, out: Path, row: Tokenizer | None = None) -> Loaded:
    """Copy a tokenizer file, after the checks of ``load``."""
    loaded = load(file, row)
    with replacing(out) as target:
        target.write(file.read_bytes())
    return loaded
