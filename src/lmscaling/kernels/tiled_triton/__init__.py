"""Causal linear attention as tiles of its T x T weights that never leave the chip, in Triton.

As flash attention goes through the tiles, without the exponential: O(T^2) time, O(T) memory. The
feature map costs more than its share of a tile, so features are made once, in a pass before.

With ``a_ij = phi(q_i) . phi(k_j)``, ``D_i = sum_{j<=i} a_ij + epsilon`` and ``g_i = dy_i / D_i``:

    dphi(q)_i = sum_{j<=i} dA_ij phi(k)_j        dA_ij = g_i . (v_j - y_i)
    dphi(k)_j = sum_{i>=j} dA_ij phi(q)_i        dv_j = sum_{i>=j} a_ij g_i

(not normalised: ``g = dy`` and no ``y_i`` in ``dA``). ``dphi(q)_i`` is a sum of T terms of which
the part that all v share cancels, and only of order sqrt(T) is left. An error of ``y_i`` is common
to all T terms and does not cancel: y in bf16 (2^-9) would be off by sqrt(T) 2^-9 of the mean of v.
So y is kept in float32 beside the result, both sums divide by the sum of the *rounded* weights, and
``g_i . y_i`` takes the same rounded ``g_i`` as the tiles. A tile is rounded after ``y_i`` is taken
off, when it is small. Centring tiles by a prefix mean would serve as well and cost a pass for it.
What is left is the error of a float32 sum of T terms; that of tensor cores is not yet measured.

Legend: i rows (queries), j columns (keys); ``BLOCK_I``, ``BLOCK_J`` of them in a tile; K, V widths,
``BLOCK_K``, ``BLOCK_V`` the powers of two above them, filled up with zeros.

Source: Dao 2023 (arXiv:2307.08691), algorithms 1 and 2, for the order of tiles; Katharopoulos et
al. 2020 (arXiv:2006.16236), eq. 8, for the function.
"""
