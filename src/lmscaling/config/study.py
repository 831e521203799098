"""A study: the shape of ``config/study.yaml``, as frozen checked dataclasses.

Numbers enter the program here and nowhere else; ``grid.py`` derives the cells.
"""

from dataclasses import field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from lmscaling.config.axes import Axes, Branches, Evaluate, Exempt, Skip, Where
from lmscaling.config.budget import Budget
from lmscaling.config.cell import Optimizer, Validation
from lmscaling.config.datasets import Dataset, Size, Tokenizer
from lmscaling.config.kinds import SpeedSection
from lmscaling.config.types import STRICT, Name, Position, Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Study:
    """The whole of ``config/study.yaml``."""

    study: Name
    """Name of the study: its results lie in ``results/<study>/``."""
    datasets: dict[Name, Dataset]
    """Rows: where text comes from."""
    tokenizers: dict[Name, Tokenizer]
    """Rows: how text becomes tokens."""
    sizes: dict[Name, Size]
    """Rows: the ladder of models; a row not named in ``axes`` is off."""
    dataset: Name
    """Row that this study trains on."""
    tokenizer: Name
    """Row that this study uses."""
    axes: Axes
    skip: list[Skip]
    """Combinations left out, with the reason."""
    exceptions: list[Exempt] = field(default_factory=list)
    """Cells with other devices, update or epochs than the rest, with the reason."""
    position: Position = "learned"
    """What tells a model where a token stands: a table, rotated queries and keys, or nothing."""
    update_tokens: Positive
    """Tokens per optimizer update over all devices, the same for every cell."""
    budget: Budget
    """What a cell may spend: ``24 hours`` of productive time, ``200 updates`` or ``1e9 tokens``."""
    gpus: Annotated[int, Field(ge=0)]
    """Devices per cell, on one node; 0 trains on the CPU."""
    job_hours: Annotated[float, Field(gt=0)] = 24.0
    """Longest time that the cluster gives a job. A run that takes more stops itself in time and
    goes on in another job; no result depends on it, so it is no part of a cell."""
    epochs: Positive = 1
    """Times that the data may be read before a run ends as ``out_of_tokens``."""
    optimizer: Optimizer
    validation: Validation
    calibrate: Where | None = field(default_factory=Where)
    """Cells whose micro-batch and the like are measured first; the plan's guess for the others."""
    branches: Branches | None = None
    """Decayed branches, or none."""
    evaluate: Evaluate | None = None
    """Evaluations by position, or none."""
    speed: SpeedSection | None = None
    """Times and memory of steps, sampling and single layers, or none."""
    published: bool = False
    """Whether figures show the numbers in ``results/published/`` beside the study's own."""
    protocol: dict[str, Positive]
    """Raised by hand when the science of training changes: ``all``, or one attention's name."""


def schema() -> dict[str, Any]:
    """JSON schema of the study file, for editors; ``config/study.schema.json`` is this."""
    return TypeAdapter(Study).json_schema()
