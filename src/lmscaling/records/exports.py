"""Names of what leaves the store and of what enters it from elsewhere, for the workflow."""

EXPORTS = (
    "cells", "runs", "attempts", "updates", "gradients", "validations", "spikes", "evaluations",
    "measurements", "numerics", "forecasts", "samples",
)  # fmt: skip
"""Tables of the store that are exported as Parquet, which figures read."""

FITTED = (
    "gaps", "curve_gaps", "multipliers", "multiplier_levels", "loss_crossings", "surfaces",
    "surface_forms", "surface_influence", "surface_conventions", "held_out", "time_laws",
    "best_sizes", "best_contexts", "best_rates",
)  # fmt: skip
"""Tables of numbers that are fitted to the losses; they are exported as CSV, too."""

_RUN = {"params_millions": "BIGINT", "attention": "VARCHAR", "context": "BIGINT"}
_TIME = {"params_millions": "BIGINT", "implementation": "VARCHAR", "context": "BIGINT"}

PUBLISHED = {
    "step_time": {**_TIME, "milliseconds": "DOUBLE"},
    "decode_time": {**_TIME, "milliseconds_per_token": "DOUBLE"},
    "final_loss": {**_RUN, "final_train_loss": "DOUBLE"},
    "curves": {**_RUN, "update": "DOUBLE", "hours": "DOUBLE", "train_loss": "DOUBLE"},
    "runs": {
        **_RUN, "last_update": "DOUBLE", "hours": "DOUBLE", "points": "BIGINT",
        "points_without_loss": "BIGINT", "spikes": "BIGINT", "highest_spike": "DOUBLE",
    },
}  # fmt: skip
"""Files of ``results/published/`` by stem, with their columns; its README says what they mean."""
