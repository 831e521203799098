"""What holds for every form of every kernel in plain PyTorch, of random small calls.

A new file of ``kernels/linear`` or ``kernels/softmax`` is tested by being there.

Legend: B batch, T tokens, H heads, K key width, V value width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from attention_definitions import linear_product, recurrence, softmax_product
from hypothesis import given, settings
from hypothesis import strategies as st

from lmscaling import kernels
from lmscaling.kernels import decode, gated_delta_attention
from lmscaling.kernels.feature_maps import FEATURE_MAPS
from lmscaling.kernels.gated import chunked as gated

LINEAR, SOFTMAX = kernels.names("linear"), kernels.names("softmax")
SINGLE, HALF, DOUBLE = torch.float32, torch.bfloat16, torch.float64


@dataclass(frozen=True)
class Call:
    """The arguments of any form."""

    tokens: dict[str, torch.Tensor]
    """q, k, v, g (logarithms of gates ``[B, T, H, K]``) and beta ``[B, T, H]``."""
    map: tuple[str, bool]
    chunk: int

    def __getattr__(self, name: str) -> torch.Tensor:
        return self.tokens[name]

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Call":
        return replace(self, tokens={name: change(x) for name, x in self.tokens.items()})


Form = Callable[[Call], torch.Tensor]


def of_linear(name: str) -> tuple[Form, Form]:
    attend = kernels.load("linear", name)

    def form(c: Call) -> torch.Tensor:
        chunk = [1 << c.chunk.bit_length()] if kernels.takes_chunk(attend) else []
        return attend(c.q, c.k, c.v, *c.map, *chunk)

    return form, lambda c: linear_product(c.q, c.k, c.v, *c.map)


def of_softmax(name: str) -> tuple[Form, Form]:
    attend = kernels.load("softmax", name)
    return lambda c: attend(c.q, c.k, c.v), lambda c: softmax_product(c.q, c.k, c.v)


def of_gates(gates: Form, each: Form) -> tuple[Form, Form]:
    """By gates as they are given, and as gates of each token."""
    return (
        lambda c: gated.attend(c.q, c.k, c.v, gates(c), None, c.chunk)[0],
        lambda c: recurrence(c.q, c.k, c.v, each(c), empty(c))[0],
    )


def empty(c: Call) -> torch.Tensor:
    return c.v.new_zeros(len(c.v), *c.k.shape[2:], c.v.shape[-1])


FORMS = {
    **{f"linear-{name}": of_linear(name) for name in LINEAR},
    **{f"softmax-{name}": of_softmax(name) for name in SOFTMAX},
    "gated-head": of_gates(
        lambda c: c.g[0, 0, :, 0], lambda c: c.g[:1, :1, :, :1].expand(*c.q.shape[:3], 1)
    ),
    "gated-token": of_gates(lambda c: c.g[..., 0], lambda c: c.g[..., :1]),
    "gated-channel": of_gates(lambda c: c.g, lambda c: c.g),
    "gated_delta": (
        lambda c: gated_delta_attention(
            c.q, c.k, c.v, c.beta, c.g[..., 0], scale=1.0, chunk=c.chunk
        )[0],
        lambda c: recurrence(c.q, c.k, c.v, c.g[..., :1], empty(c), c.beta[..., None])[0],
    ),
}
"""What computes a call, and its definition."""


@st.composite
def calls(draw, dtype=DOUBLE):
    """Small calls of any form: lengths that a chunk divides or not, widths that differ."""
    B, T, H, K, V = (draw(st.integers(1, most)) for most in (3, 19, 3, 5, 5))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    q, k, v, g = (torch.randn(B, T, H, n, dtype=DOUBLE) for n in (K, K, V, K))
    kind = draw(st.sampled_from([*FEATURE_MAPS])), draw(st.booleans())
    if kind == ("identity", True):
        q, k = q.abs() + 0.1, k.abs() + 0.1  # a sum of any sign cannot divide
    tokens = {"q": q, "k": k / k.norm(dim=-1, keepdim=True), "v": v, "g": F.logsigmoid(g)}
    tokens["beta"] = 2 * torch.rand(B, T, H, dtype=DOUBLE)
    return Call({n: x.to(dtype) for n, x in tokens.items()}, kind, draw(st.integers(1, 20)))


close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
with_any_form = pytest.mark.parametrize("form", FORMS)
few = settings(max_examples=12)


@with_any_form
@few
@given(c=calls())
def test_each_form_at_any_chunk_is_its_definition_with_all_gradients(form, c):
    leaves = c.changed(lambda x: x.requires_grad_())
    inputs, made = list(leaves.tokens.values()), []
    for compute in FORMS[form]:
        y = compute(leaves)
        slope = torch.cos(torch.arange(y.numel(), dtype=DOUBLE)).view(y.shape)
        d = torch.autograd.grad(y, inputs, slope, allow_unused=True)
        made.append([y, *(x for x in d if x is not None)])
    close(*made)


@with_any_form
@pytest.mark.parametrize("dtype", [SINGLE, HALF], ids=["float32", "bfloat16"])
@few
@given(data=st.data())
def test_later_tokens_change_no_bit_of_earlier_outputs(form, dtype, data):
    c = data.draw(calls(dtype))
    cut = data.draw(st.integers(0, c.v.shape[1]))
    other = c.changed(lambda x: torch.cat([x[:, :cut], -x[:, cut:].flip(1).abs() / 3], 1))
    if form == "gated-head":  # its gates are of no token
        other.tokens["g"] = c.g
    y, changed = (FORMS[form][0](x) for x in (c, other))
    assert y.dtype == dtype
    assert torch.equal(y[:, :cut], changed[:, :cut])


@with_any_form
@few
@given(data=st.data())
def test_sequences_and_heads_are_computed_apart(form, data):
    c = data.draw(calls())
    rows, heads = (data.draw(st.permutations(range(c.v.shape[axis]))) for axis in (0, 2))
    rows = sorted(rows) if form == "gated-head" else rows  # its gates are those of all rows
    y, moved = (FORMS[form][0](x) for x in (c, c.changed(lambda x: x[rows][:, :, heads])))
    close(moved, y[rows][:, :, heads])


@with_any_form
@few
@given(c=calls(), factor=st.floats(-3, 3))
def test_outputs_are_linear_in_values(form, c, factor):
    def of(v):
        return FORMS[form][0](replace(c, tokens={**c.tokens, "v": v}))

    other = c.v.flip(1).sin()
    close(of(c.v + factor * other), of(c.v) + factor * of(other))


@few
@given(c=calls(), dtype=st.sampled_from([DOUBLE, SINGLE, HALF]), share=st.floats(0, 1))
def test_a_prompt_and_steps_give_what_the_whole_sequence_gives(c, dtype, share):
    q, k, v = (x.to(dtype) for x in (c.q, c.k, c.v))
    (feature_map, normalize), prompt = c.map, round(share * v.shape[1])
    exact = linear_product(q.double(), k.double(), v.double(), feature_map, normalize)
    whole = decode.prefill(k, v, feature_map)
    kv, k_sum = decode.prefill(k[:, :prompt], v[:, :prompt], feature_map)
    assert kv.dtype == k_sum.dtype == torch.promote_types(dtype, torch.float32)
    weights = linear_product(q.double(), k.double(), v.double().abs(), feature_map, normalize)
    # Sums in the state's dtype, then one rounding.
    allowed = 16 * torch.finfo(kv.dtype).eps + torch.finfo(dtype).eps / 2
    for t in range(prompt, v.shape[1]):
        y = decode.step(q[:, t], k[:, t], v[:, t], kv, k_sum, feature_map, normalize)
        assert y.dtype == dtype
        assert (y - exact[:, t]).norm() <= allowed * weights[:, t].norm()
    # The state that steps leave is that of a longer prompt, as far as it is used.
    torch.testing.assert_close(kv, whole[0])
    if normalize:
        torch.testing.assert_close(k_sum, whole[1])
