"""The gated delta rule token by token, and how the tests of its implementations compare with it."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Lengths = list[list[int]]


def sample(
    lengths: Lengths, H: int, K: int, V: int, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Inputs, the initial states, and the gradients of y and of the final states.

    q, k, v and the gradient of y have the dtype, the others at least float32.
    """
    B, T, P = len(lengths), sum(lengths[0]), sum(len(row) for row in lengths)
    seeded = torch.Generator().manual_seed(T + H + K + V)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=seeded, dtype=torch.float64)

    q, k = (F.normalize(normal(B, T, H, K), dim=-1).to(dtype) for _ in range(2))
    v, dy = (normal(B, T, H, V).to(dtype) for _ in range(2))
    beta, g = 2 * normal(B, T, H).sigmoid(), F.logsigmoid(normal(B, T, H))
    initial, dfinal = normal(P, H, K, V), normal(P, H, K, V)
    single = torch.promote_types(dtype, torch.float32)
    beta, g, initial, dfinal = (x.to(single) for x in (beta, g, initial, dfinal))
    return [q, k, v, beta, g, initial, dy, dfinal]


def recurrence(lengths: Lengths, scale: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """The definition: the state decays, then ``beta`` of what the key reads is replaced."""

    def attend(
        q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None, initial: Tensor
    ) -> tuple[Tensor, Tensor]:
        y, final = [], []
        for b, row in enumerate(lengths):
            tokens = iter(range(sum(row)))
            for length in row:
                state = initial[len(final)]
                for t in (next(tokens) for _ in range(length)):
                    if g is not None:
                        state = g[b, t].exp()[:, None, None] * state
                    read = torch.einsum("hk,hkv->hv", k[b, t], state)
                    u = beta[b, t][:, None] * (v[b, t] - read)
                    state = state + torch.einsum("hk,hv->hkv", k[b, t], u)
                    y.append(scale * torch.einsum("hk,hkv->hv", q[b, t], state))
                final.append(state)
        return torch.stack(y).view(v.shape), torch.stack(final)

    return attend


def outcome(
    attend: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor | None]
) -> dict[str, Tensor]:
    """y, the final states, and the gradients by all inputs that are given."""
    *inputs, dy, dfinal = tensors
    leaves = [x if x is None else x.detach().requires_grad_() for x in inputs]
    y, final = attend(*leaves)
    names = ("dq", "dk", "dv", "dbeta", "dg", "dinitial")
    given = {name: x for name, x in zip(names, leaves, strict=True) if x is not None}
    gradients = torch.autograd.grad((y, final), list(given.values()), (dy, dfinal))
    return {"y": y.detach(), "final": final.detach()} | dict(zip(given, gradients, strict=True))


def distances(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Of each result, relative to the norm of the exact one, or absolute where that is below 1."""
    return {
        name: ((found[name].double() - x).norm() / x.norm().clamp(min=1.0)).item()
        for name, x in exact.items()
    }
