"""The section ``speed:`` of a study file, and a sweep: one job of the speed study.

A sweep holds all implementations and contexts of one size or preset, so that one job on one device
measures everything that is compared. An implementation is written ``attention/implementation``, as
in ``linear/chunked``: a file in ``attention/``, and in ``kernels/<attention>/`` a file or a
function of ``forms.py``. An attention alone uses the implementation of its own choice.
"""

from dataclasses import field, replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from lmscaling import registry
from lmscaling.config.attention_row import Layer
from lmscaling.config.cell import Cell, Parts
from lmscaling.errors import choose
from lmscaling.records.timing import UNMASKED, Point
from lmscaling.types import (
    STRICT,
    Context,
    Distinct,
    Name,
    Number,
    Positive,
    Seconds,
    Tokens,
    Vocabulary,
    Width,
    digest,
    dump,
)

PEERS = {"fla_chunk": "flash-linear-attention"}
"""Linear attention of other libraries by name, as ``peer/<name>``, and their packages."""


def _check_implementation(text: str) -> str:
    attention, slash, implementation = text.partition("/")
    if attention == "peer" and implementation in PEERS:
        return text
    if "." in attention and not slash:
        return text  # the label of a row of axes.attention, which ``sweeps.py`` looks up
    if attention not in registry.attentions():
        raise ValueError(
            f"{text!r} has no file in attention/; {choose(attention, registry.attentions())}"
        )
    known = registry.implementations(attention)
    if slash and implementation not in known:
        raise ValueError(
            f"{text!r} has no file in kernels/{attention}/; {choose(implementation, known)}"
        )
    return text


def _check_kernel(text: str) -> str:
    if "/" not in text:
        raise ValueError(
            f"{text!r} names no implementation; "
            f"{choose(text, [f'{text}/{i}' for i in registry.implementations(text)])}"
        )
    return text


def _check_power_of_two(chunk: int) -> int:
    if chunk & (chunk - 1):
        raise ValueError(
            f"{chunk} is not a power of two; nearest is {2 ** (chunk.bit_length() - 1)}"
        )
    return chunk


