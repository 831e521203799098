"""Attention variants: one module each, found by file name.

A module of this folder defines ``class Attention(nn.Module)`` with the contract of ``Attention``
below, and its file stem is then a legal value of ``axes.attention``. Tests, FLOP counts, figures
and the report pick it up by that name. A variant that can be computed in several ways has them as
files in ``kernels/<name>/`` and an attribute ``implementation``, the stem of the one it uses.

Legend: B batch, T tokens, D model width, H heads, K head width.
"""

from importlib import import_module
from typing import Any, Protocol

from torch import Tensor

from lmscaling import registry
from lmscaling.errors import UserError, choose
from lmscaling.kernels.rotary import Rotate


class Attention(Protocol):
    """What every variant offers."""

    out: Any
    """The projection that writes to the residual stream."""

    def __init__(self, d_model: int, n_head: int, rotate: Rotate) -> None:
        """``rotate`` is to be applied to queries and keys; it may turn nothing."""
        ...

    def tunable(self, device_type: str) -> dict[str, tuple[int | str, ...]]:
        """Attributes that change the speed and, but for rounding, nothing else: the values to try
        on a device of a type (``cpu``, ``cuda``), the default first. Empty if there is nothing to
        choose there."""
        ...

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Mix each token with those before it; ``[B, T, D]`` to ``[B, T, D]``."""
        ...

    def init_state(self, batch: int, context: int) -> Any:
        """State before the first token, with room for ``context`` tokens."""
        ...

    def prefill(self, x_BTD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """``forward`` of the first T tokens and the state behind the last of them, without a
        gradient; equals T calls of ``step`` on a state that has seen no token."""
        ...

    def step(self, x_BD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The next token's output and the state after it; equals ``forward`` token by token."""
        ...

    def flops_per_token(self, context: int) -> float:
        """Forward FLOPs per token, projections included, causal half counted."""
        ...


def load(name: str) -> Any:
    """The ``Attention`` class of ``lmscaling/attention/<name>.py``.

    Raises:
        UserError: There is no such file, or no such class in it.
    """
    if name not in registry.attentions():
        raise UserError(f"attention {name!r} has no file; {choose(name, registry.attentions())}")
    module = import_module(f"{__name__}.{name}")
    if not hasattr(module, "Attention"):
        raise UserError(
            f"attention/{name}.py defines no class Attention; see attention/__init__.py"
        )
    return module.Attention
