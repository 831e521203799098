"""Linear attention as Triton kernels: feature map, both products and the division in one pass.

A program walks one head of one sequence, or one segment of it, chunk by chunk, with the running sum
of ``phi(k) v^T`` in registers; nothing but the result and one number per token and head is written.
The backward pass has two roles: one walks forwards and writes dq, one walks in reverse and writes
dk and dv. Where heads times sequences cannot fill a device, a sequence is cut into segments.

``op.py`` is what others import; it needs Triton only when it runs. Gradients, with ``D_i`` the sum
of weights, ``y_i`` the result, ``S_i, z_i`` the sums of ``phi(k) v^T`` and ``phi(k)`` up to i::

    dD_i      = -dy_i . y_i / D_i
    dphi(q_i) = S_i dy_i / D_i + dD_i z_i
    R_j, r_j  = sum_{i>=j} phi(q_i) dy_i^T / D_i,  sum_{i>=j} phi(q_i) dD_i
    dphi(k_j) = R_j v_j + r_j
    dv_j      = R_j^T phi(k_j)

In ``dphi(q)`` two sums of order t cancel to order sqrt(t). Rounded to bfloat16 their difference is
lost: the relative error grows like ``sqrt(t) mean(v) / sd(v)``. The equation holds as well for
values less any constant, so the state is taken of ``v - c`` with c a mean of the values so far; the
tokens of the first chunk, which have none, are centred row by row. dD is computed from that same
rounded state: since ``phi(q) . dphi(q) = 0`` it needs no weights. At 4,096 tokens and a mean of
three standard deviations dq is then off by 0.4 %, as without a mean, instead of 20 %.

Legend: B batch, T tokens, H heads, K key width, V value width, C chunk, P segments, W = H (2 K + V)
the width of a packed row of queries, keys, values.

Source: chunks as in Yang et al. 2024 (arXiv:2312.06635), section 4; the centred state is ours.
"""
