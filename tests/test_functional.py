"""Linear attention as a function: what plain PyTorch computes, and what is refused."""

import pytest
import torch
from torch import Tensor

from lmscaling.kernels import State, decode, feature_maps, functional, linear_attention

B, T, H, K, V = 2, 9, 4, 3, 5


def sample(heads: int = H) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, T, n, w, dtype=torch.float64) for n, w in
               ((H, K), (heads, K), (heads, V)))  # fmt: skip
    return q, k, v


def one_by_one(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: State, normalize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Token by token, as the definition says, of one sequence ``[T, H, .]``."""
    phi = feature_maps.find("softplus")
    (kv, z), rows = (x.squeeze(0) for x in state), []
    for t in range(len(q)):
        a = g[t].exp()[:, None]
        kv = a[..., None] * kv + phi.of(k[t])[..., None] * v[t][:, None]
        z = a * z + phi.of(k[t])
        y = torch.einsum("hk,hkv->hv", phi.of(q[t]), kv)
        rows.append(y / (phi.of(q[t]) * z).sum(-1, keepdim=True) if normalize else y)
    return torch.stack(rows), kv, z


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("lengths", [(), (9, 1, 8), (2, 3, 4, 9)])
@pytest.mark.parametrize("chunk", [4, 64])
def test_a_state_is_scaled_then_gets_the_token_and_is_read(normalize, lengths, chunk, monkeypatch):
    monkeypatch.setattr(functional, "CHUNK", chunk)
    q, k, v = sample()
    N = len(lengths) or B
    g = -3 * torch.rand(B, T, H, dtype=torch.float64)
    initial = State(torch.randn(N, H, K, V).double(), torch.rand(N, H, K).double())
    y, final = linear_attention(
        q, k, v, normalize=normalize, log_decay=g, initial=initial, lengths=lengths
    )
    parts = [x.flatten(0, 1).split(list(lengths) or [T] * B) for x in (q, k, v, g)]
    for n in range(N):
        q, k, v, g = (part[n] for part in parts)
        state = State(*(x[n : n + 1] for x in initial))
        expected, kv, z = one_by_one(q, k, v, g, state, normalize)
        at = sum(map(len, parts[0][:n]))
        torch.testing.assert_close(y.flatten(0, 1)[at : at + len(expected)], expected)
        torch.testing.assert_close(final.kv_NHKV[n], kv)
        torch.testing.assert_close(final.k_NHK[n], z)


def test_a_constant_gate_of_a_head_is_that_of_every_token():
    q, k, v = sample()
    g = -torch.rand(H, dtype=torch.float64)
    one, _ = linear_attention(q, k, v, log_decay=g)
    two, _ = linear_attention(q, k, v, log_decay=g.expand(B, T, H))
    torch.testing.assert_close(one, two)


def test_without_options_it_is_the_attention_of_the_studies():
    q, k, v = sample()
    from lmscaling.kernels.linear import chunked

    torch.testing.assert_close(
        linear_attention(q, k, v)[0], chunked.attend(q, k, v, "softplus", True)
    )


def test_the_state_of_a_prompt_continues_it():
    q, k, v = sample()
    y, final = linear_attention(q, k, v)
    _, state = linear_attention(q[:, :4], k[:, :4], v[:, :4])
    rest, last = linear_attention(q[:, 4:], k[:, 4:], v[:, 4:], initial=state)
    torch.testing.assert_close(rest, y[:, 4:])
    torch.testing.assert_close(last.kv_NHKV, final.kv_NHKV)


@pytest.mark.parametrize("strength", [0.0, 20.0, 800.0])
def test_strong_gates_give_finite_numbers_and_gradients_in_float32(strength):
    q, k, v = (x.float().requires_grad_() for x in sample())
    g = torch.full((B, T, H), -strength).requires_grad_()
    y, state = linear_attention(q, k, v, log_decay=g)
    gradients = torch.autograd.grad(y.sum() + state.kv_NHKV.sum(), (q, k, v, g))
    assert all(torch.isfinite(x).all() for x in (y, *state, *gradients))


def test_a_head_of_keys_serves_consecutive_heads_of_queries():
    q, k, v = sample(heads=2)
    y, _ = linear_attention(q, k, v)
    k4, v4 = (x[:, :, [0, 0, 1, 1]] for x in (k, v))
    torch.testing.assert_close(y, linear_attention(q, k4, v4)[0])


def test_a_state_is_padded_for_the_kernels_and_back():
    state = State(torch.randn(2, H, K, V), torch.randn(2, H, K))
    for x, y in zip(state, functional.split(functional.join(state), K, V), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"log_decay": torch.zeros(T, H)}, r"log_decay has shape \(9, 4\); allowed: \(4,\) or"),
        ({"lengths": (9, 8)}, "lengths sum to 17 tokens; allowed: 18"),
        ({"lengths": (5, 5, 8)}, "a sequence of 5 tokens at token 5 of a row of 9"),
        ({"lengths": (9, 0, 9)}, "a sequence of 0 tokens"),
        ({"initial": State(torch.zeros(1, H, K, V), torch.zeros(1, H, K))},
         r"initial.kv_NHKV has shape \(1, 4, 3, 5\); allowed: \(2, 4, 3, 5\)"),
        ({"feature_map": "softplus1"}, "'softplus1' is not known"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_match_are_refused_in_a_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        linear_attention(*sample(), **options)


def test_heads_of_keys_that_do_not_divide_those_of_queries_are_refused():
    with pytest.raises(ValueError, match="k has 3 heads; allowed: divisors of the 4 of q"):
        linear_attention(*sample(heads=3))


def test_autocast_sets_the_dtype():
    q, k, v = (x.float() for x in sample())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear_attention(q, k, v)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("normalize", [True, False])
def test_a_step_with_a_gate_continues_a_sequence(normalize):
    q, k, v = sample()
    g = -torch.rand(B, T, H, dtype=torch.float64)
    y, final = linear_attention(q, k, v, normalize=normalize, log_decay=g)
    _, state = linear_attention(q[:, :-1], k[:, :-1], v[:, :-1], log_decay=g[:, :-1])
    last = decode.step(q[:, -1], k[:, -1], v[:, -1], *state, "softplus", normalize, g[:, -1])
    torch.testing.assert_close(last, y[:, -1])
    torch.testing.assert_close(state.kv_NHKV, final.kv_NHKV)
