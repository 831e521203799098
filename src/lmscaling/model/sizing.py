"""Parameters and FLOPs of the model of a cell, and what a reader should know about it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from lmscaling import attention
from lmscaling.config import grid
from lmscaling.config.budget import parse_budget
from lmscaling.config.cell import Cell
from lmscaling.errors import UserError
from lmscaling.model.gpt import GPT
from lmscaling.plan.footprint import Shape
from lmscaling.plan.throughput.terms import UNKNOWN, kind_of


def _kinds(gpt: GPT) -> dict[str, int]:
    """Layers by the way in which the throughput model takes their attention to be computed. One
    that does not say it has no part that grows with pairs of tokens, if its FLOPs do not."""
    kinds: Counter[str] = Counter()
    ways = {layer.label: kind_of(layer.attention) for layer in gpt.mixers}
    for label, layers in gpt.each_attention().items():
        first, kind = layers[0], ways[label]
        grows = first.flops_per_token(2 * gpt.context) > 1.2 * first.flops_per_token(gpt.context)
        kinds[kind if grows or kind != UNKNOWN else "own_tokens"] += len(layers)
    return dict(kinds)


def shape(cell: Cell, lengths: Mapping[int, float] | None = None) -> Shape:
    """Parameters and FLOPs of a cell's model, without allocating its weights.

    Args:
        cell: The cell.
        lengths: Lengths of its masked documents, once they are known; see ``flops_per_token``.

    Raises:
        UserError: A head of a cell for GPUs is wider than the kernels of its attention, or its
            attention has no CPU kernels and it is for a CPU.
    """
    width = cell.model.d_model // cell.model.n_head
    for name in cell.variants:
        if not cell.gpus and getattr(attention.load(name), "NEEDS_GPU", False):
            raise UserError(f"attention {name} has no CPU kernels; train it with gpus: 1")
        widest = getattr(attention.load(name), "WIDEST_ON_GPU", width)
        if cell.gpus and width > widest:
            raise UserError(
                f"size {cell.size}: a head of {width} is too wide for attention {name} on a GPU; "
                f"allowed: up to {widest}; write n_head: {_heads(cell.model.d_model, widest)}"
            )
    with torch.device("meta"):
        gpt = GPT(cell, counted=True)
    return Shape(
        params=gpt.params,
        params_total=gpt.params_total,
        flops_per_token=gpt.flops_per_token(lengths),
        kinds=_kinds(gpt),
        remarks=(*remarks(cell), *([UPPER_BOUND] if cell.is_masked and not lengths else [])),
    )


UPPER_BOUND = (
    "compute is that of mixed documents, an upper bound, until the training text is tokenized"
)


def remarks(cell: Cell) -> Iterator[str]:
    """What a reader should know about the attentions of a cell."""
    if cell.is_masked:
        yield "attention does not cross documents"
    for name in cell.variants:
        if attention.recomputes(name):
            yield f"{name} has no state, so sampling computes all tokens again for each token"
        if cell.gpus and (reason := getattr(attention.load(name), "ON_GPU", "")):
            yield f"{name} on a GPU: {reason.rstrip('.')}"


def _heads(d_model: int, widest: int) -> int:
    """The fewest heads of an even width, as rotations need, up to ``widest``."""
    fit = (n for n in range(1, d_model) if d_model // n <= widest and not d_model % (2 * n))
    return next(fit, d_model)


def count(values: dict[str, Any]) -> None:
    """Write ``counts`` into a study, by which ``grid.expand`` knows the updates of budgets in FLOPs
    or tokens per parameter.

    Raises:
        UserError: The study is invalid, or the FLOPs of an attention cannot be counted.
    """
    values.pop("counts", None)
    study = grid.expand(values)
    cells = [*study.cells.values(), *study.tasks.values(), *(cell for cell, _ in study.skipped)]
    models = {c.computation: c for c in cells if parse_budget(c.budget).is_of_model}
    values["counts"] = {
        name: {
            "flops_per_token": float(of.flops_per_token),
            "params_total": of.params_total,
            "params": of.params,
        }
        for name, of in ((name, shape(cell)) for name, cell in models.items())
    }
