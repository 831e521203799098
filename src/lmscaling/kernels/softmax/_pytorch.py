"""PyTorch's attention with a chosen back end, for ``flash.py``, ``flash4.py`` and ``cudnn.py``."""

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
    backend: SDPBackend, q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, version: int = 2
) -> Tensor:
    """Causal softmax attention. The back end is forced on a GPU in bfloat16, the only one of our
    dtypes that these back ends support; it also computes the backward pass.

    Raises:
        ValueError: The arguments do not match.
        RuntimeError: The GPU has no such version of flash attention.
    """
    check(q_BTHK, k_BTHK, v_BTHV)
    q_BHTK, k_BHTK, v_BHTV = (x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV))
    if v_BTHV.is_cuda and v_BTHV.dtype == torch.bfloat16:
        use_flash(version)
        with sdpa_kernel(backend):
            y_BHTV = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTV, is_causal=True)
    else:
        y_BHTV = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTV, is_causal=True)
    return y_BHTV.transpose(1, 2)


def use_flash(version: int) -> None:
    """Choose FlashAttention-2 or -4 as the flash attention of PyTorch, in the whole process and in
    graphs that are compiled already. Nothing is chosen on a machine without a GPU, and not while a
    compiler traces: the attention has chosen before.

    Raises:
        RuntimeError: FlashAttention-4 cannot be chosen here.
    """
    name = "FA4" if version == 4 else None
    if torch.compiler.is_compiling() or current_flash_attention_impl() == name:
        return
    if not torch.cuda.is_available():
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
