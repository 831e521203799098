"""The documents in the rows of a batch, each of which attention reads by itself.

Legend: B rows of the batch, T tokens of a row, N = B T, P documents, M places in padded batches.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Documents:
    """Where documents begin. Each row begins one, if only its last part.

    The tables are made on the CPU, which waits once for the device.

    Args:
        starts_BT: Whether a token begins a document.
    """

    def __init__(self, starts_BT: Tensor) -> None:
        self.device, self.shape = starts_BT.device, starts_BT.shape
        here_BT = starts_BT.to("cpu", copy=True)
        here_BT[:, 0] = True
        self._starts_P = here_BT.flatten().nonzero().squeeze(1)
        self._lengths_P = self._starts_P.diff(append=torch.tensor([here_BT.numel()]))
        self.lengths: list[int] = self._lengths_P.tolist()
        """Tokens of each document, row by row; none crosses the end of its row."""

    @cached_property
    def positions_BT(self) -> Tensor:
        """Position of each token in its document, int64."""
        starts_N = self._starts_P.repeat_interleave(self._lengths_P)
        return (torch.arange(len(starts_N)) - starts_N).view(self.shape).to(self.device)

    @cached_property
    def bounds_P(self) -> Tensor:
        """Tokens before each document, and N in the end; int32 ``[P + 1]``."""
        total = self._lengths_P.cumsum(0)
        return torch.cat([total.new_zeros(1), total]).int().to(self.device)

    def each(self, attend: Callable[[Tensor], Tensor], x_BTD: Tensor) -> Tensor:
        """A causal map of sequences, computed of each document as a sequence of its own.

        Documents are rows of batches, those of ``2^i + 1`` to ``2^(i+1)`` tokens in the same one.
        Their rows are filled up with the tokens behind them, which a causal map does not read, and
        have fewer than twice as many places as tokens.

        Args:
            attend: From ``[rows, tokens, ...]`` to ``[rows, tokens, ...]``, causal.
            x_BTD: Its argument.
        """
        if len(self.lengths) == self.shape[0]:
            return attend(x_BTD)
        tokens_M, places_N, batches = self._padded
        rows = _Copy.apply(x_BTD.flatten(0, 1), tokens_M, places_N)
        parts = rows.split([n * length for n, length in batches])
        shaped = zip(parts, batches, strict=True)
        done = torch.cat([attend(x.unflatten(0, shape)).flatten(0, 1) for x, shape in shaped])
        return _Return.apply(done, places_N).unflatten(0, self.shape)

    @cached_property
    def _padded(self) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
        """The token at each place of all batches, the place of each token, and the rows and
        tokens of each batch."""
        N = self.shape.numel()
        tokens, batches = [], []
        places_N, before = torch.empty(N, dtype=torch.int64), 0
        sizes_P = (self._lengths_P - 1).double().frexp().exponent  # binary digits
        for size in sizes_P.unique().tolist():
            starts, lengths = (x[sizes_P == size, None] for x in (self._starts_P, self._lengths_P))
            longest = int(lengths.max())
            position = torch.arange(longest)
            token, filled = starts + position, position < lengths
            place = torch.arange(before, before + token.numel()).view_as(token)
            places_N[token[filled]] = place[filled]
            tokens.append(token.flatten().clamp(max=N - 1))
            batches.append((len(starts), longest))
            before += token.numel()
        return torch.cat(tokens).to(self.device), places_N.to(self.device), batches


class _Copy(torch.autograd.Function):
    """Tokens at all places of padded batches. The gradient of a token is that at its own place."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, tokens_M: Tensor, places_N: Tensor) -> Tensor:
        ctx.save_for_backward(places_N)
        return x_ND.index_select(0, tokens_M)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dx_MD: Tensor
    ) -> tuple[Tensor, None, None]:
        (places_N,) = ctx.saved_tensors
        return dx_MD.index_select(0, places_N), None, None


class _Return(torch.autograd.Function):
    """What was computed at the places of the tokens; at the others the gradient is zero."""

    @staticmethod
    def forward(ctx: Any, y_MD: Tensor, places_N: Tensor) -> Tensor:
        ctx.save_for_backward(places_N)
        ctx.places = len(y_MD)
        return y_MD.index_select(0, places_N)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_ND: Tensor
    ) -> tuple[Tensor, None]:
        (places_N,) = ctx.saved_tensors
        dy_MD = dy_ND.new_zeros(ctx.places, *dy_ND.shape[1:])
        return dy_MD.index_copy_(0, places_N, dy_ND), None
