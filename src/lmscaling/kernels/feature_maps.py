"""Feature maps of linear attention, which are applied to queries and keys before their product.

Source: softplus as in Buckman and Gelada 2024; elu + 1 Katharopoulos et al. 2020
(arXiv:2006.16236), eq. 7.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling.errors import choose


class FeatureMap(NamedTuple):
    """One feature map, elementwise."""

    of: Callable[[Tensor], Tensor]
    """The feature of an argument."""
    epsilon: float = 0.0
    """Added to the sum of weights before the division, because it can be zero with some maps."""


def _elu_plus_1(x: Tensor) -> Tensor:
    """Not ``F.elu(x) + 1``, which is zero below -17 in float32, so that a sum of weights can be."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


FEATURE_MAPS = {
    "softplus": FeatureMap(F.softplus),
    "elu+1": FeatureMap(_elu_plus_1),
    "relu": FeatureMap(F.relu, epsilon=1e-6),
    "identity": FeatureMap(lambda x: x),
}


def find(name: str) -> FeatureMap:
    """A feature map by name.

    Raises:
        ValueError: There is none of this name.
    """
    if name not in FEATURE_MAPS:
        raise ValueError(f"feature map {name!r} is not known; {choose(name, FEATURE_MAPS)}")
    return FEATURE_MAPS[name]
