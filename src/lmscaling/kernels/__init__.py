"""Ways to compute causal attention; this package knows nothing of configurations.

Legend: B batch, H heads, T tokens, K key width, V value width, C chunk, N chunks.
"""
