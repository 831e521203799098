"""Linear attention of other libraries, if installed, to compare ours with."""

from importlib import import_module
from importlib.util import find_spec

from torch import Tensor

from lmscaling.bench.checks.exactness import Attend
from lmscaling.kernels import feature_maps


def installed() -> dict[str, Attend]:
    """Implementations of other libraries by name; all need a GPU."""
    return {"fla_chunk": fla_chunk} if find_spec("fla") else {}


def fla_chunk(q: Tensor, k: Tensor, v: Tensor, feature_map: str, normalize: bool) -> Tensor:
    """flash-linear-attention's ``chunk_linear_attn``; its layer applies the feature map before it.

    Source: Yang and Zhang 2024, https://github.com/fla-org/flash-linear-attention.
    """
    phi = feature_maps.find(feature_map)
    attend = import_module("fla.ops.linear_attn").chunk_linear_attn
    return attend(phi.of(q), phi.of(k), v, scale=1.0, normalize=normalize)[0]
