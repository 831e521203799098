"""What the kernels of the gated delta rule compute, in Triton's interpreter or on a CUDA device.

Run by test_delta.py in processes of their own, since the interpreter must be chosen before triton
is imported. Every tensor that the code under test allocates is filled with NaN first.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from delta_rule import Lengths, distances, outcome, recurrence, sample
from torch import Tensor

from lmscaling.kernels.delta_triton import op
from lmscaling.kernels.gated_delta import chunked

DEVICE = "cuda"
if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreter  # noqa: F401  # mends bfloat16 and products

    DEVICE = "cpu"

SIZES: list[tuple[Lengths, int, int, int]] = [
    # tokens of each segment, H, K, V
    ([[1]], 1, 16, 16),
    ([[32], [32]], 1, 24, 16),
    ([[33, 1, 6], [40]], 2, 20, 40),
    ([[70]], 1, 64, 80),
]
DECAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "-20": lambda g: g * 0 - 20,
    "-200": lambda g: g * 0 - 200,
    "0": lambda g: g * 0,
    "-80 once": lambda g: torch.cat([g[:, :9], g[:, 9:10] * 0 - 80, g[:, 10:]], 1),
}


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty tensors hold NaN, so that what is not written is seen."""
    empty_like, new_empty = torch.empty_like, Tensor.new_empty

    def poisoned(x: Tensor) -> Tensor:
        return x.fill_(float("nan")) if x.is_floating_point() else x

    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poisoned(empty_like(*a, **k)))
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: poisoned(new_empty(*a, **k)))


def kernels(lengths: Lengths | None, scale: float) -> Callable[..., tuple[Tensor, ...]]:
    """y and the final states by the kernels; without lengths, each sequence is a segment."""

    def attend(*tensors: Tensor | None) -> tuple[Tensor, ...]:
        return op.delta(*tensors, [n for row in lengths or () for n in row], scale)[:2]

    return attend


def furthest(lengths: Lengths, tensors: list[Any]) -> float:
    """The distance of the results of the kernels to the recurrence in float64."""
    moved = [x if x is None else x.to(DEVICE) for x in tensors]
    found = outcome(kernels(lengths, 0.3), moved)
    exact = outcome(recurrence(lengths, 0.3), [x if x is None else x.double() for x in moved])
    every = distances(found, exact)
    assert len(every) == sum(x is not None for x in tensors)
    return max(x if x == x else float("inf") for x in every.values())


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 3e-6), (torch.bfloat16, 0.01)])
def test_numbers_are_those_of_the_recurrence(
    dtype: torch.dtype, bound: float, size: tuple[Lengths, int, int, int]
) -> None:
    if not op.takes(dtype, *size[2:]):
        size = (*size[:2], op.WIDEST_FLOAT32, op.WIDEST_FLOAT32 - 8)
    assert furthest(size[0], sample(*size, dtype)) <= bound


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("gate", [True, False])
def test_numbers_are_those_of_the_recurrence_at_any_beta(gate: bool, beta: float) -> None:
    tensors: list[Any] = list(sample([[70]], 1, 16, 16, torch.float32))
    tensors[3] = torch.full_like(tensors[3], beta)
    tensors[4] = tensors[4] if gate else None
    assert furthest([[70]], tensors) <= 3e-6


@pytest.mark.parametrize("decay", DECAYS)
def test_numbers_are_those_of_the_recurrence_at_strong_decays(decay: str) -> None:
    """One of -80 costs the sums after it, and so their exponentials, three digits of float32."""
    tensors = sample([[70]], 1, 16, 16, torch.float32)
    tensors[4] = DECAYS[decay](tensors[4])
    assert furthest([[70]], tensors) <= 3e-5


