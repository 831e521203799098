"""Softmax attention over a window: each token sees itself and the ``window - 1`` tokens before it.

A block of tokens, at least as long as the window, reads its own keys and those of the block
before. For decoding, a ring holds the last ``window`` keys and values, the keys rotated by their
positions before they are stored.

The window counts the token itself, so it is ``(window - 1, 0)`` of flash attention.

Sources: Beltagy et al. 2020 (arXiv:2004.05150), section 3.1; Jiang et al. 2023 (arXiv:2310.06825),
section 2.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling.attention._heads import Projection
from lmscaling.errors import UserError
from lmscaling.kernels.rotary import Rotate

BLOCK = 64
"""Fewest tokens of a block."""


@dataclass
class State:
    """Keys and values of the last tokens, that of token t at ``t % window``."""

    k_BHWK: Tensor
    v_BHWK: Tensor
    length: int


class Attention(nn.Module):
    """Averages values with weights ``softmax(q k / sqrt(K))`` over the last tokens.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Applied to queries and keys.
        window: Tokens that a token sees.
        qk_norm: See ``_heads.Projection``.

    Raises:
        UserError: The window is empty.
    """

    ON_GPU = (
        "PyTorch's masked attention, because our kernels with a window have no softmax: it "
        "computes at least twice the products of the window and copies keys and values twice"
    )

    def __init__(
        self,
        d_model: int,
        n_head: int,
        rotate: Rotate,
        *,
        window: int = 128,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        if window < 1:
            raise UserError(f"window of local is {window}; allowed: at least 1, the token itself")
        self.d_model, self.n_head, self.rotate, self.window = d_model, n_head, rotate, window
        self.qkv = Projection(d_model, n_head, qk_norm=qk_norm)
        self.out = nn.Linear(d_model, d_model)

    def tunable(self, device_type: str) -> dict[str, tuple[int | str, ...]]:
        """Nothing."""
        return {}

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.out(self._attend(*self._projected(x_BTD)))

    def _projected(self, x_BTD: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, ``[B, H, T, K]``."""
        q, k, v = self.qkv(x_BTD).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        return self.rotate(q, start), self.rotate(k, start), v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What the heads read, ``[B, T, D]``."""
        T = q.shape[2]
        if self.window >= T:
            y_BHTK = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y_BHTK.transpose(1, 2).flatten(2)
        block = max(self.window, BLOCK)
        q, k, v = (F.pad(x, (0, 0, 0, -T % block)).unflatten(2, (-1, block)) for x in (q, k, v))
        # Each block of keys and values behind the one before it; [B, H, N, 2 C, K].
        k, v = (torch.cat([F.pad(x, (0, 0, 0, 0, 1, -1)), x], 3) for x in (k, v))
        B, N = q.shape[0], q.shape[2]
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # [B N, H, ., K]
        place = torch.arange(2 * block, device=q.device)
        distance = place[block:, None] - place
        seen_CS = (distance >= 0) & (distance < self.window)
        seen_NCS = seen_CS.repeat(N, 1, 1)
        seen_NCS[0, :, :block] = False  # there is no block before the first
        mask = seen_NCS.repeat(B, 1, 1).unsqueeze(1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # [B N, H, C, K]
        return y.transpose(1, 2).flatten(2).view(B, N * block, -1)[:, :T]

    def init_state(self, batch: int, context: int) -> State:
        """The same size for every context."""
        weight, K = self.qkv.weight, self.d_model // self.n_head
        shape = (batch, self.n_head, self.window, K)
        return State(weight.new_zeros(shape), weight.new_zeros(shape), 0)

    @torch.no_grad()
    def prefill(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Without a gradient; updates the tensors of ``state``, which must not be used again."""
        q, k, v = self._projected(x_BTD)
        T = x_BTD.shape[1]
        last = torch.arange(max(0, T - self.window), T, device=x_BTD.device)
        state.k_BHWK[:, :, last % self.window] = k[:, :, last]
        state.v_BHWK[:, :, last % self.window] = v[:, :, last]
        return self.out(self._attend(q, k, v)), State(state.k_BHWK, state.v_BHWK, T)

    @torch.no_grad()
    def decode_step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        """Without a gradient; updates the tensors of ``state``, which must not be used again."""
        q, k, v = self._projected(x_BD.unsqueeze(1), state.length)
        here, length = state.length % self.window, state.length + 1
        state.k_BHWK[:, :, here], state.v_BHWK[:, :, here] = k[:, :, 0], v[:, :, 0]
        k, v = (x[:, :, :length] for x in (state.k_BHWK, state.v_BHWK))  # all of a full ring
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.flatten(1)), State(state.k_BHWK, state.v_BHWK, length)

    def flops_per_token(self, context: int) -> float:
        """Four D x D projections, and two products over the tokens seen on average."""
        seen = min(self.window, context)
        return 8 * self.d_model**2 + 4 * self.d_model * (seen - seen * (seen - 1) / (2 * context))
