"""Attention variants: one module each, found by file name.

A module in this folder, or in the folder ``attention/`` of the working directory, defines ``class
Attention(nn.Module)``. Its file stem is then a legal value of ``axes.attention``; plan, training,
sampling, measurements, figures and the report know it by that name, and nothing else has to be
edited. ``lmscaling check attention <name>`` tests it.

What a variant must have: ``__init__(d_model, n_head, rotate)`` and ``forward``. What it may have:

- The other methods of the protocol ``Attention`` below. Without ``prefill``, ``decode_step`` and
  ``init_state`` sampling computes all tokens again for each token; without ``flops_per_token``
  PyTorch counts; without ``forward_documents`` masked documents are rows of padded batches; without
  ``out``, the projection into the residual stream starts as large as the other projections, not
  scaled by the depth.
- Keyword-only parameters with defaults. They are its options: ``axes.attention: [{mine: {rank:
  8}}]``. A parameter ``context`` gets the context of the cell, and ``n_kv_head`` and ``qk_norm``
  get what ``block`` has; without such a parameter, blocks that ask for it are refused.
- ``FAMILY``, a folder in ``kernels/``, and the attribute ``implementation``, the name of the
  one there that is in use. Without ``FAMILY`` the folder has its own name.
- ``form``, if these compute linear attention as in ``kernels/linear/forms.py``: the feature map and
  the normalisation that it gives them. Training then begins with a check of their GPU kernels.
- ``WIDEST_ON_GPU``, the widest head of its GPU kernels. Wider heads are refused, as they would be
  many times slower.
- ``TIMED_AS``, how the throughput model takes it to be computed, one of ``KINDS`` in
  ``plan/throughput/terms.py``. Without it, little is known of its times before it is calibrated.
- ``IN_BFLOAT16 = True``, if its products are bfloat16 also where the model is float32: its check
  then allows as much rounding. ``COMPILES = False``, if blocks are to be compiled without it;
  ``NEEDS_GPU = True``, if it cannot be computed on a CPU.
- In the file, ``PACKAGE``: a distribution whose version counts as a part of the code on GPUs.
- ``ON_GPU``, a sentence for plan and report: why it has no kernels on a GPU, and what that costs.

``build`` makes any of them for a model of one's own, without a study.

Legend: B batch, T tokens, D model width, H heads, K head width.
"""

from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import signature
from typing import Any, Protocol

from torch import Tensor

from lmscaling import registry
from lmscaling.attention._completed import Recomputed, complete
from lmscaling.attention._documents import Documents
from lmscaling.errors import UserError, choose
from lmscaling.kernels.rotary import Rotary, Rotate, unrotated

