"""A cell: one point of the grid with every number that matters to the result of its run.

``Cell`` is the shape of ``cell.json``; ``grid.py`` derives it from a study.
"""

import json
from dataclasses import field, replace
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from lmscaling.config.budget import Budget
from lmscaling.config.schedule import CONSTANT, AnySchedule, WarmUp
from lmscaling.config.types import (
    STRICT,
    Fraction,
    Name,
    Position,
    Positive,
    Share,
    digest,
    dump,
    less,
)


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
    """AdamW, and the linear warm-up of its learning rate."""

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
    """Peak learning rate; see ``schedule``."""
    model: Model
    position: Position = "learned"
    """See ``Study.position``."""
    data: Data
    epochs: Positive = 1
    """Times that the data may be read."""
    optimizer: Optimizer
    schedule: AnySchedule = CONSTANT
    """See ``Study.schedule``."""
    update_tokens: Positive
    """Tokens per optimizer update over all devices."""
    budget: Budget
    """What the run may spend; see ``Study.budget``."""
    gpus: Annotated[int, Field(ge=0)]
    """Devices, on one node; 0 is the CPU."""
    validation: Validation
    protocol: dict[str, Positive] = field(default_factory=dict)
    """Protocol numbers that concern this cell and are not 1."""
    branch: Share | None = None
    """Share of the budget at which this decayed branch ends; none is a trunk."""
    keep: tuple[Share, ...] = ()
    """Shares of the budget for whose branches a trunk keeps a checkpoint. It changes nothing in
    the run, so the run's name does not depend on it."""

    @property
    def name(self) -> str:
        """For people; code reads the fields and never parses the name."""
        scale = f"-lr{self.lr_scale:g}" if self.lr_scale != 1 else ""
        branch = f"-b{self.branch:g}" if self.branch else ""
        return f"{self.attention}-{self.size}-ctx{self.context}-s{self.seed}{scale}{branch}"

    @property
    def run(self) -> str:
        """Folder of the run: the name and a hash of all values that are not at their default."""
        return f"{self.name}-{digest(less(dump(self, exclude_defaults=True), 'keep'))}"

    @property
    def trunk(self) -> str:
        """Run that this one branches off; its own if it is no branch."""
        return replace(self, branch=None).run if self.branch else self.run

    @property
    def rates(self) -> WarmUp:
        """Learning rates of a trunk; those of a branch depend on where its trunk left them."""
        return WarmUp(self.lr, self.optimizer.warmup_updates, self.schedule)

    @property
    def calibration(self) -> str:
        """Name of the calibration: what its speed and memory depend on, and a hash of it."""
        values = {
            key: dump(self)[key]
            for key in ("attention", "model", "position", "context", "update_tokens", "gpus")
        }
        return f"{self.attention}-{self.size}-ctx{self.context}-{digest(values)}"

    def to_json(self) -> str:
        """One line of JSON with every value, defaults too."""
        return json.dumps(dump(self), ensure_ascii=True)
