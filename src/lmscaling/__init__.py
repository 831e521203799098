"""Scaling-law studies of language models as one Snakemake workflow."""

__version__ = "0.1.0"
