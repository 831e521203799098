"""The gated delta rule by flash-linear-attention's kernels in bfloat16 on a GPU; else ``plain.py``.

Source: Yang and Zhang 2024, https://github.com/fla-org/flash-linear-attention,
``ops/gated_delta_rule``.

Legend: B batch, T tokens, H heads, K key width, V value width.
"""

from importlib import import_module

from torch import Tensor

from lmscaling.kernels import peer
from lmscaling.kernels.gated_delta import plain


def attend(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor,
    initial_BHKV: Tensor | None = None,
    chunk: int = plain.CHUNK,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule, and the state after the last token; see ``plain.attend``."""
    tokens = (q_BTHK, k_BTHK, v_BTHV, beta_BTH, log_decay_BTH)
    if not peer.takes(v_BTHV):
        return plain.attend(*tokens, initial_BHKV, chunk=chunk)
    return import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule(
        *tokens[:3], g=log_decay_BTH, beta=beta_BTH,
        initial_state=initial_BHKV, output_final_state=True,
    )  # fmt: skip
