"""The store of a study, and the names of what leaves and enters it, which load no database."""

EXPORTS = (
    "cells", "runs", "attempts", "updates", "gradients", "validations", "spikes", "evaluations",
    "measurements", "forecasts", "samples", "floors",
)  # fmt: skip
"""Tables that are exported as Parquet, which figures read."""

PUBLISHED = ("step_time", "decode_time", "final_loss", "curves", "runs")
"""Files of ``results/published/`` by stem; its README says what they mean."""

FITTED = (
    "gaps", "curve_gaps", "multipliers", "multiplier_levels", "loss_crossings", "surfaces",
    "surface_forms", "surface_influence", "surface_conventions", "held_out", "time_laws",
    "best_sizes", "optimal_sizes", "best_contexts", "best_rates",
)  # fmt: skip
"""Tables of numbers that are fitted to the losses; they are exported as CSV, too."""
