"""Learning rates by a law over sizes that a study of rates has fitted: ``lr: fitted`` of a size.

The verb ``fit-rates`` writes the law of each attention to ``lr_law.json``, and a study file names
this file as ``lr_law``. Where the study file is read, ``fitted`` becomes a rate for each attention,
so that cells and the record of the study have numbers and another fit changes no run in silence.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from lmscaling.config.places import StudyError
from lmscaling.config.types import STRICT, Name
from lmscaling.config.validation import checked
from lmscaling.files import read_json

FITTED = "fitted"

DIGITS = 3
"""Significant digits of a rate from a law; no optimum is known better."""


def matrices(n_layer: int, d_model: int) -> int:
    """Parameters in the matrices of a GPT-2's blocks, ``12 n_layer d_model^2``: the ``N`` of the
    law, the same for all attentions (Kaplan et al. 2020, arXiv:2001.08361)."""
    return 12 * n_layer * d_model**2


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Law:
    """Best learning rate of one attention over sizes, ``coefficient * N ** -exponent``."""

    coefficient: Annotated[float, Field(gt=0)]
    exponent: float
    low: float | None = None
    """Lower end of the 95 % interval of the exponent; null with two sizes."""
    high: float | None = None
    """Upper end."""
    sizes: dict[Name, float]
    """Best rate of each size that was tuned."""
    smallest: Annotated[int, Field(gt=0)]
    """``N`` of the smallest of them."""
    largest: Annotated[int, Field(gt=0)]
    """``N`` of the largest of them."""

    def rate(self, n: int) -> float:
        """The rate for ``N`` parameters."""
        return float(f"{self.coefficient * n**-self.exponent:.{DIGITS}g}")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Laws:
    """The content of ``lr_law.json``."""

    study: Name
    """Study of rates."""
    laws: dict[Name, Law]
    """By the label of the attention."""


def filled(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a study file with rates by attention in place of ``fitted``.

    Raises:
        UserError: The file that ``lr_law`` names is missing or is no such file.
    """
    sizes, path = values.get("sizes"), values.get("lr_law")
    if not isinstance(sizes, Mapping) or not isinstance(path, str) or not path:
        return values
    fitted = {name: row for name, row in sizes.items() if _is_fitted(row)}
    if not fitted:
        return values
    if not os.path.isfile(path):  # also of a name that no file can have
        raise StudyError(
            f"lr_law {path!r} does not exist; type lmscaling fit-rates with the folder "
            "of a finished study of learning rates to write it",
            "lr_law",
        )
    laws = checked(Laws, read_json(Path(path), "law of learning rates"), path).laws
    rows = {
        name: {
            **row,
            "lr": {
                attention: law.rate(matrices(row["n_layer"], row["d_model"]))
                for attention, law in laws.items()
            },
        }
        for name, row in fitted.items()
    }
    return {**values, "sizes": {**sizes, **rows}}


def _is_fitted(row: Any) -> bool:
    """Whether a row of ``sizes`` has a shape and takes its rate from the law."""
    return (
        isinstance(row, Mapping)
        and row.get("lr") == FITTED
        and all(isinstance(row.get(key), int) for key in ("n_layer", "d_model"))
    )
