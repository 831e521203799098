"""The gate before training: faults in plain PyTorch, which plays the kernels, are found."""

import re
from itertools import count

import pytest
import torch

from lmscaling import kernels
from lmscaling.bench.checks import exactness, gate
from lmscaling.kernels.linear import forms

CPU = torch.device("cpu")
FORM = ("softplus", True)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(gate, "TOKENS", 20)
    monkeypatch.setattr(gate, "SEGMENTED", (1, 40, 2))


@pytest.fixture
def full_size(small, monkeypatch):
    """The sequences that are checked on a GPU."""
    for name in ("TOKENS", "SEGMENTED"):
        monkeypatch.setattr(gate, name, getattr(exactness, name))


def fault(attend, form=FORM, compiled=False, kind="linear"):
    return gate.attention_fault(kind, attend, CPU, torch.float32, 16, form, compiled)


@pytest.mark.parametrize(
    ("kind", "name", "dtype", "form", "compiled"),
    [("linear", "chunked", gate.DTYPE, FORM, True),
     ("linear", "attention_parallel", gate.DTYPE, FORM, False),
     *(("linear", name, gate.DTYPE, ("identity", False), False) for name in gate.CHECKED[:2]),
     ("gated", "chunked", torch.bfloat16, ("head",), True),
     ("gated", "chunked", torch.float32, ("token",), True)],
)  # fmt: skip
def test_ours_pass_at_the_shapes_of_a_gpu(full_size, kind, name, dtype, form, compiled):
    attend = kernels.load(kind, name)
    assert gate.attention_fault(kind, attend, CPU, dtype, 16, form, compiled) is None


def test_integers_of_a_long_sequence_are_sums_that_bf16_represents():

    sums = []

    def seen(q, k, v, *_):
        with torch.no_grad():
            state = torch.einsum("bthk,bthv->bthkv", k, v).cumsum(1)
            weights = torch.einsum("bthk,bshk->bhts", q, k)
            sums.extend(x.abs().max().item() for x in (state, weights))
        return exactness.linear(q, k, v, "identity", False)

    shape = (*exactness.SEGMENTED, 128)
    assert not exactness.first_fault(exactness.integers(seen, CPU, torch.float32, shape))
    assert max(sums) <= 256


class Wrong(torch.autograd.Function):
    """Passes a tensor on, and its gradient with one element lost."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        dx = gradients[0].clone()
        dx[0, -3, 0, -1] = 0
        return dx


def one_lost(y):
    y = y.clone()
    y[0, -3, 0, 1] = 0
    return y


CALLS = count()
PLANTED = {
    "one element": (lambda y, q, form: one_lost(y), "y of integers"),
    "several segments alone": (
        lambda y, q, form: one_lost(y) if q.shape[1] == gate.SEGMENTED[1] else y, "y of integers"),
    "normalised alone": (lambda y, q, form: one_lost(y) if form[1] else y, "y is"),
    "the last bit of every other call": (
        lambda y, q, form: y * (1 + 1e-6 * (form == FORM) * (next(CALLS) % 2)), "y differs"),
    "compiled alone": (lambda y, q, form: 2 * y if torch.compiler.is_compiling() else y, "y is 1 "),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_wrong_is_found_also_if_it_is_wrong_in_one_case_alone(what):
    change, said = PLANTED[what]

    def attend(q, k, v, *form):
        return change(forms.chunked(q, k, v, *form), q, form)

    assert (fault(attend, compiled=what == "compiled alone") or "").startswith(said)
    assert what != "compiled alone" or fault(attend) is None
    if what == "normalised alone":
        # Among 5,000 elements it changes the root mean square by less than bf16 is allowed.
        long = (2, 200, 3, 16)
        found = list(exactness.numbers("linear", attend, CPU, torch.bfloat16, long, FORM))
        assert [x.error <= x.allowed for x in found if x.case == "numbers"] == 4 * [True]
        assert (exactness.first_fault(found) or "").startswith("an element")


def test_one_wrong_element_of_a_gradient_is_found():
    def attend(q, k, v, *form):
        return forms.chunked(q, Wrong.apply(k), v, *form)

    assert (fault(attend) or "").startswith("dk of integers")
    # Another library's kernel is not asked for integers.
    shape = (2, exactness.TOKENS, 3, 16)
    said = exactness.first_fault(exactness.every("peer", attend, CPU, torch.float32, shape)) or ""
    assert re.fullmatch(r"dk is .* 0\.0001", said)


@pytest.mark.parametrize(
    ("kind", "name", "gradients"),
    [("gated", "chunked", ["dg"]), ("gated_delta", "plain", ["dbeta", "dg"])],
)
def test_a_gate_that_acts_wrongly_is_found_forward_and_backward(kind, name, gradients):
    right = kernels.load(kind, name)

    def late(q, k, v, *gates):
        return right(q, k, v, *gates[:-1], gates[-1].roll(1, 1))

    assert (fault(late, ("token",), kind=kind) or "").startswith("y is")
    for i, name in enumerate(gradients):

        def lost(q, k, v, *gates, i=i):
            wrong = Wrong.apply(gates[i][..., None])[..., 0]
            return right(q, k, v, *gates[:i], wrong, *gates[i + 1 :])

        assert name in (fault(lost, ("token",), kind=kind) or "")


def right(logits, y, scale):
    """Losses of each row; their gradient takes the place of the logits."""
    exact = logits.double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(exact, y, reduction="none")
    if scale:
        logits[:] = torch.autograd.grad(scale * loss.sum(), exact)[0]
    return loss.detach().float()


@pytest.mark.parametrize(("V", "dtype"), [(320, torch.float32), (50304, torch.bfloat16)])
def test_the_cross_entropy_is_checked_element_by_element(V, dtype):
    def fault(losses):
        return gate.cross_entropy_fault(losses, CPU, dtype, V) or ""

    def lost(logits, y, scale):
        loss = right(logits, y, scale)
        logits[5, V // 2] = 0
        return loss

    assert fault(right) == ""
    assert fault(lost).startswith("the gradient is")
    assert fault(lambda *given: 1.001 * right(*given)).startswith("the loss is")
    assert "without" in fault(lambda x, y, s: right(x, y, s) * (1 if s else 1.001))
