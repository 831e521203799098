"""Seconds of an update, predicted as a sum of counted physical terms.

Each term is a count, in seconds at the peak of the device, times a coefficient with a unit and a
physical range. Coefficients differ between software stacks: the shipped ones are those of a stack
that nobody has measured, with their covariance, and a few measurements make them those of a study.
"""
