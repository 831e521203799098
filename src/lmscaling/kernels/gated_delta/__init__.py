"""Implementations of the gated delta rule; see ``plain.py`` for their signature."""
