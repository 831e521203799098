"""Linear attention token by token: the definition, written as two loops.

Each token sums the weighted values of all tokens up to itself and divides at the end. This is too
slow for training; all other files compute the same function.

Legend: B batch, T tokens, H heads, K key width, V value width.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 8.
"""

import torch
from torch import Tensor

from lmscaling.kernels import at_least_float32, check
from lmscaling.kernels.feature_maps import find


@torch.compiler.disable(reason="a compiler would unroll the loop over tokens")
def attend(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str, normalize: bool
) -> Tensor:
    """Linear attention; the contract is in ``kernels/__init__.py``.

    Raises:
        ValueError: The arguments do not match, or the feature map is unknown.

    Cost:
        ``B H T^2 (K + V)`` FLOPs forward; each pair of tokens reads one key and one value,
        ``2 B H T^2 (K + V)`` bytes in float32. Autograd keeps the same amount.
    """
    check(q_BTHK, k_BTHK, v_BTHV)
    phi = find(feature_map)
    q_T = phi.of(at_least_float32(q_BTHK)).unbind(1)
    k_T = phi.of(at_least_float32(k_BTHK)).unbind(1)
    v_T = at_least_float32(v_BTHV).unbind(1)
    y_T = []
    for t, q_BHK in enumerate(q_T):
        y_BHV, sum_BH1 = torch.zeros_like(v_T[t]), torch.zeros_like(q_BHK[..., :1])
        for s in range(t + 1):
            weight_BH1 = (q_BHK * k_T[s]).sum(-1, keepdim=True)
            y_BHV = y_BHV + weight_BH1 * v_T[s]
            sum_BH1 = sum_BH1 + weight_BH1
        y_T.append(y_BHV / (sum_BH1 + phi.epsilon) if normalize else y_BHV)
    return torch.stack(y_T, 1).to(v_BTHV.dtype)
