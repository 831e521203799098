"""A new file of ``kernels/linear`` or ``kernels/softmax`` is tested by being there.

It may be at most twice as far from float64 as its definition in plain PyTorch in the dtype that
both were given. test_kernel_forms.py has what is exact.
"""

from importlib.util import find_spec
from itertools import product
from types import SimpleNamespace
from typing import Any

import gradient_error
import pytest
import torch
from attention_definitions import linear_product, softmax_product
from conftest import refused
from kernel_device import distance, outcome, poisoned

from lmscaling import kernels, registry
from lmscaling.errors import UserError
from lmscaling.kernels import decode
from lmscaling.kernels.chunked_triton import packing
from lmscaling.kernels.feature_maps import FEATURE_MAPS

FIXTURES = poisoned
LINEAR = registry.implementations_of("linear")
LACKS_FLASH4 = torch.cuda.is_available() and not find_spec("flash_attn")
SOFTMAX = [n for n in registry.implementations_of("softmax") if n != "flash4" or not LACKS_FLASH4]
SINGLE, HALF = torch.float32, torch.bfloat16
with_any = pytest.mark.parametrize(
    ("kind", "name"), [("linear", n) for n in LINEAR] + [("softmax", n) for n in SOFTMAX]
)
PRODUCTS = {"linear": linear_product, "softmax": softmax_product}
OPTIONS = {"linear": ("softplus", True), "softmax": ()}
# B, T, H, K, V: lengths that no chunk divides, odd numbers of heads, widths that differ.
SHAPES = [(2, 1, 3, 16, 16), (1, 63, 5, 16, 24), (2, 80, 1, 24, 64)]
LONG = (1, 1000, 3, 64, 16)
MAPS = [(name, normalize) for name in FEATURE_MAPS for normalize in (True, False)]
NEAR = [
    ("linear", n, SHAPES[(i + j) % 3], MAPS[(3 * i + 2 * j + (j > 3)) % 8], (SINGLE, HALF)[j % 2])
    for i, n in enumerate(LINEAR) for j in range(6 if n.startswith("chunked") else 3)
] + [
    ("linear", n, LONG, OPTIONS["linear"], HALF) for n in LINEAR if n not in ("attention", "state")
] + [
    ("softmax", n, shape, (), (SINGLE, HALF)[(i + j) % 2])
    for i, n in enumerate(SOFTMAX) for j, shape in enumerate([*SHAPES, LONG])
]  # fmt: skip


def arguments(shape, dtype, device="cpu", options=()):
    B, T, H, K, V = shape
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(B, T, H, width) for width in (K, K, V, V))
    if options == ("identity", True):  # they are weights by themselves
        q, k = q.abs() + 0.1, k.abs() + 0.1
    return [x.to(device, dtype) for x in (q, k, v, g)]


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)][: 1 + torch.cuda.is_available()]
)
@pytest.mark.parametrize(("kind", "name", "shape", "options", "dtype"), NEAR)
def test_it_is_as_near_to_its_definition_as_pytorch(kind, name, shape, options, dtype, device):
    """The norm of the error is at most twice that of the definition, and a rounding of the result.
    A single token's dq and dk are differences of equal terms, so any float32 noise will do."""
    if (kind, device) == ("softmax", "cuda"):
        shape = (*shape[:3], 64, 64)  # what the fused back ends take
    given = arguments(shape, dtype, device, options)
    attend, plain = kernels.load(kind, name), PRODUCTS[kind]
    assert attend(*given[:3], *options).dtype == dtype
    exact = outcome(plain, [x.double() for x in given], *options)
    theirs, ours = (outcome(f, given, *options) for f in (plain, attend))
    noise = 1e-6 * given[3].double().norm().item() if shape[1] == 1 else 0.0
    for a, b, c in zip(ours, theirs, exact, strict=True):  # y, dq, dk, dv
        rounding = torch.finfo(dtype).eps * c.norm().item() + noise
        assert distance(a, c) <= 2 * distance(b, c) + rounding


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["flash", "cudnn"])
def test_a_gpu_computes_softmax_by_the_back_end_that_was_asked_for(name, compiled):
    torch.use_deterministic_algorithms(False)
    attend = kernels.load("softmax", name)
    if compiled:
        attend = torch.compile(attend, fullgraph=True, dynamic=False)
    given = arguments((2, 128, 3, 64, 64), HALF, "cuda")
    outcome(attend, given)
    with torch.profiler.profile() as profile:
        outcome(attend, given)
    ran = {event.key for event in profile.key_averages()}
    asked = f"aten::_scaled_dot_product_{name}_attention"
    assert {asked, f"{asked}_backward"} <= ran


Q = torch.ones(2, 4, 3, 8)
REFUSED = [
    ((Q[0], Q, Q), ("q", "(4, 3, 8)")), ((Q, Q.half(), Q), ("k", "float16", "bfloat16")),
    ((Q, Q.double(), Q), ("k", "float64", "float32")), ((Q, Q, Q.to("meta")), ("q", "cpu", "meta")),
    ((Q, Q[..., :7], Q), ("(2, 4, 3, 8)", "(2, 4, 3, 7)")),
    ((Q, Q, Q[:, :3]), ("v", "(2, 3, 3, 8)", "(2, 4, 3)")),
    ((Q, Q, Q[..., :0]), ("v", "(2, 4, 3, 0)")), ((Q[:, :0],) * 3, ("v", "(2, 0, 3, 8)")),
]  # fmt: skip


