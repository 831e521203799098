"""A study and a cell: axes, optimizer, budget and validation, each a frozen checked dataclass.

Numbers enter the program here and nowhere else. ``Study`` is the shape of ``config/study.yaml``
and ``Cell`` the shape of one ``cell.json``; ``grid.py`` makes the second from the first.
"""

import json
from dataclasses import field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from lmscaling.fields import STRICT, Budget, Distinct, Fraction, Name, Positive, digest, dump, less
from lmscaling.rows import Dataset, Size, Tokenizer


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Data:
    """Where a cell's tokens come from."""

    dataset: Name
    """Row under ``datasets:``."""
    source: dict[str, Any]
    """The row's values, less its number of shards."""
    tokenizer: Name
    """Row under ``tokenizers:``."""
    encoding: str
    """The row's encoding."""

    @property
    def folder(self) -> str:
        """Folder of the tokens below ``tokens/``; another text or tokenizer is another folder."""
        return f"{self.dataset}-{self.tokenizer}-{digest(less(dump(self), 'dataset'))}"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Model:
    """The shape of one GPT-2."""

    n_layer: Positive
    n_head: Positive
    d_model: Positive
    vocab_size: Positive
    """Tokens of the tokenizer, before padding."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Optimizer:
    """AdamW at a constant learning rate after a linear warm-up."""

    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay of the first and second moment."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Decoupled decay of matrices; biases and norms are not decayed."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the whole gradient."""
    warmup_updates: Annotated[int, Field(ge=0)] = 700
    """Updates over which the rate rises linearly from 0."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Validation:
    """When and on how much the validation loss is measured."""

    tokens: Positive
    """Length of the fixed validation set in tokens: the first of the validation stream."""
    every_tokens: Positive
    """Training tokens between two validations; a multiple of ``update_tokens``."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Axes:
    """The grid: every combination is one cell."""

    attention: Distinct[Name]
    """File stems in ``src/lmscaling/attention/``."""
    size: Distinct[Name]
    """Row names under ``sizes:``."""
    context: Distinct[Positive]
    """Sequence lengths in tokens."""
    seed: Distinct[Annotated[int, Field(ge=0)]] = field(default_factory=lambda: [0])
    """Seeds of the initial weights; the data order has none."""
    lr_scale: Distinct[Annotated[float, Field(gt=0)]] = field(default_factory=lambda: [1.0])
    """Factors on the learning rate of the size."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Skip:
    """Combinations left out of the grid: those that agree with every axis named here."""

    reason: Annotated[str, Field(min_length=1)]
    """Why, in words; shown in the report."""
    attention: Name | None = None
    size: Name | None = None
    context: Positive | None = None
    seed: int | None = None
    lr_scale: float | None = None

    @property
    def axes(self) -> dict[str, Any]:
        """The axes it names, with their values."""
        return less({k: v for k, v in dump(self).items() if v is not None}, "reason")

    def __post_init__(self) -> None:
        if not self.axes:
            raise ValueError("no axis is named, so every cell would be left out; name one")


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
    update_tokens: Positive
    """Tokens per optimizer update over all devices, the same for every cell."""
    budget: Budget
    """What a cell may spend: ``24 hours`` of productive time, ``200 updates`` or ``1e9 tokens``."""
    gpus: Annotated[int, Field(ge=0)]
    """Devices per cell, on one node; 0 trains on the CPU."""
    optimizer: Optimizer
    validation: Validation
    protocol: dict[str, Positive]
    """Raised by hand when the science of training changes: ``all``, or one attention's name."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Cell:
    """One point of the grid: every number that matters to the result of one run."""

    attention: Name
    """File stem in ``src/lmscaling/attention/``."""
    size: Name
    """Row under ``sizes:``; its numbers are in ``model`` and ``lr``."""
    context: Positive
    """Sequence length in tokens."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the initial weights."""
    lr_scale: Annotated[float, Field(gt=0)] = 1.0
    """Factor on the learning rate of the size; contained in ``lr``."""
    lr: Annotated[float, Field(gt=0)]
    """Learning rate after the warm-up."""
    model: Model
    data: Data
    optimizer: Optimizer
    update_tokens: Positive
    """Tokens per optimizer update over all devices."""
    budget: Budget
    """What the run may spend; see ``Study.budget``."""
    gpus: Annotated[int, Field(ge=0)]
    """Devices, on one node; 0 is the CPU."""
    validation: Validation
    protocol: dict[str, Positive] = field(default_factory=dict)
    """Protocol numbers that concern this cell and are not 1."""

    @property
    def name(self) -> str:
        """For people; code reads the fields and never parses the name."""
        scale = f"-lr{self.lr_scale:g}" if self.lr_scale != 1 else ""
        return f"{self.attention}-{self.size}-ctx{self.context}-s{self.seed}{scale}"

    @property
    def run(self) -> str:
        """Folder of the run: the name and a hash of all values that are not at their default."""
        return f"{self.name}-{digest(dump(self, exclude_defaults=True))}"

    def to_json(self) -> str:
        """One line of JSON with every value, defaults too."""
        return json.dumps(dump(self), ensure_ascii=True)


def schema() -> dict[str, Any]:
    """JSON schema of the study file, for editors; ``config/study.schema.json`` is this."""
    return TypeAdapter(Study).json_schema()
