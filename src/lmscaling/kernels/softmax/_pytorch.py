"""PyTorch's attention with a chosen back end, for ``flash.py`` and ``cudnn.py``."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lmscaling.kernels import check


def attend_by(backend: SDPBackend, q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    """Causal softmax attention. The back end is forced on a GPU in bfloat16, the only one of our
    dtypes that these back ends support; it also computes the backward pass.

    Raises:
        ValueError: The arguments do not match.
    """
    check(q_BTHK, k_BTHK, v_BTHV)
    q_BHTK, k_BHTK, v_BHTV = (x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV))
    if v_BTHV.is_cuda and v_BTHV.dtype == torch.bfloat16:
        with sdpa_kernel(backend):
            y_BHTV = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTV, is_causal=True)
    else:
        y_BHTV = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTV, is_causal=True)
    return y_BHTV.transpose(1, 2)
