"""A layer of flash-linear-attention: ``attention: [{fla: {layer: KimiDeltaAttention}}]``.

``layer`` names a class in ``fla.layers``, and the other options are parameters of its constructor.
The width is that of the model; so are the number of heads and the width of a head, unless
``num_heads`` and ``head_dim`` are given. Positions are not rotated: layers that need positions have
their own. Linear maps start as those of all variants do, other parameters as the layer draws them.

Products are bfloat16, also where the model is float32, because many of these kernels take nothing
else. Blocks are compiled without them. Each process searches their fastest launch options anew: a
run that is resumed goes on with other rounding errors.

Sampling computes all tokens again for each token. FLOPs are an estimate: products with all weights,
and of each head two products with a state of ``head_k_dim`` by ``head_v_dim``, or with a square one
if the layer does not say.

Source: Yang and Zhang 2024, https://github.com/fla-org/flash-linear-attention.

Legend: B batch, T tokens, D model width.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from lmscaling.errors import UserError, choose
from lmscaling.kernels.rotary import Rotate

PACKAGE = "flash-linear-attention"


class Attention(nn.Module):
    """Mixes tokens as the layer does.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Ignored.
        layer: A class of ``fla.layers``.
        options: Parameters of its constructor.

    Raises:
        UserError: flash-linear-attention is not installed or has no such layer, or the layer
            refuses an option.
    """

    COMPILES, IN_BFLOAT16, NEEDS_GPU = False, True, True
    ON_GPU = (
        "kernels of flash-linear-attention; its FLOPs are an estimate, products with its weights "
        "and with a state as wide as its heads"
    )

    def __init__(
        self, d_model: int, n_head: int, rotate: Rotate, *, layer: str = "", **options: Any
    ) -> None:
        super().__init__()
        self.d_model, self.n_head = d_model, n_head
        self.layer = _built(layer, d_model, n_head, options)

    @property
    def out(self) -> Any:
        """The projection into the residual stream, of the layers that name it so."""
        return self.layer.o_proj

    def forward(self, x_BTD: Tensor) -> Tensor:
        """As the layer computes it in bfloat16, in the dtype of the input.

        Raises:
            UserError: The input is not on a GPU.
        """
        name = x_BTD.device.type
        if name == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            raise UserError("attention fla has no CPU kernels; train it with gpus: 1")
        with torch.autocast(name, torch.bfloat16):
            y = self.layer(x_BTD)
        y_BTD = y[0] if isinstance(y, tuple) else y
        return y_BTD if torch.is_autocast_enabled(name) else y_BTD.to(x_BTD.dtype)

    def flops_per_token(self, context: int) -> float:
        """An estimate, see above; the same at every context."""
        width = self.d_model // self.n_head
        key, value = (getattr(self.layer, name, width) for name in ("head_k_dim", "head_v_dim"))
        heads = getattr(self.layer, "num_heads", self.n_head)
        weights = sum(p.numel() for p in self.layer.parameters() if p.dim() > 1)
        return float(2 * weights + 4 * heads * key * value)


def _built(name: str, d_model: int, n_head: int, options: dict[str, Any]) -> nn.Module:
    if not find_spec("fla"):
        raise UserError(
            f"attention fla needs {PACKAGE}, which is not installed; type pip install "
            "'lmscaling[fla]'"
        )
    layers = import_module("fla.layers")
    if name not in layers.__all__:
        raise UserError(f"fla has no layer {name!r}; {choose(name, layers.__all__)}")
    layer = getattr(layers, name)
    parameters = signature(layer).parameters
    fixed = {"hidden_size": d_model, "layer_idx": 0}
    usual = {"num_heads": n_head, "num_key_value_heads": n_head, "head_dim": d_model // n_head}
    for option in options:
        if option not in parameters or option in fixed:
            allowed = sorted(parameters.keys() - fixed.keys())
            raise UserError(f"{name} of fla has no option {option!r}; {choose(option, allowed)}")
    given = usual | options | fixed
    try:
        return layer(**{key: value for key, value in given.items() if key in parameters})
    except Exception as error:  # each layer has its own way to refuse
        said = str(error) or type(error).__name__
        raise UserError(
            f"{name} of fla refuses its options: {said.splitlines()[0].rstrip('.')}; give others"
        ) from error
