"""Predictions of the throughput model for rows of the speed study."""

from collections.abc import Iterator
from typing import Any

from pandas import DataFrame

from lmscaling.plan.throughput import coefficients, timed_steps
from lmscaling.plan.throughput.model import Coefficients, Prediction

QUERY = """
    SELECT source, setup, sweep, size, params, method, context, batch, repeats, status, device,
        n_layer, n_head, n_head * d_head AS d_model, seconds
    FROM speeds
    WHERE kind = 'time_step' AND status = 'done'
    ORDER BY ALL
"""
"""Measured steps. A method whose kind is not known, and a device that is not listed, have no
prediction."""


def predicted(rows: DataFrame) -> Iterator[tuple[Any, Prediction]]:
    """Index and prediction of each row that has one.

    A published step is predicted from those of other sizes, so that no number predicts itself;
    others from the coefficients that come with the package.
    """
    known: dict[tuple[Any, ...], Coefficients] = {}
    steps = ((i, timed_steps.measured_step(row.to_dict())) for i, row in rows.iterrows())
    found = {index: step for index, step in steps if step}
    timings = {index: timing for index, (_, timing) in found.items()}
    for index, (kind, timing) in found.items():
        source, size = rows.at[index, "source"], rows.at[index, "size"]
        if (source, size, kind) not in known:
            others = [
                timings[i]
                for i in timings
                if rows.at[i, "source"] == source and rows.at[i, "size"] != size
            ]
            known[source, size, kind] = (
                Coefficients.counted().measured(others)
                if source == "published"
                else coefficients.known_of(kind)
            )
        yield index, known[source, size, kind].predict(timing.x_K)
