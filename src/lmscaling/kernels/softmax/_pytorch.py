"""What ``flash.py`` and ``cudnn.py`` share: PyTorch's attention by one of its back ends."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lmscaling.kernels import check


def attend_by(backend: SDPBackend, q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    """Causal softmax attention; the back end is forced on a GPU in bfloat16, the only dtype of
    ours that the back ends there take. The back end of the forward pass has its own backward.

    Raises:
        ValueError: The arguments do not fit.
    """
    check(q_BTHK, k_BTHK, v_BTHV)
    q_BHTK, k_BHTK, v_BHTV = (x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV))
    if v_BTHV.is_cuda and v_BTHV.dtype == torch.bfloat16:
        with sdpa_kernel(backend):
            y_BHTV = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTV, is_causal=True)
    else:
        y_BHTV = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTV, is_causal=True)
    return y_BHTV.transpose(1, 2)
