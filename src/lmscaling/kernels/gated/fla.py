"""Gates of channels by flash-linear-attention's kernels in bfloat16 on a GPU; else ``plain.py``.

Source: Yang and Zhang 2024, https://github.com/fla-org/flash-linear-attention, ``ops/gla``.

Legend: B batch, T tokens, H heads, K key width, V value width.
"""

from importlib import import_module

from torch import Tensor

from lmscaling.kernels import peer
from lmscaling.kernels.gated import plain


def attend(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay: Tensor,
    initial_BHKV: Tensor | None = None,
    chunk: int = plain.CHUNK,
) -> tuple[Tensor, Tensor]:
    """Weighted sums of values, and the state after the last token; see ``plain.attend``."""
    if not peer.takes(v_BTHV) or log_decay.dim() < 4:
        return plain.attend(q_BTHK, k_BTHK, v_BTHV, log_decay, initial_BHKV, chunk)
    return import_module("fla.ops.gla").chunk_gla(
        q_BTHK, k_BTHK, v_BTHV, log_decay,
        scale=1.0, initial_state=initial_BHKV, output_final_state=True,
    )  # fmt: skip
