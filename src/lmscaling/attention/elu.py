"""Linear attention with the feature map ``elu(x) + 1``, divided by its running sum.

The first linear attention: the map is ``exp(x)`` below 0 and ``x + 1`` above, so the sum of weights
is positive and needs nothing added. Queries and keys have no scale. All else, rotated positions
too, is that of ``linear``.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 7 to 12 and 16 to 20.
"""

from lmscaling.attention import linear


class Attention(linear.Attention):
    """Averages values with weights ``phi(q) . phi(k)``, ``phi = elu + 1``."""

    FEATURE_MAP = "elu+1"
