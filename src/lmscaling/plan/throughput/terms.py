"""What an update consists of: the terms of its time, and their counts.

The times of all terms are added. Overlap is part of their coefficients: a maximum of launches and
arithmetic, or any norm above 1, predicts published steps worse.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lmscaling import registry
from lmscaling.config.devices import Device
from lmscaling.errors import UserError, choose


@dataclass(frozen=True)
class Term:
    """A term and what is known of its coefficient before any measurement."""

    unit: str
    centre: float
    """The median."""
    sd: float
    """Standard deviation of the logarithm of what is known of the centre."""
    between: float
    """The same between software stacks."""


TERMS: Mapping[str, Term] = {
    "products": Term("over the time at the sustained peak", 1 / 0.85, 0.15, 0.2),
    "elementwise": Term("bytes per token, layer and unit of width", 90, 0.5, 0.5),
    "logits": Term("bytes per token and word of the vocabulary", 24, 0.5, 0.5),
    "optimizer": Term("bytes per parameter", 45, 0.4, 0.4),
    "launches": Term("us per layer and micro-batch", 200, 0.7, 0.9),
    "start": Term("us per micro-batch", 2000, 1.0, 1.0),
    "reduction": Term("share of the all-reduce that nothing hides", 0.3, 0.7, 0.7),
    "flash": Term("over the time at the peak, causal, heads 64 wide", 1 / 0.30, 0.3, 0.35),
    "flash_elementwise": Term("bytes per token, layer and unit of width", 45, 0.7, 0.5),
    "tiled": Term("over the time at the peak, causal, heads 64 wide", 1 / 0.35, 0.5, 0.3),
    "tiled_elementwise": Term("bytes per token, layer and unit of width", 45, 0.7, 0.5),
    "softmax_scores": Term("bytes per score", 44, 0.4, 0.3),
    "linear_scores": Term("bytes per score", 28, 0.4, 0.3),
    "chunks": Term("bytes per token, layer and unit of width", 250, 0.6, 0.5),
    "chunk_launches": Term("us per layer and micro-batch", 60, 0.7, 0.7),
    "states": Term("bytes per token, layer and element of 64 x width", 80, 0.7, 0.4),
    "recurrence": Term("us per token and layer", 60, 0.5, 0.3),
    "loop": Term("us per token and layer", 60, 0.5, 0.3),
    "loop_pairs": Term("bytes per pair of tokens, layer and unit of width", 40, 1.0, 0.4),
    "own_pairs": Term("over the time at the peak, causal, heads 64 wide", 1 / 0.35, 1.0, 0.5),
    "own_tokens": Term("bytes per token, layer and unit of width", 150, 1.0, 0.5),
}
"""``products`` are matrix products outside of attention, ``tiled`` is quadratic linear attention in
one kernel, and ``states`` are those of all tokens at once. ``own_pairs`` and ``own_tokens`` are of
an attention that does not say how it is computed, so little is known of them. Centres were counted
from the operations of a block, or are published numbers of single kernels (FlashAttention reaches
0.2 to 0.4 of an H100's peak); spreads are about the best for published stacks
(``benchmarks/fit_throughput.py``)."""

KINDS = (
    "flash", "tiled", "softmax_scores", "linear_scores", "chunks", "states", "recurrence", "loop",
    "own_pairs", "own_tokens",
)  # fmt: skip
"""Ways to compute attention, by the first of their terms."""
UNKNOWN = "own_pairs"
"""The way of an attention that does not say it: all pairs of tokens, and what each token costs."""


def kind_of(attention: str) -> str:
    """The way in which a variant says that it is computed, or ``UNKNOWN``; its file is only read.

    Raises:
        UserError: It says a way that there is not.
    """
    said = registry.timed_as(attention)
    if said and said not in KINDS:
        raise UserError(f"TIMED_AS of attention {attention} is {said!r}; {choose(said, KINDS)}")
    return said or UNKNOWN


WIDTH = 200.0
"""A product of this width runs at half of the rate of a wide one."""

CACHE_BYTES = 2e8
"""Bytes of the scores of a layer at which half of them leave the cache."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """An update of one device."""

    kinds: Mapping[str, int]
    """Layers by kind of attention, one of ``KINDS``."""
    heads: int
    width: int
    context: int
    """Tokens."""
    tokens: int
    """Tokens of the update."""
    micro_tokens: int
    """Tokens of a micro-batch."""
    vocabulary: int = 50304
    """Rows of the head, with padding."""
    block_params: int = 0
    """Of all blocks; ``12 layers width^2`` by default."""
    params: int = 0
    """Of the model; those of the blocks, the words and the positions by default."""
    gpus: int = 1
    recompute: float = 0.0
    """Share of the blocks whose forward pass is computed twice."""
    attended: float = 0.0
    """Mean length of documents that attention does not cross, tokens; the context by default."""

    @property
    def layers(self) -> int:
        return sum(self.kinds.values())


def counts(work: Work, device: Device) -> dict[str, float]:
    """Seconds of each term of an update at a coefficient of 1; absent terms take no time."""
    layers, width, context, tokens = work.layers, work.width, work.context, work.tokens
    again, steps = 1 + work.recompute / 3, max(1.0, tokens / work.micro_tokens)
    blocks = work.block_params or 12 * layers * width**2
    params = work.params or blocks + (work.vocabulary + context) * width
    of_products = (1 + WIDTH / width) / (device.peak_flops * device.sustained)
    found = {
        "products": (6 * blocks * again + 6 * work.vocabulary * width) * tokens * of_products,
        "elementwise": layers * width * tokens * again / device.bandwidth,
        "logits": tokens * work.vocabulary / device.bandwidth,
        "optimizer": params / device.bandwidth,
        "launches": 1e-6 * layers * steps * again,
        "start": 1e-6 * steps,
        "reduction": 8 * params * (work.gpus - 1) / work.gpus / device.bus,
    }
    for kind, of_kind in work.kinds.items():
        if kind in ("softmax_scores", "linear_scores"):
            found["products"] += 12 * of_kind * again * context * tokens * width * of_products
        found |= _of_attention(kind, of_kind, work, device)
    return found


def _of_attention(kind: str, layers: int, work: Work, device: Device) -> dict[str, float]:
    """The terms of the layers of one kind of attention."""
    width, tokens, context = work.width, work.tokens, work.attended or work.context
    again = 1 + work.recompute / 3
    unit = layers * width * tokens * again / device.bandwidth
    if kind == "own_tokens":
        return {kind: unit}
    if kind in ("flash", "tiled", "own_pairs"):
        # A score takes an exponential, whatever the width of its head.
        narrow = (1 + device.exp_width * work.heads / width) / (1 + device.exp_width / 64)
        flops = 2 * layers * tokens * context * width * (3.5 + work.recompute)
        beside = "own_tokens" if kind == "own_pairs" else f"{kind}_elementwise"
        return {kind: flops / device.peak_flops * narrow, beside: unit}
    if kind in ("softmax_scores", "linear_scores"):
        layer_bytes = 2 * work.heads * context**2
        outside_cache = layer_bytes / (layer_bytes + CACHE_BYTES)
        scores = layers * work.heads * tokens * context * again
        return {kind: scores / device.bandwidth * outside_cache}
    if kind == "chunks":
        steps = max(1.0, tokens / work.micro_tokens)
        return {"chunks": unit, "chunk_launches": 1e-6 * layers * steps * again}
    if kind == "states":
        return {"states": 64 * unit}
    per_token = 1e-6 * layers * tokens
    if kind == "recurrence":
        return {"recurrence": per_token}
    pairs = layers * width * tokens * context / 2
    return {"loop": per_token, "loop_pairs": pairs / device.bandwidth}
