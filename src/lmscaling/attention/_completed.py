"""What a variant that offers only ``forward`` gets: sampling by recomputation, documents in rows of
their own, and counted FLOPs.

Legend: B batch, T tokens, D model width.
"""

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from lmscaling.attention._documents import Documents
from lmscaling.errors import UserError

COUNTED = (1024, 2048)
"""Tokens of which FLOPs are counted for longer ones, with which they grow linearly per token."""


@dataclass
class Inputs:
    """The inputs of the tokens so far; the first ``length`` positions are filled."""

    x_BTD: Tensor
    length: int


class Recomputed(nn.Module):
    """``init_state``, ``prefill`` and ``decode_step`` that call ``forward`` of all tokens."""

    d_model: int

    def init_state(self, batch: int, context: int) -> Inputs:
        weight = next(self.parameters())
        return Inputs(weight.new_zeros((batch, context, self.d_model)), 0)

    @torch.no_grad()
    def prefill(self, x_BTD: Tensor, state: Inputs) -> tuple[Tensor, Inputs]:
        """Without a gradient; updates the tensor of ``state``, which must not be used again."""
        length = state.length + x_BTD.shape[1]
        if length > (room := state.x_BTD.shape[1]):
            raise ValueError(f"{length} tokens do not fit into a state for {room}; allowed: {room}")
        state.x_BTD[:, state.length : length] = x_BTD
        y_BTD = self(state.x_BTD[:, :length].to(x_BTD.dtype))
        return y_BTD[:, state.length :], Inputs(state.x_BTD, length)

    @torch.no_grad()
    def decode_step(self, x_BD: Tensor, state: Inputs) -> tuple[Tensor, Inputs]:
        """Without a gradient; updates the tensor of ``state``, which must not be used again."""
        y_BTD, state = Recomputed.prefill(self, x_BD.unsqueeze(1), state)
        return y_BTD[:, -1], state


class Separated(nn.Module):
    """``forward_documents`` that calls ``forward`` with documents as rows of padded batches."""

    def forward_documents(self, x_BTD: Tensor, documents: Documents) -> Tensor:
        return documents.each(self, x_BTD)


class Untuned(nn.Module):
    """``tunable`` of a variant without options."""

    def tunable(self, device_type: str) -> dict[str, tuple[int | str, ...]]:
        return {}


class Counted(nn.Module):
    """``flops_per_token`` by PyTorch's count of the products in ``forward``.

    PyTorch counts masked pairs of tokens, too. A token sees half of the context on average, so what
    it costs is counted at half of it; what does not depend on the context is the same there.
    """

    def flops_per_token(self, context: int) -> float:
        tokens = (context + 1) // 2
        if tokens <= COUNTED[1]:
            return _flops(self, tokens) / tokens
        low, high = (_flops(self, each) / each for each in COUNTED)
        return low + (high - low) * (tokens - COUNTED[0]) / (COUNTED[1] - COUNTED[0])


def _flops(module: Any, tokens: int) -> float:
    from torch.utils.flop_counter import FlopCounterMode  # loads much that training does not need

    on_meta = copy.deepcopy(module).to("meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        try:
            on_meta(torch.empty(1, tokens, module.d_model, device="meta"))
        except UserError:
            raise
        except Exception as error:
            name = type(module).__module__.rpartition(".")[2]
            told = " ".join([f"{type(error).__name__}:", *str(error).splitlines()[:1]]).rstrip(":")
            raise UserError(
                f"attention {name} does not run for {tokens} tokens on PyTorch's device meta, "
                f"where its FLOPs are counted: {told}; make its tensors with device=x.device, "
                "compute any number of tokens, or define flops_per_token"
            ) from error
    return float(counter.get_total_flops())


PARTS = {
    ("init_state", "prefill", "decode_step"): Recomputed,
    ("forward_documents",): Separated,
    ("tunable",): Untuned,
    ("flops_per_token",): Counted,
}


@cache
def complete(variant: type) -> type:
    """The class with the methods of the protocol that it lacks; itself if it lacks none."""
    missing = [part for names, part in PARTS.items() if not all(hasattr(variant, n) for n in names)]
    if not missing:
        return variant
    return type(variant.__name__, (*missing, variant), {"__module__": variant.__module__})
