"""Softmax attention with PyTorch's ``scaled_dot_product_attention``, on a GPU by cuDNN.

The same tiling as ``flash.py``, in kernels that NVIDIA generates for each device. Which of the two
is faster depends on the device and the shape, so calibration tries both.

Source: NVIDIA cuDNN, graph API, scaled dot product attention.
"""

from torch import Tensor
from torch.nn.attention import SDPBackend

from lmscaling.kernels.softmax._pytorch import attend_by


def attend(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    """Softmax attention; the contract is in ``kernels/__init__.py``.

    On a GPU in bfloat16 the cuDNN back end is forced: it supports K and V that are multiples of 8
    up to 128, and PyTorch raises RuntimeError for others. In all other cases PyTorch chooses.

    Raises:
        ValueError: The arguments do not match.

    Cost:
        ``B H T^2 (K + V)`` FLOPs forward, only the causal half counted; memory linear in T.
    """
    return attend_by(SDPBackend.CUDNN_ATTENTION, q_BTHK, k_BTHK, v_BTHV)
