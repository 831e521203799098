"""Linear attention as a recurrence: a loop over tokens with a K x V state.

``S_t = S_{t-1} + phi(k_t) v_t^T`` and ``z_t = z_{t-1} + phi(k_t)``; a token's output is
``phi(q_t) S_t``, divided by ``phi(q_t) . z_t``. The cost is linear in T, but tokens are computed
one after another.

Legend: B batch, T tokens, H heads, K key width, V value width.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 16 to 20.
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
        ``4 B H T K V`` FLOPs forward. Each token reads and writes the state, ``8 B H T K V`` bytes
        in float32; autograd keeps the state of every token.
    """
    check(q_BTHK, k_BTHK, v_BTHV)
    phi = find(feature_map)
    q_T = phi.of(at_least_float32(q_BTHK)).unbind(1)
    k_T = phi.of(at_least_float32(k_BTHK)).unbind(1)
    v_T = at_least_float32(v_BTHV).unbind(1)
    state_BHKV = k_T[0].unsqueeze(-1) * torch.zeros_like(v_T[0]).unsqueeze(-2)
    sum_BHK = torch.zeros_like(k_T[0])
    y_T = []
    for q_BHK, k_BHK, v_BHV in zip(q_T, k_T, v_T, strict=True):
        state_BHKV = state_BHKV + k_BHK.unsqueeze(-1) * v_BHV.unsqueeze(-2)
        sum_BHK = sum_BHK + k_BHK
        y_BHV = (q_BHK.unsqueeze(-2) @ state_BHKV).squeeze(-2)
        if normalize:
            y_BHV = y_BHV / ((q_BHK * sum_BHK).sum(-1, keepdim=True) + phi.epsilon)
        y_T.append(y_BHV)
    return torch.stack(y_T, 1).to(v_BTHV.dtype)
