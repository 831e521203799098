"""Linear attention with the T x T matrix of weights in memory, as before flash attention.

One matrix product computes all weights, those of later tokens are set to zero, and a second product
multiplies the values.

Legend: B batch, T tokens, H heads, K key width, V value width.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 8 and 9.
"""

from torch import Tensor

from lmscaling.kernels import at_least_float32, check
from lmscaling.kernels.feature_maps import find


def attend(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str, normalize: bool
) -> Tensor:
    """Linear attention; the contract is in ``kernels/__init__.py``.

    Raises:
        ValueError: The arguments do not match, or the feature map is unknown.

    Cost:
        ``2 B H T^2 (K + V)`` FLOPs forward, because the masked half is computed, too. The weights
        are ``B H T^2`` float32, written twice and read twice; autograd keeps them.
    """
    check(q_BTHK, k_BTHK, v_BTHV)
    phi = find(feature_map)
    q_BHTK = phi.of(at_least_float32(q_BTHK)).transpose(1, 2)
    k_BHTK = phi.of(at_least_float32(k_BTHK)).transpose(1, 2)
    v_BHTV = at_least_float32(v_BTHV).transpose(1, 2)
    weight_BHTT = (q_BHTK @ k_BHTK.transpose(-1, -2)).tril()
    y_BHTV = weight_BHTT @ v_BHTV
    if normalize:
        y_BHTV = y_BHTV / (weight_BHTT.sum(-1, keepdim=True) + phi.epsilon)
    return y_BHTV.transpose(1, 2).to(v_BTHV.dtype)
