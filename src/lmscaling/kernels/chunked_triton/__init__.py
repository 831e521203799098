"""Linear attention as Triton kernels: feature map, both products and the division in one pass.

A program processes one segment of a sequence for one head, chunk by chunk, with the running sum of
``phi(k) v^T`` in registers. It writes only the result and one number per token and head. If heads
times sequences cannot fill a device, sequences are split into several segments; then two kernels
sum over each and one scans the sums (``sums.py``). Gates scale the state from token to token;
without gates none of it is compiled.

The backward pass is one kernel that runs in reverse, with the state of each chunk as the forward
pass kept it (``backward.py``). ``plan.py`` has the launch options and the segments.

Other packages import ``op.py``, which loads Triton only when it runs. Gradients, with ``D_i`` the
sum of weights, ``y_i`` the result, ``S_i, z_i`` the sums of ``phi(k) v^T`` and ``phi(k)`` up to i::

    dD_i      = -dy_i . y_i / D_i
    dphi(q_i) = S_i dy_i / D_i + dD_i z_i
    R_j, r_j  = sum_{i>=j} phi(q_i) dy_i^T / D_i,  sum_{i>=j} phi(q_i) dD_i
    dphi(k_j) = R_j v_j + r_j
    dv_j      = R_j^T phi(k_j)

With gates, ``S_i = exp2(g_i) S_{i-1} + phi(k_i) v_i^T``, and g_t scales what later queries see of
earlier keys. Its gradient is the sum of all that crosses t, taken in the chunk of t and through the
states before and after it. The usual form, a sum of ``q . dq - k . dk`` to the end of the sequence,
is the same in exact arithmetic; its rounding grows with the distance.

In ``dphi(q)`` two sums of order t cancel to order sqrt(t). If they are rounded to bfloat16, their
difference is lost: the relative error grows like ``sqrt(t) mean(v) / sd(v)``. The equation also
holds if a constant is subtracted from all values, so the state is that of ``v - c``, with c a mean
of the values so far. The first chunk has no earlier values, so its rows are centred separately. dD
is computed from the same rounded state: since ``phi(q) . dphi(q) = 0`` it needs no weights. At
4,096 tokens and a mean of three standard deviations, the error of dq is then 0.4 %, the same as
without a mean, instead of 20 %.

Legend: B batch, T tokens, H heads, K key width, V value width, C chunk, P segments, W = H (2 K + V)
the width of a packed row of queries, keys, values.

Source: chunks as in Yang et al. 2024 (arXiv:2312.06635), section 4; the centred state is ours.
"""