__all__ = [
    "Attention",
    "Documents",
    "Rotary",
    "Rotate",
    "build",
    "load",
    "names",
    "recomputes",
    "state_bytes",
    "takes_context",
    "unrotated",
]


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
        """Combine each token with itself and those before it; ``[B, T, D]`` to ``[B, T, D]``, in
        the dtype of the weights, under autocast in its own."""
        ...

    def forward_documents(self, x_BTD: Tensor, documents: Documents) -> Tensor:
        """``forward`` of each document by itself, at its place; positions restart."""
        ...

    def init_state(self, batch: int, context: int) -> Any:
        """State before the first token of ``batch`` sequences, with room for ``context`` tokens, on
        the device of the weights."""
        ...

    def prefill(self, x_BTD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """``forward`` of the first T tokens, and the state after them, without a gradient.

        Equals T calls of ``decode_step``, starting from an empty state.
        """
        ...

    def decode_step(self, x_BD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The next token's output, ``[B, D]``, and the state after it, without a gradient; equals
        ``forward`` token by token. The state before it must not be used again."""
        ...

    def flops_per_token(self, context: int) -> float:
        """Forward FLOPs per token, including projections; only the causal half counts."""
        ...


def names() -> list[str]:
    """Names of all variants, sorted."""
    return registry.attentions()


def load(name: str) -> Any:
    """The ``Attention`` class of ``attention/<name>.py``, with all methods.

    Raises:
        UserError: There is no such file, or it defines no such class.
    """
    if name not in names():
        raise UserError(f"attention {name!r} has no file; {choose(name, names())}")
    if (own := registry.own_attention()) and str(own) not in __path__:
        __path__.append(str(own))
    module = import_module(f"{__name__}.{name}")
    if not hasattr(module, "Attention"):
        raise UserError(
            f"attention/{name}.py defines no class Attention; write one with "
            "__init__(d_model, n_head, rotate) and forward(x)"
        )
    return complete(module.Attention)


def build(
    name: str,
    /,
    d_model: int,
    n_head: int,
    rotate: Rotate = unrotated,
    *,
    context: int | None = None,
    n_kv_head: int | None = None,
    qk_norm: bool = False,
    **options: Any,
) -> Any:
    """The attention of one layer of a model, with random weights: a plain ``torch.nn.Module``.

    It has its projections into and out of the heads, and neither norm nor residual connection. On
    CUDA devices, forward and backward are computed by the kernels of this package where there are
    some, elsewhere by PyTorch. It takes float32, float64 and bfloat16, and autocast.

    Args:
        name: One of ``names()``.
        d_model: Width D, a multiple of ``n_head``.
        n_head: Heads.
        rotate: Applied to queries and keys: ``Rotary(d_model // n_head)`` for rotary positions. By
            default they are not rotated, and the model has to add positions to its input. Variants
            with gates ignore it.
        context: Longest context of the model, tokens; for the variants of ``takes_context`` only.
        n_kv_head: Heads of keys and values, a divisor of ``n_head``, which is the default; and
        qk_norm: whether queries and keys get a norm, for the variants that have the parameter.
        options: Options of the variant, such as ``window=64`` of ``local``; the class of each,
            ``load(name)``, describes them.

    Returns:
        A module with the methods of ``Attention``.

    Raises:
        UserError: There is no such variant or option, or the variant refuses a value.

    Examples:
        >>> import torch
        >>> from lmscaling import attention
        >>> attend = attention.build("gated_delta", d_model=64, n_head=4)
        >>> x = torch.randn(2, 100, 64, requires_grad=True)
        >>> y = attend(x)
        >>> y.shape
        torch.Size([2, 100, 64])
        >>> y.sum().backward()

        A prompt, then one token at a time, as ``forward`` of all:

        >>> state = attend.init_state(batch=2, context=100)
        >>> prompt, state = attend.prefill(x[:, :99], state)
        >>> last, state = attend.decode_step(x[:, 99], state)
        >>> torch.allclose(last, y[:, 99], atol=1e-4)
        True
    """
    variant = load(name)
    if d_model < 1 or n_head < 1 or d_model % n_head:
        raise UserError(
            f"d_model is {d_model} and n_head is {n_head}; allowed: a positive multiple of n_head"
        )
    allowed = registry.options(name)
    for option in options:
        if option not in allowed and not registry.takes_any_option(name):
            raise UserError(f"{name} has no option {option!r}; {choose(option, allowed)}")
    if takes_context(name) and context is None:
        raise UserError(
            f"{name} has no context; give the most tokens that its model reads, as in context=1024"
        )
    more = {"context": context} if takes_context(name) else {}
    for key, value in {"n_kv_head": n_kv_head, "qk_norm": qk_norm}.items():
        if value and not registry.takes(name, key):
            raise UserError(f"{name} has no parameter {key}; leave it out")
        more |= {key: value} if value else {}
    if n_head % (n_kv_head or n_head):
        raise UserError(f"n_kv_head is {n_kv_head}; allowed: a divisor of n_head {n_head}")
    try:
        signature(variant).bind(d_model, n_head, rotate, **options, **more)
    except TypeError as error:
        raise UserError(
            f"the class of attention {name} cannot be made: {error}; allowed: "
            "__init__(self, d_model, n_head, rotate), and options that have defaults"
        ) from None
    attend = variant(d_model, n_head, rotate, **options, **more)
    attend.d_model = d_model  # ``Recomputed`` and ``Counted`` need it
    return attend


def takes_context(name: str) -> bool:
    """Whether a variant is made for the longest context of its model."""
    return "context" in signature(load(name)).parameters


def recomputes(name: str) -> bool:
    """Whether a variant offers no state, so that sampling computes all tokens again."""
    return issubclass(load(name), Recomputed)


def state_bytes(state: Any) -> int:
    """Size of the tensors in a state of ``init_state``, in bytes."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if is_dataclass(state):
        return sum(state_bytes(getattr(state, each.name)) for each in fields(state))
    if isinstance(state, dict):
        return sum(map(state_bytes, state.values()))
    return sum(map(state_bytes, state)) if isinstance(state, tuple | list) else 0