def test_numbers_are_those_of_the_recurrence_for_equal_keys() -> None:
    """Powers of L have elements of 10^14 here, and its inverse elements of 2."""
    tensors: list[Any] = list(sample([[64]], 1, 16, 16, torch.float32))
    tensors[1] = tensors[1][:, :1].expand_as(tensors[1]).clone()
    tensors[3], tensors[4] = torch.full_like(tensors[3], 2.0), None
    assert furthest([[64]], tensors) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_bits_for_segments_and_for_sequences_of_their_own(dtype: torch.dtype) -> None:
    lengths = [[40, 1, 32]]
    tensors = [x.to(DEVICE) for x in sample(lengths, 1, 20, 16, dtype)]
    together = outcome(kernels(lengths, 0.3), tensors)
    states = ("initial", "dfinal", "final", "dinitial")
    inputs = dict(
        zip(("q", "k", "v", "beta", "g", "initial", "dy", "dfinal"), tensors, strict=True)
    )
    first = 0
    for i, n in enumerate(lengths[0]):

        def own(name: str, x: Tensor, i: int = i, here: slice = slice(first, first + n)) -> Tensor:
            return x[i : i + 1] if name in states else x[:, here]

        alone = outcome(kernels(None, 0.3), [own(name, x) for name, x in inputs.items()])
        for name, x in together.items():
            assert torch.equal(own(name, x), alone[name]), name
        first += n


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_bits_whatever_comes_later(dtype: torch.dtype) -> None:
    tensors = [x.to(DEVICE) for x in sample([[70]], 1, 16, 16, dtype)]
    before, _ = kernels(None, 0.3)(*tensors[:6])
    changed = [x.clone() for x in tensors[:6]]
    for x, value in zip(changed, (-7.0, 3.0, 100.0, 1.5, -5.0), strict=False):
        x[:, 37:] = value
    after, _ = kernels(None, 0.3)(*changed)
    assert torch.equal(before[:, :37], after[:, :37])
    assert not torch.equal(before[:, 37:], after[:, 37:])


def test_same_numbers_of_views_and_of_their_copies() -> None:
    tensors = [x.to(DEVICE) for x in sample([[40], [40]], 2, 16, 16, torch.float32)]
    views = [*torch.stack(tensors[:3], 2).unbind(2), *tensors[3:]]
    views[6] = views[6].transpose(1, 2).contiguous().transpose(1, 2)
    assert not views[0].is_contiguous()
    one, other = (outcome(kernels(None, 0.3), x) for x in (tensors, views))
    assert all(torch.equal(x, other[name]) for name, x in one.items())


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 0.01)])
def test_same_numbers_one_token_at_a_time(dtype: torch.dtype, bound: float) -> None:
    tensors = [x.to(DEVICE) for x in sample([[40], [40]], 2, 24, 16, dtype)]
    whole, final = kernels(None, 0.3)(*tensors[:6])
    _, state = kernels(None, 0.3)(*(x[:, :35] for x in tensors[:5]), tensors[5])
    for t in range(35, 40):
        q, k, v, beta, g = (x[:, t] for x in tensors[:5])
        y = chunked.step(q, k, v, beta, g, state, 0.3)
        assert (y - whole[:, t]).norm() <= bound * whole[:, t].norm()
    assert (state - final).norm() <= bound * final.norm()


@pytest.mark.parametrize(("gate", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_operator_is_what_pytorch_asks_of_one(
    gate: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # PyTorch's own checks compare what empty tensors hold
    lengths = [[3, 2], [5]]
    tensors = [x.to(DEVICE).requires_grad_() for x in sample(lengths, 1, 16, 24, dtype)[:6]]
    given = tensors if gate else [*tensors[:4], None, None]
    tokens = [3, 2, 5] if gate else []
    torch.library.opcheck(torch.ops.lmscaling.delta.default, (*given, tokens, 0.3))


def test_operator_compiles_into_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    tensors = [x.to(DEVICE) for x in sample([[40]], 1, 16, 16, torch.float32)]
    attend = kernels(None, 0.3)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    one, other = (outcome(f, tensors) for f in (attend, compiled))
    assert all(torch.equal(x, other[name]) for name, x in one.items())
