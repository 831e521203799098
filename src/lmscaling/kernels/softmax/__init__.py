"""Implementations of softmax attention; see ``kernels/__init__.py`` for their signature."""
