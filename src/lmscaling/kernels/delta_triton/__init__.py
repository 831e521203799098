"""The gated delta rule as Triton kernels, chunk by chunk.

Of one head, with scalars ``a_t = exp(g_t)`` and ``b_t``::

    S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T
    y_t = scale S_t^T q_t

The product of the ``C`` factors ``I - b k k^T`` of a chunk needs no loop over tokens (the WY form).
With G the sum of g from the start of the chunk, ``D_ij = exp(G_i - G_j)``, ``S`` the state before
the chunk, ``R`` the gradient of the state after it, and all sums inside the chunk::

    X = (I + L)^-1                         L_ij = b_i (k_i . k_j) D_ij, j < i
    e_i = b_i (v_i - exp(G_i) S^T k_i)     u = X e
    y_i = scale exp(G_i) S^T q_i + sum_{j<=i} A_ij u_j
                                           A_ij = scale (q_i . k_j) D_ij
    S  <- exp(G_C) S + sum_j exp(G_C - G_j) k_j u_j^T

    du_j = sum_{i>=j} A_ij dy_i + exp(G_C - G_j) R^T k_j
    de   = X^T du                          dL_ij = -de_i . u_j, dA_ij = dy_i . u_j
    R  <- exp(G_C) R + sum_i exp(G_i) (scale q_i dy_i^T - b_i k_i de_i^T)

X depends on neither S nor v. Four kernels: ``prepare`` computes X of all chunks, ``scan`` runs over
the chunks of a segment with S in registers, ``scan_backward`` runs over them in reverse with R, and
``gradients`` computes the gradients of all chunks from the kept S, R, u and de. A segment is a
document or a sequence, and has its own state; see ``kernels/segments.py``.

X is computed in float32, by substitution in blocks of 16 rows, which are joined by products.
Powers of L, which would need products only, grow like ``2^C binomial(C, C / 2)`` for equal keys
although X does not. Exponents are never positive, G starts anew in each chunk, and G, S and R are
float32; an exponent outside the mask is ``-inf`` before ``exp``, since ``inf * 0`` is NaN.

No result of a product is transposed; its factors are swapped instead (flash-linear-attention issue
640: wrong results on Hopper).

Legend: B batch, T tokens, H heads, K key width, V value width, C chunk, N chunks of all sequences,
P segments.

Source: Yang et al. 2024 (arXiv:2406.06484), section 3, for the WY form; Yang et al. 2024
(arXiv:2412.06464), section 3, with decay.
"""