Implementation = Annotated[str, AfterValidator(_check_implementation)]
Kernel = Annotated[Implementation, AfterValidator(_check_kernel)]
Chunk = Annotated[Positive, AfterValidator(_check_power_of_two)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Heads:
    """The shape of one attention alone."""

    n_head: Positive
    d_head: Width


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sweep:
    """``sweep.json``: one job of the speed study, with all its points."""

    kind: Name
    """Section of ``speed:``."""
    name: Name
    """Size, or preset."""
    gpus: Literal[0, 1]
    """0 measures the CPU."""
    timeout_seconds: float
    """See ``Speed``; here and below."""
    repeats: int
    target_seconds: float
    cell: Cell | None = None
    """The model that is measured; attention and context are those of the point."""
    layer: Heads | None = None
    """The layer that is measured if there is no model."""
    tokens: int | None = None
    """Tokens of a training step, where there is not one sequence: each context has one batch."""
    points: list[Point] = field(default_factory=list)
    """The points of each series in growing order of context."""
    layers: dict[Name, tuple[Layer, ...]] = field(default_factory=dict)
    """Layers of the points whose attention is no file but the label of a row of
    ``axes.attention``."""

    @property
    def folder(self) -> str:
        """Folder of its records below ``speed/``, by the model and the tokens, not the points."""
        cell = self.cell
        model = cell and dump(cell.model, exclude_defaults=True) | {"position": cell.position}
        layer = self.layer and dump(self.layer)
        values = {"model": model, "layer": layer, "gpus": self.gpus}
        if self.tokens:
            values["tokens"] = self.tokens
        if cell and cell.block != Parts():
            values["block"] = dump(cell.block)
        if cell and cell.optimizer.kind != "adamw":
            values["optimizer"] = cell.optimizer.kind
        return f"{self.kind}/{self.name}-{digest(values)}"

    @property
    def heads(self) -> Heads | None:
        """Those of the model or the layer; none of a device."""
        model = self.cell and self.cell.model
        return self.layer or (
            model and Heads(n_head=model.n_head, d_head=model.d_model // model.n_head)
        )

    def cell_of(self, point: Point) -> Cell:
        """The cell of a point: its attention and its context."""
        assert self.cell
        return replace(
            self.cell,
            attention=point.attention,
            layers=self.layers.get(point.attention, ()),
            context=point.context,
        )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TimeCeiling:
    """What a device can do at best; views compare the times of layers with it."""

    copy_bytes: Tokens
    """Bytes that are copied: as many are read as are written."""
    matmul_width: Width
    """Rows and columns of both factors of a product."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TimeDecode:
    """Sampling one token after so many others: a cache of keys and values, or a state."""

    sizes: Distinct[Name]
    """Rows under ``sizes:``."""
    contexts: Distinct[Context]
    """Tokens before the one that is sampled."""
    attentions: Distinct[Implementation]
    """Files in ``attention/``."""
    batches: Distinct[Positive]
    """Sequences that are sampled at once."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TimeLayer:
    """One attention alone, without its projections."""

    name: Name
    n_head: Positive
    d_head: Width
    tokens: Context | None = None
    """Tokens at once: sequences are as many as fit."""
    batch: Positive | None = None
    """Sequences at once; instead of ``tokens``."""
    passes: Distinct[Literal["forward", "forward+backward", "unmasked forward"]]
    """``unmasked forward`` is without the causal mask, of softmax and linear attention."""
    contexts: Distinct[Context]
    implementations: Distinct[Kernel]
    """``peer/fla_chunk`` is the linear attention of flash-linear-attention, if installed."""
    repeats: Positive
    """Measurements of each point, at most."""
    exactly: bool = False
    """Whether each point is measured so often, even if that takes longer than
    ``target_seconds``."""

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.batch is None):
            raise ValueError(f"layer {self.name} needs either tokens or batch")
        if self.tokens and self.tokens < max(self.contexts):
            raise ValueError(
                f"layer {self.name} has {self.tokens} tokens, fewer than its longest context "
                f"{max(self.contexts)}"
            )
        families = {n: registry.family(n.partition("/")[0]) for n in self.implementations}
        others = [n for n, family in families.items() if family not in ("linear", "softmax")]
        if UNMASKED in self.passes and others:
            raise ValueError(f"layer {self.name} has no {UNMASKED} of {others[0]}; leave it out")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TimeStep:
    """A training step of a complete model: forward, backward, optimizer."""

    sizes: Distinct[Name]
    """Rows under ``sizes:``."""
    contexts: Distinct[Context]
    """Tokens of a sequence."""
    tokens: Context | None = None
    """Tokens of a step: sequences are as many as fit. One sequence if not given."""
    implementations: Distinct[Implementation]
    chunks: Distinct[Chunk] | None = None
    """Tokens per chunk: implementations that take one are timed at each, and the fastest of each
    context counts. On a GPU the fused kernels, ``chunked``, have chunks of their own."""
    vocab_size: Vocabulary | None = None
    """Tokens of the vocabulary; those of the study's tokenizer if not given."""

    def __post_init__(self) -> None:
        if self.chunks and not any(map(registry.takes_chunk, self.implementations)):
            raise ValueError("no implementation here takes chunks; leave chunks out")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Speed:
    """The speed study: what is timed, on one device, with random weights and tokens."""

    timeout_seconds: Seconds
    """A point that does not end by then is recorded as too slow, and ends its series."""
    repeats: Annotated[int, Field(ge=3, le=10**6), Number]
    """Measurements of each point, at most; at least three."""
    target_seconds: Seconds
    """Measurements of a point go on for about so long."""
    time_ceiling: TimeCeiling | None = None
    """Time a large copy and a large product: the bandwidth and the FLOP/s that a device reaches."""
    time_decode: TimeDecode | None = None
    """Time the sampling of one token after every context."""
    time_layer: list[TimeLayer] | None = None
    """Time one attention alone at every context."""
    time_step: list[TimeStep] | None = None
    """Time a training step of one size at every context: forward, backward, optimizer."""

    def __post_init__(self) -> None:
        layers = [layer.name for layer in self.time_layer or ()]
        steps = [size for step in self.time_step or () for size in step.sizes]
        for section, names in (("time_layer", layers), ("time_step", steps)):
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"{section}: {twice[0]!r} is named twice; rename or join the two")
