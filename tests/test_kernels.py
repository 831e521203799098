"""Every file of ``kernels/linear`` and ``kernels/softmax``; a new one is tested by being there.

All are held against the definition in float64, and may be at most twice as far from it as the
same definition in plain PyTorch in the dtype that they were given.

Legend: B batch, T tokens, H heads, K key width, V value width.
"""

import inspect
import math
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lmscaling import kernels
from lmscaling.errors import UserError
from lmscaling.kernels import decode
from lmscaling.kernels.feature_maps import FEATURE_MAPS, find
from lmscaling.kernels.linear import chunked

LINEAR = kernels.names("linear")
LACKS_FLASH4 = torch.cuda.is_available() and not find_spec("flash_attn")
SOFTMAX = [n for n in kernels.names("softmax") if n != "flash4" or not LACKS_FLASH4]
LOOPS = {"attention": 63, "state": 100}
"""Most tokens for what computes them one after the other; more would take minutes."""
MAPS = [(name, normalize) for name in FEATURE_MAPS for normalize in (True, False)]
SHAPES = [(2, 1, 3, 16, 16), (1, 63, 25, 16, 24), (2, 100, 1, 24, 64), (1, 1000, 3, 64, 16)]
"""B, T, H, K, V: lengths that no chunk divides, odd numbers of heads, widths that differ."""
DTYPES = [torch.float32, torch.bfloat16]

