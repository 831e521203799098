"""Feature maps of linear attention, which are applied to queries and keys before their product.

The slope is a function of the feature, not of its argument, so that a backward pass has to keep
only one of the two.

Source: softplus as in Buckman and Gelada 2024; elu + 1 Katharopoulos et al. 2020
(arXiv:2006.16236), eq. 7.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling.errors import choose


@dataclass(frozen=True)
class FeatureMap:
    """One feature map, elementwise."""

    of: Callable[[Tensor], Tensor]
    """The feature of an argument."""
    slope: Callable[[Tensor], Tensor]
    """The derivative with respect to the argument, from the feature."""
    epsilon: float = 0.0
    """Added to the sum of weights before the division, because it can be zero with some maps."""


FEATURE_MAPS = {
    "softplus": FeatureMap(F.softplus, lambda f: -torch.expm1(-f)),
    "elu+1": FeatureMap(lambda x: F.elu(x) + 1, lambda f: f.clamp(max=1.0)),
    "relu": FeatureMap(F.relu, lambda f: (f > 0).to(f.dtype), epsilon=1e-6),
    "identity": FeatureMap(lambda x: x, torch.ones_like),
}


def find(name: str) -> FeatureMap:
    """A feature map by name.

    Raises:
        ValueError: There is none of this name.
    """
    if name not in FEATURE_MAPS:
        raise ValueError(f"feature map {name!r} is not known; {choose(name, FEATURE_MAPS)}")
    return FEATURE_MAPS[name]
