"""Implementations of linear attention; see ``kernels/__init__.py`` for their signature."""
