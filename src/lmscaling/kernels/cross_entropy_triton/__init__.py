"""Cross-entropy of rows of logits as a Triton kernel: losses, and the gradient in their place.

Legend: N tokens, V vocabulary.
"""
