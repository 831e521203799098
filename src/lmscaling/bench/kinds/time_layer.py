"""Time one attention alone at every context."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from lmscaling import registry
from lmscaling.config.speed import Heads, Kernel, Planner, Sweep, point, sequences
from lmscaling.config.types import STRICT, Context, Distinct, Name, Positive, Width
from lmscaling.records.timing import UNMASKED, Outcome, Point


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


def _check_names(layers: list[TimeLayer]) -> list[TimeLayer]:
    names = [layer.name for layer in layers]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"time_layer has two presets named {name!r}; rename one")
    return layers


SECTION = Annotated[list[TimeLayer], AfterValidator(_check_names)]


def sweeps(section: list[TimeLayer], planner: Planner) -> Iterator[Sweep]:
    """One sweep for each preset."""
    for layer in section:
        points = [
            point(
                implementation,
                context=context,
                batch=layer.batch or sequences(layer.tokens or 1, context),
                passes=passes,
            )
            for context in sorted(layer.contexts)
            for passes in layer.passes
            for implementation in layer.implementations
        ]
        yield planner.sweep(
            kind="time_layer",
            name=layer.name,
            layer=Heads(n_head=layer.n_head, d_head=layer.d_head),
            points=points,
            repeats=layer.repeats,
            **({"target_seconds": planner.values["timeout_seconds"]} if layer.exactly else {}),
        )


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Passes of one implementation on random numbers."""
    from lmscaling.bench import layer

    return layer.measure(sweep, point)
