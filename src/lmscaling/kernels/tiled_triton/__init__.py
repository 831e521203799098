"""Causal linear attention over tiles of its T x T weights in on-chip memory, in Triton.

The loops are those of flash attention without the exponential: O(T^2) time, O(T) memory. Computing
features for every tile would cost too much, so an earlier pass computes them once.

With ``a_ij = phi(q_i) . phi(k_j)``, ``D_i = sum_{j<=i} a_ij + epsilon`` and ``g_i = dy_i / D_i``:

    dphi(q)_i = sum_{j<=i} dA_ij phi(k)_j        dA_ij = g_i . (v_j - y_i)
    dphi(k)_j = sum_{i>=j} dA_ij phi(q)_i        dv_j = sum_{i>=j} a_ij g_i

(if not normalized, ``g = dy`` and ``dA`` has no ``y_i``). ``dphi(q)_i`` is a sum of T terms. The
part that all v share cancels, and the rest is of order sqrt(T). An error of ``y_i`` is common to
all T terms and does not cancel: with y in bf16 (2^-9) the error would be sqrt(T) 2^-9 of the mean
of v. Therefore y is also kept in float32, both sums divide by the sum of the *rounded* weights, and
``g_i . y_i`` uses the same rounded ``g_i`` as the tiles. A tile is rounded after ``y_i`` is
subtracted, when it is small. Centring tiles by a prefix mean would work as well but needs another
pass. The remaining error is that of a float32 sum of T terms, not yet measured on tensor cores.

Legend: i rows (queries), j columns (keys); ``BLOCK_I``, ``BLOCK_J`` of them in a tile; K, V widths,
``BLOCK_K``, ``BLOCK_V`` the powers of two above them, padded with zeros; ``heads`` is B H. Kernels
take features q and k ``[B, T, H, K]``, v and g ``[B, T, H, V]``, ``inverse`` 1 / D and ``delta``
g . y in float32 ``[B, H, T]``, and ``y32``, which is y in float32. They write contiguous tensors;
gradients of q and k are those before the feature map.

Source: Dao 2023 (arXiv:2307.08691), algorithms 1 and 2, for the order of tiles; Katharopoulos et
al. 2020 (arXiv:2006.16236), eq. 8, for the function.
"""