@with_any
def test_all_refuse_the_same(kind, name):
    attend, options = kernels.load(kind, name), OPTIONS[kind]
    for qkv, values in REFUSED:
        with refused(ValueError, *values):
            attend(*qkv, *options)
    with refused(UserError, "'flahs'", "chunked" if kind == "linear" else "flash"):
        kernels.load(kind, "flahs")
    if kind == "linear":
        with refused(ValueError, "'elu+'", "'elu+1'", "softplus"):
            attend(Q, Q, Q, "elu+", True)
    for chunk in (0, -64, 48, 100) if kernels.takes_chunk(attend) else ():
        with refused(ValueError, "chunk", chunk):
            attend(Q, Q, Q, "softplus", True, chunk)


def test_the_decoding_kernel_refuses_a_state_that_it_cannot_update(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(kernels, "on_triton_device", lambda x: True)
    q, k, v = (torch.zeros(2, 3, width) for width in (8, 8, 4))
    kv, k_sum = torch.zeros(2, 3, 8, 4), torch.zeros(2, 3, 8)
    for state, *values in (
        ((kv.bfloat16(), k_sum), "kv_BHKV", "bfloat16", "float32"),
        ((kv[..., :3], k_sum), "kv_BHKV", "(2, 3, 8, 3)", "(2, 3, 8, 4)"),
        ((kv.mT.contiguous().mT, k_sum), "kv_BHKV", "not contiguous"),
        ((kv, k_sum[:1]), "k_sum_BHK", "(1, 3, 8)", "(2, 3, 8)"),
    ):
        with refused(ValueError, *values):
            decode.step(q, k, v, *state, "softplus", True)


def test_views_of_a_projection_are_not_copied_and_other_tensors_are_packed_in_order():
    """Both keep their gradients."""
    for leading, heads, wanted in product([(2, 5), (1, 5), (2, 1)], [1, 3], [True, False]):
        row_BTW = torch.randn(*leading, 3 * heads * 4, requires_grad=wanted)
        packed = packing.packed(*row_BTW.unflatten(-1, (3, heads, -1)).unbind(2))
        assert torch.equal(packed, row_BTW)
        assert packed.data_ptr() == row_BTW.data_ptr()
        assert packed.requires_grad == wanted
        if wanted:
            assert torch.autograd.grad(packed.sum(), row_BTW)[0].eq(1).all()
    q, k, v = torch.randn(2, 5, 3 * 2 * 4).unflatten(-1, (3, 2, -1)).unbind(2)
    leaves = [x.requires_grad_() for x in torch.randn(2, 5, 3, 2, 4).unbind(2)]
    for parts in (
        (k, q, v), (q, k, v + 1), (q, q, v), (q.flip(1), k.flip(1), v.flip(1)), leaves,
        leaves[::-1], (q, *leaves[1:]),
    ):  # fmt: skip
        made = packing.packed(*parts)
        assert torch.equal(made, torch.cat([x.flatten(2) for x in parts], -1))
        if inputs := [x for x in parts if x.requires_grad]:
            assert all(g.eq(1).all() for g in torch.autograd.grad(made.sum(), inputs))


@pytest.mark.parametrize(
    ("capability", "hip", "runs"),
    [((7, 5), None, False), ((8, 0), None, True), ((9, 0), None, True), ((7, 0), "6", True)],
)
def test_a_gpu_without_bfloat16_products_gets_plain_pytorch_and_a_warning(
    capability, hip, runs, monkeypatch, recwarn
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    monkeypatch.setattr(torch.version, "hip", hip)
    on_gpu: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))
    assert kernels.on_triton_device(on_gpu) is runs
    said = [str(w.message) for w in recwarn]
    assert len(said) == (not runs)
    assert all(word in text for text in said for word in ("Tesla T4", "7.5", "8.0"))
    assert not kernels.on_triton_device(torch.zeros(1))


def test_a_compiler_takes_the_answer_about_a_device_for_a_constant():
    asked = []
    answer = kernels.constant(lambda number: bool(asked.append(number)))

    @torch.compile(backend="eager", fullgraph=True)
    def chosen(x):
        return x + 1 if answer(0) else x - 1

    assert [chosen(torch.zeros(1)).item() for _ in range(3)] == [-1, -1, -1]
    assert len(asked) == 1


def test_an_implementation_that_fails_is_a_row_and_a_fault_of_the_machine_is_none(monkeypatch):
    load = kernels.load

    def compared(error):

        def fail(*_):
            raise error

        chosen = {("linear", "chunked"): fail}
        monkeypatch.setattr(kernels, "load", lambda *way: chosen.get(way) or load(*way))
        found = gradient_error.compared(*torch.randn(4, 1, 4, 1, 8).bfloat16())
        return {row["implementation"]: row for row in found}

    for kind, status in ((RuntimeError, "failed"), (torch.OutOfMemoryError, "oom")):
        found = compared(kind("no plan\nmore"))
        broken = found.pop("chunked")
        assert (broken["status"], broken["message"]) == (status, "no plan")
        assert len(found) >= 3
        assert {row["status"] for row in found.values()} == {"done"}
    with pytest.raises(RuntimeError, match="uncorrectable ECC"):
        compared(RuntimeError("CUDA error: uncorrectable ECC error encountered"))
    # Nor is an error after which the device computes no more.
    monkeypatch.setattr(gradient_error.faults, "is_result", lambda error, device: False)
    with pytest.raises(RuntimeError, match="illegal memory"):
        compared(RuntimeError("CUDA error: an illegal memory access was encountered"))