with_any_linear = pytest.mark.parametrize("name", LINEAR)
with_any_map = pytest.mark.parametrize(("feature_map", "normalize"), MAPS)
with_any_linear_and_shape = pytest.mark.parametrize(
    ("name", "shape"),
    [(n, s) for n in LINEAR for s in SHAPES if s[1] <= LOOPS.get(n, 1000)],
    ids=lambda x: x if isinstance(x, str) else "x".join(map(str, x)),
)
with_any_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)][: 1 + torch.cuda.is_available()]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Memory that nobody has written is NaN, so that reading it shows."""

    def fill(make):
        def made(*args, **kwargs):
            x = make(*args, **kwargs)
            return x.fill_(math.nan) if x.is_floating_point() else x

        return made

    for place, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (torch.Tensor, "new_empty"),
    ):
        monkeypatch.setattr(place, name, fill(getattr(place, name)))


def linear(q, k, v, feature_map, normalize):
    """The definition, one T x T product, in the dtype of its arguments."""
    of = find(feature_map).of
    weights = torch.einsum("bthk,bshk->bhts", of(q), of(k)).tril()
    y = torch.einsum("bhts,bshv->bthv", weights, v)
    if normalize:
        y = y / (weights.sum(-1) + find(feature_map).epsilon).transpose(1, 2).unsqueeze(-1)
    return y


def softmax(q, k, v):
    """The definition, one T x T product, in the dtype of its arguments."""
    scores = torch.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[-1])
    later = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return torch.einsum("bhts,bshv->bthv", scores.masked_fill(later, -math.inf).softmax(-1), v)


def arguments(shape, dtype, device="cpu", positive=False):
    """q, k, v and a gradient of y. ``positive``: q and k are weights by themselves."""
    B, T, H, K, V = shape
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(B, T, H, width) for width in (K, K, V, V))
    if positive:
        q, k = q.abs() + 0.1, k.abs() + 0.1
    return q.to(device, dtype), k.to(device, dtype), v.to(device, dtype), g.to(device, dtype)


def forward_backward(attend, arguments, *options):
    """y, dq, dk, dv, all in float64."""
    *qkv, g = (x.detach().requires_grad_() for x in arguments)
    y = attend(*qkv, *options)
    return [x.detach().double() for x in (y, *torch.autograd.grad(y, qkv, g.to(y.dtype)))]


def assert_as_near_as_plain_pytorch(attend, plain, given, *options):
    """The norm of the error is at most twice that of ``plain``, and a rounding of the result.

    A single token's dq and dk are differences of equal terms, so any float32 noise will do there.
    """
    exact = forward_backward(plain, [x.double() for x in given], *options)
    theirs = forward_backward(plain, given, *options)
    ours = forward_backward(attend, given, *options)
    rounding = torch.finfo(given[0].dtype).eps
    noise = 1e-6 * given[3].double().norm() if given[0].shape[1] == 1 else 0.0
    for what, a, b, c in zip(("y", "dq", "dk", "dv"), ours, theirs, exact, strict=True):
        error, allowed = (a - c).norm(), 2 * (b - c).norm() + rounding * c.norm() + noise
        assert error <= allowed, f"{what} is {error:.3g} off; allowed: {allowed:.3g}"


@with_any_dtype
@with_any_map
@with_any_linear_and_shape
def test_linear_is_as_near_to_the_definition_as_plain_pytorch(
    name, shape, feature_map, normalize, dtype, device
):
    given = arguments(shape, dtype, device, positive=feature_map == "identity" and normalize)
    attend = kernels.load("linear", name)
    assert attend(*given[:3], feature_map, normalize).dtype == dtype
    assert_as_near_as_plain_pytorch(attend, linear, given, feature_map, normalize)


@with_any_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_is_as_near_to_the_definition_as_plain_pytorch(name, shape, dtype, device):
    if device == "cuda":
        shape = (*shape[:3], 64, 64)  # what the fused back ends take
    given = arguments(shape, dtype, device)
    attend = kernels.load("softmax", name)
    assert attend(*given[:3]).dtype == dtype
    assert_as_near_as_plain_pytorch(attend, softmax, given)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["flash", "cudnn"])
def test_a_gpu_computes_softmax_by_the_back_end_that_was_asked_for(name, compiled):
    attend = kernels.load("softmax", name)
    if compiled:
        attend = torch.compile(attend, fullgraph=True, dynamic=False)
    given = arguments((2, 128, 3, 64, 64), torch.bfloat16, "cuda")
    forward_backward(attend, given)
    with torch.profiler.profile() as profile:
        forward_backward(attend, given)
    ran = {event.key for event in profile.key_averages()}
    asked = f"aten::_scaled_dot_product_{name}_attention"
    assert {asked, f"{asked}_backward"} <= ran


@with_any_map
@with_any_linear
def test_float64_is_exact_and_its_gradients_are_those_of_finite_differences(
    name, feature_map, normalize
):
    q, k, v, _ = arguments((1, 5, 2, 3, 2), torch.float64, positive=True)
    attend = kernels.load("linear", name)
    exact = linear(q, k, v, feature_map, normalize)
    torch.testing.assert_close(attend(q, k, v, feature_map, normalize), exact, rtol=1e-12, atol=0)
    qkv = [x.requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *x: attend(*x, feature_map, normalize), qkv)


with_any = pytest.mark.parametrize(
    ("kind", "name"), [("linear", n) for n in LINEAR] + [("softmax", n) for n in SOFTMAX]
)
OPTIONS = {"linear": ("softplus", True), "softmax": ()}


@with_any_dtype
@with_any
@pytest.mark.parametrize("cut", [1, 37, 69])
def test_later_tokens_change_no_bit_of_earlier_outputs(kind, name, cut, dtype, device):
    attend, options = kernels.load(kind, name), OPTIONS[kind]
    q, k, v, _ = arguments((1, 70, 3, 16, 16), dtype, device)
    before = attend(q, k, v, *options)[:, :cut]
    for x in (q, k, v):
        x[:, cut:] = 30 * torch.randn_like(x[:, cut:])
    assert torch.equal(attend(q, k, v, *options)[:, :cut], before)


@with_any_dtype
@with_any
def test_views_of_one_packed_projection_give_what_copies_give(kind, name, dtype, device):
    attend, options = kernels.load(kind, name), OPTIONS[kind]
    torch.manual_seed(0)
    packed = torch.randn(2, 63, 3, 5, 16).to(device, dtype).requires_grad_()
    copies = [x.detach().contiguous().requires_grad_() for x in packed.unbind(2)]
    y, same = attend(*packed.unbind(2), *options), attend(*copies, *options)
    torch.testing.assert_close(y, same)
    g = torch.randn_like(y)
    gradient = torch.autograd.grad(y, packed, g)[0].unbind(2)
    torch.testing.assert_close(gradient, torch.autograd.grad(same, copies, g))


@pytest.mark.parametrize("feature_map", ["softplus", "elu+1"])
@with_any_linear
def test_normalised_weights_sum_to_one_and_know_no_scale_of_a_query(name, feature_map, device):
    """So adding to values adds to outputs, gradients of values sum to those of outputs, and a
    query's feature is orthogonal to its gradient."""
    q, k, v, g = arguments((1, 63, 3, 16, 24), torch.float32, device)
    attend = kernels.load("linear", name)
    y, dq, _, dv = forward_backward(attend, [q, k, v, g], feature_map, True)
    shifted = attend(q, k, v + 3, feature_map, True)
    torch.testing.assert_close(shifted.double(), y + 3, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dv.sum(1), g.double().sum(1), rtol=1e-5, atol=1e-5)
    phi = find(feature_map)
    feature = phi.of(q.double())
    along = feature * dq / phi.slope(feature)
    assert along.sum(-1).abs().max() < 1e-5 * along.abs().sum(-1).max()


