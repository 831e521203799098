"""PyTorch's attention with a chosen back end, and of several sequences in a row."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import (
    SDPBackend,
    activate_flash_attention_impl,
    current_flash_attention_impl,
    restore_flash_attention_impl,
    sdpa_kernel,
)

from lmscaling.kernels import check

CAPABILITIES = (9, 10)
"""Major compute capabilities on which PyTorch runs FlashAttention-4: H100, H200, B200."""


def attend_by(
    backend: SDPBackend,
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    causal: bool = True,
    version: int = 2,
) -> Tensor:
    """Softmax attention. The back end is forced on a GPU in bfloat16, the only one of our
    dtypes that these back ends support; it also computes the backward pass. ValueError: the
    arguments do not match. RuntimeError: the GPU has no such version of flash attention.
    """
    check(q_BTHK, k_BTHK, v_BTHV)
    q, k, v = (x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV))
    if not is_forced(v_BTHV):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
    use_flash(version)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def is_forced(x: Tensor) -> bool:
    """Whether a chosen back end computes queries, keys and values like these."""
    return x.is_cuda and x.dtype == torch.bfloat16


def attend_documents(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, bounds_P: Tensor, longest: int
) -> Tensor:
    """``forms.flash`` of several sequences that follow one another in the rows, if ``is_forced``.

    Args:
        q_BTHK: Queries.
        k_BTHK: Keys.
        v_BTHV: Values.
        bounds_P: Tokens before each sequence, all rows counted, and ``B T`` in the end; int32 on
            the device. No sequence crosses the end of its row.
        longest: Tokens of the longest sequence.

    Cost:
        ``H (K + V)`` FLOPs forward for the square of each length; memory linear in T.
    """
    from torch.nn.attention.varlen import varlen_attn  # loads the compiler

    check(q_BTHK, k_BTHK, v_BTHV)
    use_flash(2)
    q, k, v = (x.flatten(0, 1) for x in (q_BTHK, k_BTHK, v_BTHV))
    y = varlen_attn(q, k, v, bounds_P, bounds_P, longest, longest, window_size=(-1, 0))
    assert isinstance(y, Tensor)  # two only if asked for
    return y.view_as(v_BTHV)


def use_flash(version: int) -> None:
    """Choose FlashAttention-2 or -4 as the flash attention of PyTorch, in the whole process and in
    graphs that are compiled already. Nothing is chosen on a machine without a GPU, and not while a
    compiler traces: the attention has chosen before.

    Raises:
        RuntimeError: FlashAttention-4 cannot be chosen here.
    """
    name = "FA4" if version == 4 else None
    is_chosen = torch.compiler.is_compiling() or current_flash_attention_impl() == name
    if is_chosen or not torch.cuda.is_available():
        return
    if name is None:
        restore_flash_attention_impl()
        return
    try:
        if torch.cuda.get_device_capability()[0] not in CAPABILITIES:
            raise RuntimeError(f"this is a {torch.cuda.get_device_name()}")
        activate_flash_attention_impl(name)
    except (ImportError, RuntimeError, ValueError) as error:
        raise RuntimeError(
            "softmax/flash4 needs an H100, H200 or B200 and `pip install flash-attn-4`; leave it "
            f"out elsewhere ({error})"
        ) from error


def has_flash4() -> bool:
    """Whether FlashAttention-4 can be chosen here; leaves the choice as it was."""
    before = 4 if current_flash_attention_impl() else 2
    try:
        use_flash(4)
    except RuntimeError:
        return False
    use_flash(before)
    return torch.cuda.is_available()
