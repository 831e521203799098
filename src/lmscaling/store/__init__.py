"""The store of a study, and the names of what leaves and enters it, which load no database."""

EXPORTS = (
    "cells", "runs", "attempts", "updates", "gradients", "validations", "spikes", "evaluations",
    "measurements", "numerics", "forecasts", "samples",
)  # fmt: skip
"""Tables that are exported as Parquet, which figures read."""

PUBLISHED = ("step_time", "decode_time", "final_loss", "curves", "runs")
"""Files of ``results/published/`` by stem; its README says what they mean."""