@with_any_linear
def test_what_is_not_normalised_is_linear_in_values(name, device):
    q, k, v, u = arguments((1, 63, 3, 16, 24), torch.float32, device)
    attend = kernels.load("linear", name)
    both = attend(q, k, v + 2 * u, "relu", False)
    parts = attend(q, k, v, "relu", False) + 2 * attend(q, k, u, "relu", False)
    torch.testing.assert_close(both, parts, rtol=1e-4, atol=1e-3)


CHUNKED = [n for n in LINEAR if "chunk" in inspect.signature(kernels.load("linear", n)).parameters]


@pytest.mark.parametrize("T", [1, 63, 64, 300])
@pytest.mark.parametrize("name", CHUNKED)
def test_the_chunk_changes_nothing_but_rounding(name, T, device):
    given = arguments((1, T, 3, 16, 24), torch.float32, device)
    attend = kernels.load("linear", name)
    expected = forward_backward(attend, given, "softplus", True)
    for chunk in (16, 32, 64, 128, 256):
        found = forward_backward(attend, given, "softplus", True, chunk)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunk", [0, -64, 48, 100])
@pytest.mark.parametrize("name", CHUNKED)
def test_a_chunk_that_is_no_power_of_two_is_refused(name, chunk):
    q, k, v, _ = arguments((1, 4, 1, 16, 16), torch.float32)
    with pytest.raises(ValueError, match=rf"^chunk is {chunk}; allowed: .*"):
        kernels.load("linear", name)(q, k, v, "softplus", True, chunk)


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_a_slope_from_the_feature_is_that_of_autograd(name):
    phi = find(name)
    for dtype in (torch.float32, torch.float64):
        x = torch.linspace(-15, 15, 200, dtype=dtype, requires_grad=True)
        feature = phi.of(x)
        (exact,) = torch.autograd.grad(feature.sum(), x)
        # Far below zero elu + 1 has lost its digits already.
        atol = 1e-7 if name == "elu+1" else 0.0
        torch.testing.assert_close(phi.slope(feature), exact, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@with_any_map
def test_a_prompt_and_steps_give_what_the_whole_sequence_gives(
    feature_map, normalize, dtype, device
):
    q, k, v, _ = arguments((2, 70, 3, 16, 24), dtype, device, positive=feature_map == "identity")
    exact = linear(q.double(), k.double(), v.double(), feature_map, normalize)
    whole = decode.prefill(k, v, feature_map)
    # Sums in the state's dtype, then one rounding.
    allowed = 16 * torch.finfo(whole[0].dtype).eps + torch.finfo(dtype).eps / 2
    for prompt in (0, 1, 40):
        kv, k_sum = decode.prefill(k[:, :prompt], v[:, :prompt], feature_map)
        assert kv.dtype == k_sum.dtype == torch.promote_types(dtype, torch.float32)
        for t in range(prompt, 70):
            y = decode.step(q[:, t], k[:, t], v[:, t], kv, k_sum, feature_map, normalize)
            assert y.dtype == dtype
            assert (y - exact[:, t]).norm() <= allowed * exact[:, t].norm()
        # The state that steps leave is that of a longer prompt, as far as it is used.
        torch.testing.assert_close(kv, whole[0])
        if normalize:
            torch.testing.assert_close(k_sum, whole[1])


Q = torch.ones(2, 4, 3, 8)
REFUSED = [
    ((Q[0], Q, Q), r"q has shape \(4, 3, 8\); allowed: 4 axes, \[B, T, H, K\]"),
    ((Q, Q.half(), Q), "k is float16; allowed: float32, float64, bfloat16"),
    (
        (Q, Q.double(), Q),
        r"k is torch.float64 on cpu and v is torch.float32 on cpu; allowed: the same dtype",
    ),
    ((Q, Q, Q.to("meta")), r"q is torch.float32 on cpu and v is torch.float32 on meta; allowed: "),
    ((Q, Q[..., :7], Q), r"q has shape \(2, 4, 3, 8\) and k \(2, 4, 3, 7\); allowed: equal shapes"),
    ((Q, Q, Q[:, :3]), r"v has shape \(2, 3, 3, 8\); allowed: \(2, 4, 3\) and any width"),
    ((Q, Q, Q[..., :0]), r"v has shape \(2, 4, 3, 0\); allowed: at least one sequence, token"),
    ((Q[:, :0],) * 3, r"v has shape \(2, 0, 3, 8\); allowed: at least one sequence, token"),
]


@pytest.mark.parametrize(("qkv", "sentence"), REFUSED)
@with_any
def test_all_refuse_the_same_in_one_sentence(kind, name, qkv, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        kernels.load(kind, name)(*qkv, *OPTIONS[kind])


@with_any_linear
def test_an_unknown_feature_map_lists_the_known(name):
    sentence = (
        r"^feature map 'elu\+' is not known; nearest is 'elu\+1'; allowed: softplus, elu\+1, "
    )
    with pytest.raises(ValueError, match=sentence):
        kernels.load("linear", name)(Q, Q, Q, "elu+", True)


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_an_unknown_implementation_lists_the_known(kind):
    with pytest.raises(UserError, match=r"^implementation 'flahs' has no file; .*allowed: \w+, "):
        kernels.load(kind, "flahs")


def test_packing_takes_the_projection_itself_and_never_loses_a_gradient():
    projection = torch.randn(2, 5, 3, 2, 4)
    assert chunked.packed(*projection.unbind(2)).data_ptr() == projection.data_ptr()
    projection.requires_grad_()
    whole = chunked.packed(*projection.unbind(2))
    assert whole.data_ptr() == projection.data_ptr()
    (gradient,) = torch.autograd.grad(whole.sum(), projection)
    assert torch.equal(gradient, torch.ones_like(projection))
    assert not chunked.packed(*projection.detach().unbind(2)).requires_grad
    leaves = [x.requires_grad_() for x in torch.randn(2, 5, 3, 2, 4).unbind(2)]
    gradients = torch.autograd.grad(chunked.packed(*leaves).sum(), leaves)
    assert all(torch.equal(g, torch.ones_like(g)) for g in gradients)
    other = torch.randn(2, 5, 2, 4)
    for arguments in ((leaves[1], leaves[0], leaves[2]), (other, *leaves[1:])):
        expected = torch.cat([x.flatten(2) for x in arguments], -1)
        assert torch.equal(chunked.packed(*arguments), expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda kv, z: (kv.bfloat16(), z), "kv_BHKV is .*torch.bfloat16.*allowed: .*torch.float32"),
        (lambda kv, z: (kv[..., :3], z), r"kv_BHKV is \(2, 3, 8, 3\).*allowed: \(2, 3, 8, 4\)"),
        (lambda kv, z: (kv.mT.contiguous().mT, z), "kv_BHKV is .*not contiguous; allowed"),
        (lambda kv, z: (kv, z[:1]), r"k_sum_BHK is \(1, 3, 8\).*allowed: \(2, 3, 8\)"),
    ],
)
def test_the_decoding_kernel_refuses_a_state_that_it_cannot_update(change, words):
    pytest.importorskip("triton", reason="Triton is not installed")
    from lmscaling.kernels.chunked_triton.decode import step

    q, k, v = (torch.zeros(2, 3, width) for width in (8, 8, 4))
    kv, k_sum = change(torch.zeros(2, 3, 8, 4), torch.zeros(2, 3, 8))
    with pytest.raises(ValueError, match=words):
        step(q, k, v, kv, k_sum, "softplus", True)


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
    said = "Tesla T4 has compute capability 7.5 and the Triton kernels need 8.0: plain PyTorch"
    assert [said in str(w.message) for w in recwarn] == ([] if runs else [True])
    assert not kernels.on_triton_device(torch.zeros(1))


def test_asking_for_the_device_does_not_break_a_compiled_graph(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")

    @torch.compile(backend="eager", fullgraph=True)
    def chosen(x):
        return x + 1 if kernels._runs_triton(0) else x - 1

    with pytest.warns(UserWarning, match="plain PyTorch"):
        assert chosen(torch.zeros(1)).item() == -1
