"""The gate before training: planted faults of kernels are found.

The kernels of a GPU are played by plain PyTorch with a fault.
"""

from functools import partial

import pytest
import torch

from lmscaling import kernels
from lmscaling.bench.checks import exactness, gate
from lmscaling.kernels.linear import chunked

CPU = torch.device("cpu")
FORM = ("softplus", True)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Short sequences."""
    monkeypatch.setattr(gate, "TOKENS", 20)
    monkeypatch.setattr(gate, "SEGMENTED", (1, 40, 2))


@pytest.fixture
def full_size(small, monkeypatch):
    """The sequences that are checked on a GPU."""
    for name in ("TOKENS", "SEGMENTED"):
        monkeypatch.setattr(gate, name, getattr(exactness, name))


def fault(attend, form=FORM, compiled=False, kind="linear"):
    return gate.attention_fault(kind, attend, CPU, torch.float32, 16, form, compiled)


@pytest.mark.parametrize("name", gate.OURS)
def test_ours_pass_at_the_shapes_of_a_gpu(full_size, name):
    checked = partial(gate.attention_fault, "linear", kernels.load("linear", name), CPU)
    assert checked(gate.DTYPE, 16, FORM, compiled=name == "chunked") is None
    assert checked(gate.DTYPE, 16, ("identity", False), False) is None


@pytest.mark.parametrize(
    ("kind", "gates", "dtype"),
    [
        ("gated", "head", torch.bfloat16),
        ("gated", "token", torch.float32),
        ("gated_delta", "token", torch.bfloat16),
    ],
)
def test_ours_with_gates_pass_at_the_shapes_of_a_gpu(full_size, kind, gates, dtype):
    attend = kernels.load(kind, "chunked")
    assert gate.attention_fault(kind, attend, CPU, dtype, 16, (gates,), kind == "gated") is None


def test_integers_of_a_long_sequence_are_sums_that_bf16_represents():
    """Of the states and of the weights, which are operands of products."""
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
    """One element among all is zero."""
    y = y.clone()
    y[0, -3, 0, 1] = 0
    return y


def test_one_wrong_element_is_found_forward_and_backward():
    def forward(q, k, v, *form):
        return one_lost(chunked.attend(q, k, v, *form))

    def backward(q, k, v, *form):
        return chunked.attend(q, Wrong.apply(k), v, *form)

    for attend, name in ((forward, "y"), (backward, "dk")):
        assert (fault(attend) or "").startswith(f"{name} of integers")


@pytest.mark.parametrize(
    ("kind", "gradients"), [("gated", ["dg"]), ("gated_delta", ["dbeta", "dg"])]
)
def test_a_gate_that_acts_wrongly_is_found_forward_and_backward(kind, gradients):
    right = kernels.load(kind, "chunked")

    def late(q, k, v, *gates):
        """Gates act on the token after theirs."""
        return right(q, k, v, *gates[:-1], gates[-1].roll(1, 1))

    assert (fault(late, ("token",), kind=kind) or "").startswith("y is")
    for i, name in enumerate(gradients):

        def lost(q, k, v, *gates, i=i):
            gates = [
                Wrong.apply(x[..., None])[..., 0] if j == i else x for j, x in enumerate(gates)
            ]
            return right(q, k, v, *gates)

        assert name in (fault(lost, ("token",), kind=kind) or "")


def test_one_wrong_element_of_the_normalised_form_alone_is_found():
    """Among 5,000 elements it changes the root mean square by less than bf16 is allowed."""

    def attend(q, k, v, feature_map, normalize):
        y = chunked.attend(q, k, v, feature_map, normalize)
        return one_lost(y) if normalize else y

    long = (2, 200, 3, 16)
    found = list(exactness.numbers("linear", attend, CPU, torch.bfloat16, long, FORM))
    assert [each.right for each in found if each.case.startswith("numbers")] == 4 * [True]
    assert (exactness.first_fault(found) or "").startswith("an element")
    assert (fault(attend) or "").startswith("y is")


def test_a_fault_of_several_segments_alone_is_found():
    def attend(q, k, v, *form):
        y = chunked.attend(q, k, v, *form)
        return one_lost(y) if q.shape[1] == gate.SEGMENTED[1] else y

    assert "y of integers" in (fault(attend) or "")


def test_calls_that_differ_in_the_last_bit_are_found():
    calls = []

    def attend(q, k, v, *form):
        calls.append(0)
        return chunked.attend(q, k, v, *form) * (1 + 1e-6 * (form == FORM) * (len(calls) % 2))

    assert "two calls" in (fault(attend) or "")


def test_what_only_the_compiler_gets_wrong_is_found():
    def attend(q, k, v, *form):
        return chunked.attend(q, k, v, *form) * (2 if torch.compiler.is_compiling() else 1)

    assert fault(attend) is None
    assert (fault(attend, compiled=True) or "").startswith("y is 1 ")


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
