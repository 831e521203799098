"""The contract of every module in ``attention/``; a new file is tested by being there."""

import pytest
import torch

from lmscaling import attention, registry
from lmscaling.errors import UserError
from lmscaling.kernels.chunked import linear_attention

NAMES = registry.attentions()


def quadratic(q, k, v):
    """Normalised linear attention by its definition, one T x T product."""
    weights = (q @ k.transpose(-1, -2)).tril()
    return weights @ v / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("T", [1, 16, 63, 64, 100, 1000])
@pytest.mark.parametrize("chunk", [16, 64])
def test_chunks_give_what_the_definition_gives_forward_and_backward(T, chunk):
    torch.manual_seed(0)
    q, k, v = (torch.rand(2, 3, T, d, dtype=torch.float64, requires_grad=True) for d in (8, 8, 5))
    grad = torch.randn(2, 3, T, 5, dtype=torch.float64)
    out, exact = linear_attention(q, k, v, chunk), quadratic(q, k, v)
    torch.testing.assert_close(out, exact, rtol=1e-11, atol=1e-12)
    ours = torch.autograd.grad(out, (q, k, v), grad)
    theirs = torch.autograd.grad(exact, (q, k, v), grad)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_chunks_refuse_shapes_that_do_not_fit():
    q = torch.ones(1, 1, 4, 8)
    with pytest.raises(ValueError, match="have shapes"):
        linear_attention(q, torch.ones(1, 1, 4, 7), q)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("T", [1, 63, 100])
def test_it_keeps_the_shape_and_never_looks_ahead(name, T):
    torch.manual_seed(0)
    attend = attention.load(name)(32, 2).double()
    x = torch.randn(2, T, 32, dtype=torch.float64)
    cut = T // 2
    later = x.clone()
    later[:, cut:] = torch.randn_like(later[:, cut:])
    out = attend(x)
    assert out.shape == x.shape
    torch.testing.assert_close(out[:, :cut], attend(later)[:, :cut])


@pytest.mark.parametrize("name", NAMES)
def test_steps_give_what_the_whole_sequence_gives(name):
    torch.manual_seed(0)
    attend = attention.load(name)(32, 2)
    x = torch.randn(3, 70, 32)
    state, outs = attend.init_state(3, 70), []
    with torch.no_grad():
        for t in range(70):
            out, state = attend.step(x[:, t], state)
            outs.append(out)
        torch.testing.assert_close(torch.stack(outs, 1), attend(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient_and_out_writes_to_the_residual(name):
    attend = attention.load(name)(32, 2)
    attend(torch.randn(2, 20, 32)).square().sum().backward()
    # A bias on keys moves all scores of a softmax alike, so no gradient is asked of biases.
    weights = [p for p in attend.parameters() if p.dim() > 1]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in weights)
    assert attend.out.weight.shape == (32, 32)


@pytest.mark.parametrize("name", NAMES)
def test_its_flops_cover_the_projections_and_never_fall_with_the_context(name):
    attend = attention.load(name)(64, 4)
    flops = [attend.flops_per_token(context) for context in (1, 64, 1024, 65536)]
    assert flops[0] >= 2 * 4 * 64**2
    assert flops == sorted(flops)


def test_the_flops_of_softmax_grow_with_the_context_and_those_of_linear_do_not():
    softmax, linear = (attention.load(n)(64, 4) for n in ("softmax", "linear"))
    assert softmax.flops_per_token(2048) - softmax.flops_per_token(1024) == 2 * 64 * 1024
    assert linear.flops_per_token(2048) == linear.flops_per_token(1024)


def test_an_unknown_name_lists_the_known():
    with pytest.raises(UserError, match="nearest is 'softmax'; allowed: linear, softmax"):
        attention.load("sofmax")
