"""Implementations of the gated delta rule; see ``chunked.py`` for their signature."""
