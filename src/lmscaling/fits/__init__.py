"""Fits over many runs; each has a formula and a status, and no numbers where it has no result."""
