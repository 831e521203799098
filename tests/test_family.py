"""What attention variants are in the limit, how they start, and their sizes."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from attention_definitions import DECAYING, gradients, output
from torch import nn

from lmscaling import attention
from lmscaling.kernels.rotary import unrotated

OPTIONS = {
    "cosformer": {"context": 80},
    "favor": {"features": 24},
    "gated": {"rank": 3, "temperature": 4.0},
    "gated_delta": {"largest_beta": 2.0},
    "local": {"window": 5},
    "taylor2": {"order": 4, "width": 6},
}
to_1e_12 = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def layer(name, rotate=unrotated, D=32, H=2, **options):
    torch.manual_seed(0)
    options = OPTIONS.get(name, {}) | options
    return attention.load(name)(D, H, rotate, **options).double()


def tokens(T, D=32):
    torch.manual_seed(1)
    return torch.randn(2, T, D, dtype=torch.float64, requires_grad=True)


# Limits


def same_weights(name, other, D=32, **options):
    """A layer and one of another kind with its weights."""
    one, reference = layer(name, D=D, **options), attention.load(other)(D, 2, unrotated).double()
    one.load_state_dict(reference.state_dict(), strict=False)
    return one, reference


def test_many_features_of_favor_are_softmax_of_small_queries_and_keys():
    one, softmax = same_weights("favor", "softmax", features=4096)
    for each in (one, softmax):
        each.out = nn.Identity()
        with torch.no_grad():
            each.qkv.weight[:64] *= 0.5
    found, expected = one(tokens(40)), softmax(tokens(40))
    assert (found - expected).norm() < 0.03 * expected.norm()


def test_cosformer_survives_tokens_without_any_feature():
    made = layer("cosformer")
    nn.init.zeros_(made.qkv.weight)
    nn.init.constant_(made.qkv.bias, -1.0)
    assert torch.isfinite(gradients(made(tokens(9)), list(made.parameters()))[0]).all()


def test_favor_is_finite_and_right_for_large_queries_and_keys_in_float32():
    made, x = layer("favor"), tokens(70).detach()
    with torch.no_grad():
        made.qkv.weight[:64] *= 60
    exact = made(x)
    assert not torch.isfinite(output("favor", made.float(), x.float())).all()
    assert (made(x.float()) - exact).norm() < 1e-3 * exact.norm()


# Starting values and options


@pytest.mark.parametrize(("D", "H"), [(16, 2), (768, 12)])
@pytest.mark.parametrize("name", DECAYING)
def test_the_output_norm_gives_one_in_each_head_at_the_start_at_any_width(name, D, H):
    """Read behind the output gate, which is opened to 1000."""
    made = layer(name, D=D, H=H).float()
    for module in made.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    made.out = nn.Identity()
    with torch.no_grad():
        made.qkvr.weight[-D:], made.qkvr.bias[-D:] = 0, 1000
    norms = made(F.layer_norm(torch.randn(2, 128, D), (D,))).unflatten(-1, (H, -1)) / 1000
    assert norms.square().mean((0, 1, 3)).sqrt().tolist() == pytest.approx([1.0] * H, abs=0.05)


@pytest.mark.parametrize("name", DECAYING)
def test_heads_start_with_the_half_lives_of_the_options(name):
    """Tokens of zeros write nothing, so what is left of a state is the decay."""
    made = layer(name, D=64, H=4, shortest=2.0, longest=128.0)
    nn.init.zeros_(made.qkvr.bias)
    state = made.init_state(1, 9)
    state.kv_BHKV.fill_(1.0)
    _, after = made.prefill(torch.zeros(1, 9, 64, dtype=torch.float64), state)
    expected = torch.tensor([2.0, 8.0, 32.0, 128.0], dtype=torch.float64)
    found = -9 * math.log(2) / after.kv_BHKV[0, :, 0, 0].log()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_a_single_head_starts_between_the_shortest_and_the_longest():
    made = layer("retention", H=1, shortest=2.0, longest=128.0)
    assert (-math.log(2) / made.log_decay_H).tolist() == pytest.approx([16.0])


@pytest.mark.parametrize(
    ("name", "parameters", "state", "flops"),
    [
        # D = 768, H = 12: parameters over D^2, state of a head, MFLOP of a token beside projections
        ("elu", 4, 64 * 65, 0.29),
        ("retention", 4, 32 * 64, 0.17),
        ("gated", 4 + 24.5 / 768, 32 * 64, 0.17),
        ("mamba2", 4 + 12 / 768, 32 * 64, 0.17),
        ("gated_delta", 4 + 24 / 768, 32 * 64, 0.23),
        ("taylor2", 2.5, 153 * 65, 0.53),
        ("favor", 4, 128 * 65 + 128, 0.93),
        ("cosformer", 4, 128 * 65, 0.54),
        ("local", 4, 2 * 128 * 64, 0.37),
    ],
)
def test_its_size_state_and_flops_are_those_of_the_table(name, parameters, state, flops):
    SIZES = {"cosformer": {"context": 1024}}
    made = attention.load(name)(768, 12, unrotated, **SIZES.get(name, {}))
    found = sum(p.numel() for p in made.parameters()) / 768**2
    assert found == pytest.approx(parameters, abs=0.01)
    parts = [x for x in vars(made.init_state(1, 1024)).values() if isinstance(x, torch.Tensor)]
    assert sum(x.numel() for x in parts) == 12 * state
    projections = 2 * sum(m.weight.numel() for m in made.modules() if isinstance(m, nn.Linear))
    assert (made.flops_per_token(1024) - projections) / 1e6 == pytest.approx(flops, abs=0.005)
