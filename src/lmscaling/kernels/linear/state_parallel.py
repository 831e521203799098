"""Linear attention with the states of all tokens in memory: outer products, then a cumulative sum.

The recurrence of ``state.py`` without its loop: all ``phi(k_t) v_t^T`` are written to memory, a
cumulative sum turns them into states, and each query reads its own. Few operations, much memory.

Legend: B batch, T tokens, H heads, K key width, V value width.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 8 to 12.
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
        ``4 B H T K V`` FLOPs forward; ``16 B H T K V`` bytes moved in float32, because products and
        states are each written and read once. Autograd keeps the states.
    """
    check(q_BTHK, k_BTHK, v_BTHV)
    phi = find(feature_map)
    q_BTHK, k_BTHK = phi.of(at_least_float32(q_BTHK)), phi.of(at_least_float32(k_BTHK))
    state_BTHKV = (k_BTHK.unsqueeze(-1) * at_least_float32(v_BTHV).unsqueeze(-2)).cumsum(1)
    y_BTHV = (q_BTHK.unsqueeze(-2) @ state_BTHKV).squeeze(-2)
    if normalize:
        y_BTHV = y_BTHV / ((q_BTHK * k_BTHK.cumsum(1)).sum(-1, keepdim=True) + phi.epsilon)
    return y_BTHV.to(v_BTHV.dtype)
