"""Files of tokenizers for tests: GPT-2's as ``tokenizer.json``, and small ones."""

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import tiktoken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lmscaling.config.datasets import Tokenizer as Row
from lmscaling.data import vocabulary
from lmscaling.files import sha256_of


@cache
def characters() -> dict[int, str]:
    """The character that stands for each byte in a byte-level BPE: GPT-2's table."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}


def named(token: bytes) -> str:
    return "".join(characters()[byte] for byte in token)


def halves(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two tokens that are merged last into a token."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = (ranks.get(a + b, len(ranks)) for a, b in pairwise(parts))
        i = min(enumerate(pairs), key=lambda pair: pair[1])[0]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def gpt2(ranks: Path) -> Tokenizer:
    """GPT-2 for ``tokenizers``, from a file of ranks, with its special token."""
    encoder: tiktoken.Encoding = vocabulary.encoding(Row(encoding="gpt2"), ranks)
    known = {encoder.decode_single_token_bytes(i): i for i in range(encoder.n_vocab - 1)}
    merged = sorted((token for token in known if len(token) > 1), key=known.__getitem__)
    merges = [tuple(map(named, halves(token, known))) for token in merged]
    made = byte_level({named(token): rank for token, rank in known.items()}, merges)
    made.add_special_tokens(["<|endoftext|>"])
    return made


def byte_level(vocab: dict[str, int], merges: list[Any] | None = None, **options: Any) -> Tokenizer:
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges or [], **options))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def small(first: int = 0, **options: Any) -> Tokenizer:
    """The 256 bytes from an id on, after tokens that no text has, and one merge."""
    vocab = {f"unused {i}": i for i in range(first)}
    vocab |= {characters()[byte]: first + byte for byte in range(256)} | {"th": first + 256}
    return byte_level(vocab, [("t", "h")], **options)


def row(tokenizer: Any, path: Path, n_vocab: int = 258) -> dict[str, Any]:
    text = tokenizer.to_str() if isinstance(tokenizer, Tokenizer) else tokenizer
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return {"file": str(path), "sha256": sha256_of(path), "vocab_size": n_vocab}
