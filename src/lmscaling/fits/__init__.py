"""Fits: numbers drawn from many runs at once, each with its formula and an honest status."""
