"""The check of an attention variant before its first cell trains.

A variant that looks ahead trains to a loss that means nothing, and one that returns another shape
fails hours later. So random numbers are computed on the device of training, with the width, the
positions and the options of the cell, in float32 and as training computes it: a small batch of
short sequences, then one sequence of the cell's context.

Nothing is asked of a variant but that it is a causal map of each sequence, which does the same
twice: windows, gates and maps of any kind pass, with positions and without. Where attention does
not cross documents, those of a row must be computed as each of them alone.

Legend: B sequences, T tokens, D model width.
"""

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from torch import nn

from lmscaling import attention
from lmscaling.bench.checks import properties, record
from lmscaling.config import code
from lmscaling.config.cell import Cell
from lmscaling.errors import UserError
from lmscaling.kernels.rotary import Rotary, unrotated
from lmscaling.runtime import environment, faults

CONTEXT = 2048
"""Context of a check by hand."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An attention as a cell uses it."""

    name: str
    d_model: int = 64
    n_head: int = 4
    rotated: bool = False
    """Whether its positions are rotations."""
    context: int = CONTEXT
    """Context of the model."""
    masked: bool = False
    """Whether attention does not cross documents."""
    options: dict[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        rotate = Rotary(self.d_model // self.n_head) if self.rotated else unrotated
        context = max(self.context, properties.TOKENS[0])  # as long as what is checked
        size = self.d_model, self.n_head, rotate
        return attention.build(self.name, *size, context=context, **self.options)


def of_cell(cell: Cell) -> list[Variant]:
    """The attentions of a cell."""
    layers = {layer.label: layer for layer in cell.mixers}
    at_least = max(cell.context, properties.TOKENS[0])  # one finding for all that are shorter
    return [
        Variant(
            name=layer.attention,
            d_model=cell.model.d_model,
            n_head=cell.model.n_head,
            rotated=cell.position == "rope",
            context=cell.context if attention.takes_context(layer.attention) else at_least,
            options=layer.options,
            masked=cell.is_masked,
        )
        for layer in layers.values()
    ]


def require(cell: Cell, device: torch.device, path: Path) -> None:
    """Check the attentions of a cell, unless they have passed on such a device.

    Args:
        path: ``checks/<name>.json``, which gets what passes.

    Raises:
        UserError: One of them is wrong.
        RuntimeError: And any other error of the machine, or for lack of memory.
    """
    here = {
        "device": environment.device_name(cell.gpus),
        "versions": environment.versions_if_installed(("torch", "triton")),
        "code": code.present(cell),
    }
    for variant in of_cell(cell):
        key = {"part": "variant", **asdict(variant), **here}
        record.settle(path, key, variant.name, partial(check, variant, device))


def check(variant: Variant, device: torch.device) -> None:
    """Check an attention variant on a device.

    Raises:
        UserError: It is wrong; the sentence says what, where and what to do.
        RuntimeError: And any other error of the machine, or for lack of memory.
    """
    file = f"attention/{variant.name}.py"
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            size = variant.d_model, variant.context, variant.masked
            bench = properties.Bench(variant.build().to(device), *size, device)
            wrong = next(filter(None, bench.faults()), None)
    except UserError:
        raise
    except Exception as error:
        if faults.out_of_memory(error) or not faults.is_result(error, device):
            raise
        lines = [f.lineno for f in extract_tb(error.__traceback__) if f.filename.endswith(file)]
        where = f" in line {lines[-1]}" if lines else ""
        wrong = f"raises {type(error).__name__}{where}: {faults.first_line(error)}"
    if wrong:
        raise UserError(
            f"attention {variant.name} {wrong}; correct {file}, then type lmscaling check "
            f"attention {variant.name}"
        )
