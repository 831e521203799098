"""From documents to token ids: always as ordinary text, so no id is end-of-text."""

import numpy as np
import tiktoken

from lmscaling.data.tokenizer_file import Loaded
from lmscaling.errors import UserError


def encode(encoder: tiktoken.Encoding | Loaded, texts: list[str]) -> list[np.ndarray]:
    """Ids of some documents, uint32 ``[n]`` of each."""
    if isinstance(encoder, Loaded):  # without the tokens that a post-processor adds
        made = encoder.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(one.ids, dtype=np.uint32) for one in made]
    return [encoder.encode_to_numpy(text, disallowed_special=()) for text in texts]


def joined(ids: list[np.ndarray], end_of_text: int) -> np.ndarray:
    """The documents, at least one, as one stream with end-of-text before each: uint16 if that holds
    it, else uint32. UserError if an id is not below that of end-of-text: it would fake a boundary.
    """
    if (largest := max(one.max(initial=0) for one in ids)) >= end_of_text:
        raise UserError(
            f"the tokenizer returned id {largest} for ordinary text; allowed: below {end_of_text}, "
            "the end-of-text token"
        )
    token, start = np.uint16 if end_of_text < 2**16 else np.uint32, [end_of_text]
    return np.concatenate([part for one in ids for part in (start, one)]).astype(token)
