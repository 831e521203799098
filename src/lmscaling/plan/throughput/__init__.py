"""Seconds of an update, predicted as a sum of counted physical terms times coefficients."""
