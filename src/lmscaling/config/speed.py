"""What the speed study measures: the section ``speed:`` of the study file, one class a rule.

An implementation is written ``attention/implementation``, as in ``linear/chunked``: files in
``attention/`` and in ``kernels/<attention>/``. An attention alone stands for what it uses itself.
"""

from dataclasses import field
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from lmscaling import registry
from lmscaling.config.types import STRICT, Distinct, Name, Positive
from lmscaling.errors import choose


def _check_implementation(text: str) -> str:
    attention, slash, implementation = text.partition("/")
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
        raise ValueError(f"{chunk} is no power of two; nearest is {2 ** (chunk.bit_length() - 1)}")
    return chunk


Implementation = Annotated[str, AfterValidator(_check_implementation)]
Kernel = Annotated[Implementation, AfterValidator(_check_kernel)]
Chunk = Annotated[Positive, AfterValidator(_check_power_of_two)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TimeStep:
    """A training step of a whole model: forward, backward, optimizer; one sequence."""

    sizes: Distinct[Name]
    """Rows under ``sizes:``."""
    contexts: Distinct[Positive]
    """Tokens of the sequence."""
    implementations: Distinct[Implementation]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TimeThroughput(TimeStep):
    """A training step of as many sequences as fill a device: what it makes of its peak."""

    tokens: Positive
    """Tokens at once: sequences are as many as fit."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TuneChunk:
    """The same step at every chunk size; ``time_step`` uses the fastest of each context."""

    implementations: Distinct[Implementation]
    """Those that take a chunk size."""
    chunks: Distinct[Chunk]
    """Tokens per chunk."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TimeDecode:
    """Sampling one token behind so many others: a cache of keys and values, or a state."""

    sizes: Distinct[Name]
    """Rows under ``sizes:``."""
    contexts: Distinct[Positive]
    """Tokens before the one that is sampled."""
    attentions: Distinct[Annotated[str, AfterValidator(_check_implementation)]]
    """Files in ``attention/``."""
    batches: Distinct[Positive]
    """Sequences that are sampled at once."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TimeLayer:
    """One attention alone, without its projections."""

    name: Name
    n_head: Positive
    d_head: Positive
    tokens: Positive | None = None
    """Tokens at once: sequences are as many as fit."""
    batch: Positive | None = None
    """Sequences at once; instead of ``tokens``."""
    passes: Distinct[Literal["forward", "forward+backward"]]
    contexts: Distinct[Positive]
    implementations: Distinct[Kernel]
    repeats: Positive
    """Measurements of each point, at most."""

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.batch is None):
            raise ValueError(f"layer {self.name} needs either tokens or batch")
        if self.tokens and self.tokens < max(self.contexts):
            raise ValueError(
                f"layer {self.name} has {self.tokens} tokens, fewer than its longest context "
                f"{max(self.contexts)}"
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CopyTask:
    """Learning to repeat a sequence of random symbols, and the cost of a step while learning.

    Source: Katharopoulos et al. 2020 (arXiv:2006.16236), section 4.1.
    """

    attentions: Distinct[Annotated[str, AfterValidator(_check_implementation)]]
    """Files in ``attention/``."""
    n_layer: Positive
    n_head: Positive
    d_model: Positive
    symbols: Positive
    """Different symbols; one token more separates a sequence from its copy."""
    contexts: Distinct[Positive]
    """Tokens, separator and copy included, at which a step is timed."""
    tokens: Positive
    """Tokens per update; sequences are as many as fit."""
    learned: list[Positive]
    """Contexts at which the task is learned, too."""
    updates: Positive
    """Updates of learning."""
    lr: Annotated[float, Field(gt=0)]
    """Learning rate; a tenth of it behind 3/5 of the updates."""
    seed: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        for context in self.learned:
            if context not in self.contexts:
                raise ValueError(
                    f"learned {context} is no context; {choose(context, self.contexts)}"
                )
        if self.d_model % self.n_head:
            raise ValueError(f"d_model {self.d_model} is not a multiple of n_head {self.n_head}")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Speed:
    """The speed study: what is timed, on one device, with random weights and tokens."""

    limit_seconds: Annotated[float, Field(gt=0)]
    """A point that has not ended by then is recorded as too slow, and ends its series."""
    repeats: Annotated[int, Field(ge=3)]
    """Measurements of each point, at most; at least three."""
    point_seconds: Annotated[float, Field(gt=0)]
    """Measurements of a point go on for about so long."""
    time_step: TimeStep | None = None
    time_throughput: TimeThroughput | None = None
    tune_chunk: TuneChunk | None = None
    """At the sizes and contexts of ``time_step``."""
    time_decode: TimeDecode | None = None
    time_layer: list[TimeLayer] = field(default_factory=list)
    copy_task: CopyTask | None = None

    def __post_init__(self) -> None:
        if self.tune_chunk and not self.time_step:
            raise ValueError("tune_chunk is for the sizes and contexts of time_step; add that")
        names = [layer.name for layer in self.time_layer]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"time_layer has two presets named {name!r}; rename one")
