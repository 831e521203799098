"""Linear attention of which one part is changed."""

import pytest
import torch
import torch.nn.functional as F
from attention_definitions import heads, weights
from conftest import refused

from lmscaling import attention
from lmscaling.errors import UserError


def made(**options):
    torch.manual_seed(0)
    return attention.build("linear_parts", d_model=32, n_head=2, **options).double()


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(2, 96, 32, dtype=torch.float64)


def test_by_default_it_is_linear_attention_without_positions(x):
    torch.manual_seed(0)
    plain = attention.build("linear", d_model=32, n_head=2).double()
    parts = made()
    with torch.no_grad():
        parts.qkv.load_state_dict(plain.qkv.state_dict())
        parts.out.load_state_dict(plain.out.state_dict())
    torch.testing.assert_close(parts(x), plain(x))


def test_a_decay_is_a_weight_that_halves_and_a_gate_of_one_is_none(x):
    decays, keeps = made(gate="decay", half_life=16.0), made()
    long = made(gate="decay", half_life=1e12)
    torch.testing.assert_close(long(x), keeps(x), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(decays(x), keeps(x), atol=1e-3)
    gated = made(gate="scalar")
    assert gated.bias_H.tolist() == [6.0, 6.0]
    with torch.no_grad():
        gated.rate.weight.zero_()
        gated.bias_H.fill_(40.0)
    torch.testing.assert_close(gated(x), keeps(x), rtol=1e-6, atol=1e-6)


def test_a_gate_and_a_norm_are_their_definition(x):
    both = made(norm="rms", gate="scalar")
    q, k, v = heads(both, both.qkv(x), *[16] * 3)
    rates = (x @ both.rate.weight.T).transpose(1, 2).unsqueeze(-1)
    g = F.logsigmoid(rates + both.bias_H[:, None, None])
    y = weights(F.softplus(q), F.softplus(k), g) @ v
    y = y / y.square().mean(-1, True).sqrt()
    torch.testing.assert_close(both(x), both.out(y.transpose(1, 2).flatten(2)))


def test_the_norm_divides_by_the_root_mean_square_of_each_head(x):
    rms = made(norm="rms")
    seen = []
    rms.out.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    rms(x)
    squares = seen[0].unflatten(-1, (2, -1)).square().mean(-1)
    torch.testing.assert_close(squares, torch.ones_like(squares), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("options", "said"), [
    ({"norm": "layer"}, "layer"), ({"gate": "vector"}, "vector"), ({"half_life": 0.0}, "half_life"),
])  # fmt: skip
def test_a_part_that_it_does_not_have_is_named(options, said):
    with refused(UserError, said):
        made(**options)
