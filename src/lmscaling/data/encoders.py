"""From documents to token ids.

Text is always encoded as ordinary text, so no id is end-of-text.
"""

from typing import NamedTuple

import numpy as np
import tiktoken

from lmscaling.data.tokenizer_file import Loaded
from lmscaling.errors import UserError


class Ids(NamedTuple):
    """Token ids of several documents."""

    flat: np.ndarray
    """Unsigned ``[n]``, concatenated."""
    lengths: np.ndarray
    """Number of ids of each document, int64 ``[documents]``."""


def encode(encoder: tiktoken.Encoding | Loaded, texts: list[str]) -> Ids:
    """Ids of some documents, at least one; lone surrogates become the replacement character."""
    if isinstance(encoder, Loaded):  # without the tokens that a post-processor adds
        made = encoder.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        parts = [np.array(one.ids, dtype=np.uint32) for one in made]
    else:
        parts = [encoder.encode_to_numpy(text, disallowed_special=()) for text in texts]
    return Ids(np.concatenate(parts), np.array([len(ids) for ids in parts], dtype=np.int64))


def versions(encoder: tiktoken.Encoding | Loaded) -> dict[str, str]:
    """Version of the package that computes the ids."""
    if isinstance(encoder, Loaded):
        import tokenizers

        return {"tokenizers": tokenizers.__version__}
    return {"tiktoken": tiktoken.__version__}


def joined(ids: Ids, end_of_text: int) -> np.ndarray:
    """The documents as one stream with the end-of-text token before each, uint16 if that holds it,
    else uint32.

    Raises:
        UserError: An id is that of end-of-text or above, so it would fake a boundary.
    """
    if ids.flat.size and ids.flat.max() >= end_of_text:
        raise UserError(
            f"the tokenizer returned id {ids.flat.max()} for ordinary text; allowed: below "
            f"{end_of_text}, the end-of-text token"
        )
    token = np.uint16 if end_of_text < 2**16 else np.uint32
    starts = np.cumsum(ids.lengths) - ids.lengths
    return np.insert(ids.flat.astype(token), starts, token(end_of_text))
