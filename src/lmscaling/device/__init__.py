"""Measure one device in several calls, on a machine without Snakemake and without a network.

``plan`` lists the steps; ``session`` runs as many as one call has time for, and skips those whose
result exists; ``measure`` prepares the folder of a device. ``targets`` judges the measurements.
"""
