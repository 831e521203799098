"""Blocks of attention and an MLP, whose width may match the parameters of a baseline.

Legend: B batch, T tokens, D model width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling import attention
from lmscaling.config.attention_row import Layer
from lmscaling.config.cell import Cell, Parts
from lmscaling.errors import UserError
from lmscaling.kernels.rotary import Rotate

MLP = {"gelu": Fraction(4), "swiglu": Fraction(8, 3)}
"""Width of the hidden layer of an MLP in widths of the model."""
GPT2 = Parts()
STEP = 8
"""Widths of MLPs that are not four times the model's are multiples of it, as tensor cores need."""
EPSILON = 1e-5
"""Added to the variance or the mean square of a norm."""
PROMPT_AT_ONCE = 2**16
"""Most tokens of a prompt that go through an MLP, which is four times as wide, at one time."""


def norm(d_model: int, parts: Parts) -> nn.LayerNorm | nn.RMSNorm:
    """The norm of a block, or that before the head."""
    if parts.norm == "rms":
        return nn.RMSNorm(d_model, EPSILON)
    return nn.LayerNorm(d_model, EPSILON, bias=parts.bias)


class Block(nn.Module):
    """Attention and an MLP, each added to the residual stream."""

    def __init__(self, d_model: int, attend: Any, width: int, parts: Parts = GPT2) -> None:
        super().__init__()
        self.norm_1 = norm(d_model, parts)
        self.attention = attend
        self.norm_2 = norm(d_model, parts)
        is_gated = parts.mlp == "swiglu"
        self.gate = nn.Linear(d_model, width, bias=parts.bias) if is_gated else None
        self.up = nn.Linear(d_model, width, bias=parts.bias)
        self.down = nn.Linear(width, d_model, bias=parts.bias)

    def forward(self, x_BTD: Tensor, documents: attention.Documents | None = None) -> Tensor:
        """With ``documents``, attention does not cross them."""
        z_BTD = self.norm_1(x_BTD)
        if documents is None:
            return self._mlp(x_BTD + self.attention(z_BTD))
        return self._mlp(x_BTD + self.attention.forward_documents(z_BTD, documents))

    def compile_mlp(self) -> None:
        """Compile what follows the attention, in place."""
        self._mlp = torch.compile(self._mlp, dynamic=False)

    def prefill(self, x_BTD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """See ``Attention.prefill``; the MLP of a long prompt is computed in parts."""
        y_BTD, state = self.attention.prefill(self.norm_1(x_BTD), state)
        h_BTD = x_BTD + y_BTD
        for part in h_BTD.split(max(1, PROMPT_AT_ONCE // len(h_BTD)), 1):
            part.copy_(self._mlp(part))
        return h_BTD, state

    def decode_step(self, x_BD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """See ``Attention.decode_step``."""
        y_BD, state = self.attention.decode_step(self.norm_1(x_BD), state)
        return self._mlp(x_BD + y_BD), state

    def _mlp(self, x: Tensor) -> Tensor:
        z = self.norm_2(x)
        if self.gate is None:
            return x + self.down(F.gelu(self.up(z), approximate="tanh"))
        return x + self.down(F.silu(self.gate(z)) * self.up(z))

    @property
    def flops_of_mlp(self) -> int:
        """Forward FLOPs per token of its matrices."""
        matrices = [m for m in (self.gate, self.up, self.down) if m is not None]
        return sum(2 * matrix.weight.numel() for matrix in matrices)


def attentions(
    cell: Cell, mixers: Sequence[Layer], rotate: Rotate, counted: bool = False
) -> Iterator[Any]:
    """The attention of each layer of a cell's model, if its layers repeat ``mixers``. Of a model
    that is only ``counted``, one module stands for all layers alike."""
    shape, block = cell.model, cell.block
    heads = {"n_kv_head": block.n_kv_head, "qk_norm": block.qk_norm}
    size, made = (shape.d_model, shape.n_head, rotate), {}
    for i in range(shape.n_layer):
        first = i % len(mixers) if counted else i
        if first not in made:
            layer = mixers[i % len(mixers)]
            own = {"context": cell.context, **heads, **layer.options}
            made[first] = attention.build(layer.attention, *size, **own)
            for linear in () if block.bias else made[first].modules():
                if isinstance(linear, nn.Linear):
                    linear.register_parameter("bias", None)
        yield made[first]


def blocks(cell: Cell, rotate: Rotate, counted: bool = False) -> nn.ModuleList:
    """The blocks of a cell's model; those of one attention are one block.

    Raises:
        UserError: As of ``mlp_width``.
    """
    D, width = cell.model.d_model, mlp_width(cell, rotate)
    layers = list(attentions(cell, cell.mixers, rotate, counted))
    made = {attend: Block(D, attend, width, cell.block) for attend in dict.fromkeys(layers)}
    return nn.ModuleList(made[attend] for attend in layers)


def widened(own: nn.ModuleList, cell: Cell, rotate: Rotate) -> dict[str, bool]:
    """Names of the linear layers in a model's ``blocks`` that have more inputs if the model has
    twice as many heads of the same width, and whether they have more outputs, too."""
    n_head, d_model = 2 * cell.model.n_head, 2 * cell.model.d_model
    twice = replace(cell, model=replace(cell.model, n_head=n_head, d_model=d_model))
    with torch.device("meta"):
        sizes, wider = (
            {
                name: part.weight.shape
                for name, part in some.named_modules(prefix="blocks", remove_duplicate=False)
                if isinstance(part, nn.Linear)
            }
            for some in (own, blocks(twice, rotate))
        )
    return {
        name: wider[name][0] > n_out
        for name, (n_out, n_in) in sizes.items()
        if wider[name][1] > n_in
    }


def mlp_width(cell: Cell, rotate: Rotate) -> int:
    """Width of the MLPs; with ``match``, the model has as many parameters as that of the baseline.

    Raises:
        UserError: The attention alone has more parameters than the model of the baseline.
    """
    D, L = cell.model.d_model, cell.model.n_layer
    usual = MLP[cell.block.mlp] * D
    if not cell.match:
        return int(usual) if usual.denominator == 1 else STEP * max(1, round(usual / STEP))
    with torch.device("meta"):
        own, baseline = (
            sum(p.numel() for attend in attentions(cell, mixers, rotate, True)
                for p in attend.parameters())
            for mixers in (cell.mixers, cell.match)
        )  # fmt: skip
    # A unit of width has a row or column of each matrix and, but for the last one, a bias.
    n = 3 if cell.block.mlp == "swiglu" else 2
    unit = n * D + (n - 1) * cell.block.bias
    width = STEP * round((usual + (baseline - own) / L / unit) / STEP)
    if width < STEP:
        raise UserError(
            f"match: params: attention {cell.attention} has {own:,} parameters, more than the "
            f"attention and the MLPs of the baseline at size {cell.size}; write match: null"
        )
    return width
