"""Implementations of gated linear attention; see ``chunked.py`` for their signature."""
