"""Attention variants: one module each, found by file name.

A module in this folder defines ``class Attention(nn.Module)`` that follows the protocol
``Attention`` below. Its file stem is then a legal value of ``axes.attention``, and tests, FLOP
counts, figures and the report use that name. If a variant has several implementations, they are
files in ``kernels/<name>/``, and its attribute ``implementation`` is the stem of the one in use. If
these compute linear attention as in ``kernels/__init__.py``, its attribute ``form`` is the feature
map and the normalisation that it gives them, and training begins with a check of their GPU kernels.
If its GPU kernels have a widest head, it has a constant ``WIDEST_ON_GPU``: wider heads are refused,
as they would be computed without the kernels and many times slower.

Legend: B batch, T tokens, D model width, H heads, K head width.
"""

from importlib import import_module
from typing import Any, Protocol

from torch import Tensor

from lmscaling import registry
from lmscaling.errors import UserError, choose
from lmscaling.kernels.rotary import Rotate


class Attention(Protocol):
    """The interface of every variant."""

    out: Any
    """The projection that writes to the residual stream."""

    def __init__(self, d_model: int, n_head: int, rotate: Rotate) -> None:
        """The variant applies ``rotate`` to its queries and keys."""
        ...

    def tunable(self, device_type: str) -> dict[str, tuple[int | str, ...]]:
        """Attributes that change the speed but, apart from rounding, not the result.

        Each comes with the values that calibration tries on a type of device (``cpu``, ``cuda``),
        the default first. Empty if the variant has no options there.
        """
        ...

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Combine each token with those before it; ``[B, T, D]`` to ``[B, T, D]``."""
        ...

    def init_state(self, batch: int, context: int) -> Any:
        """State before the first token, with room for ``context`` tokens."""
        ...

    def prefill(self, x_BTD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """``forward`` of the first T tokens, and the state after them, without a gradient.

        Equals T calls of ``decode_step``, starting from an empty state.
        """
        ...

    def decode_step(self, x_BD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The next token's output and the state after it; equals ``forward`` token by token."""
        ...

    def flops_per_token(self, context: int) -> float:
        """Forward FLOPs per token, including projections; only the causal half counts."""
        ...


def load(name: str) -> Any:
    """The ``Attention`` class of ``lmscaling/attention/<name>.py``.

    Raises:
        UserError: There is no such file, or it defines no such class.
    """
    if name not in registry.attentions():
        raise UserError(f"attention {name!r} has no file; {choose(name, registry.attentions())}")
    module = import_module(f"{__name__}.{name}")
    if not hasattr(module, "Attention"):
        raise UserError(
            f"attention/{name}.py defines no class Attention; see attention/__init__.py"
        )
    return module.Attention
