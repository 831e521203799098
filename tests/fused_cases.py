"""What the fused kernels compute, in Triton's interpreter or, without it, on a CUDA device.

Run by test_fused.py in processes of their own, since the interpreter must be chosen before triton
is imported. Every tensor that the code under test allocates is filled with NaN first.
"""

import os

import pytest
import torch
from torch import Tensor

from lmscaling.attention.linear import Attention
from lmscaling.kernels import State, feature_maps, functional
from lmscaling.kernels.chunked_triton import decode, launch, op
from lmscaling.kernels.chunked_triton.plan import Config, Plan, Shape
from lmscaling.kernels.linear import chunked
from lmscaling.kernels.rotary import Rotary, unrotated

DEVICE = "cuda"
if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreter  # noqa: F401  # mends bfloat16 and products

    DEVICE = "cpu"

# Rows behind the last token are computed and not written; there a sum of weights can be zero.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

Kind = tuple[str, bool]
Size = tuple[int, int, int, int, int]
KINDS = [(phi, normalize) for phi in feature_maps.FEATURE_MAPS for normalize in (True, False)]
SIZES: list[Size] = [
    # B, T, H, K, V
    (1, 1, 1, 16, 16),
    (2, 17, 3, 24, 24),
    (1, 17, 5, 16, 16),
    (1, 63, 1, 32, 16),
    (1, 100, 1, 16, 48),
    (1, 200, 1, 64, 64),
]
CASES = [
    pytest.param(kind, SIZES[n % 6], id="-".join(map(str, (*kind, *SIZES[n % 6]))))
    for i, kind in enumerate(KINDS)
    for n in (i // 2 + 3 * kind[1], i // 2 + 3 * kind[1] + 2)
]
"""Two sizes for each kind; each size with and without division."""

BOTH_WAYS = pytest.mark.parametrize("one_pass", [False, True], ids=["two_kernels", "one_kernel"])


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty tensors hold NaN, so that what is not written is seen."""
    empty_like, new_empty = torch.empty_like, Tensor.new_empty

    def poisoned(x: Tensor) -> Tensor:
        return x.fill_(float("nan")) if x.is_floating_point() else x

    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poisoned(empty_like(*a, **k)))
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: poisoned(new_empty(*a, **k)))


def sample(
    B: int, T: int, H: int, K: int, V: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and the gradient of y."""
    seeded = torch.Generator().manual_seed(B + T + H + K + V)

    def normal(width: int) -> Tensor:
        return torch.randn(B, T, H, width, generator=seeded).to(DEVICE, dtype)

    return normal(K), normal(K), normal(V), normal(V)


def pack(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    return torch.cat([x.flatten(2) for x in (q_BTHK, k_BTHK, v_BTHV)], -1)


def unpack(qkv_BTW: Tensor, shape: Shape) -> list[Tensor]:
    widths = [shape.heads * width for width in (shape.key, shape.key, shape.value)]
    return [x.unflatten(-1, (shape.heads, -1)) for x in qkv_BTW.split(widths, -1)]


def plan(chunk: int, segments: int = 1, one_pass: bool = False) -> Plan:
    config = Config(chunk=chunk)
    roles = dict.fromkeys(("forward", "backward", "backward_q", "backward_kv", "sums"), config)
    return Plan(**roles, segments=segments, one_pass=one_pass)


def fused(
    qkv_BTW: Tensor, dy_BTHV: Tensor, shape: Shape, chosen: Plan
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, dq, dk, dv of the kernels."""
    made = launch.forward(qkv_BTW, shape, chosen, keep=chosen.one_pass)
    dqkv_BTW = launch.backward(qkv_BTW, dy_BTHV, made, shape, chosen).dqkv_BTW
    dq, dk, dv = unpack(dqkv_BTW, shape)
    return made.y_BTHV, dq, dk, dv


def quadratic(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, dy_BTHV: Tensor, shape: Shape
) -> list[Tensor]:
    """y, dq, dk, dv from all pairs of tokens, by autograd, in the dtype of the arguments."""
    phi = feature_maps.find(shape.feature_map)
    inputs = [x.detach().requires_grad_() for x in (q_BTHK, k_BTHK, v_BTHV)]
    a_BHTS = torch.einsum("bthk,bshk->bhts", phi.of(inputs[0]), phi.of(inputs[1])).tril()
    y_BTHV = torch.einsum("bhts,bshv->bthv", a_BHTS, inputs[2])
    if shape.normalize:
        y_BTHV = y_BTHV / (a_BHTS.sum(-1) + phi.epsilon).transpose(1, 2).unsqueeze(-1)
    return [y_BTHV.detach(), *torch.autograd.grad(y_BTHV, inputs, dy_BTHV)]


def distance(x: Tensor, y: Tensor) -> float:
    return torch.linalg.vector_norm(x.double() - y.double()).item()


@BOTH_WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "size"), CASES)
def test_numbers_are_as_near_to_float64_as_those_of_plain_pytorch(
    kind: Kind, size: Size, dtype: torch.dtype, one_pass: bool
) -> None:
    """At most twice as far as all pairs of tokens in the same dtype.

    One unit of rounding is added, of the result and of the terms whose sum it is: a single token's
    gradients by query and key are differences that are zero.
    """
    shape = Shape(heads=size[2], key=size[3], value=size[4], feature_map=kind[0], normalize=kind[1])
    q, k, v, dy = sample(*size, dtype)
    if kind == ("identity", True):
        q, k = q.abs(), k.abs()  # weights of both signs can sum to zero, and nothing is near then
    found = fused(pack(q, k, v), dy, shape, plan(32, one_pass=one_pass))
    exact = quadratic(q.double(), k.double(), v.double(), dy.double(), shape)
    plain = quadratic(q, k, v, dy, shape)
    unit = torch.finfo(dtype).eps / 2
    terms = torch.linalg.vector_norm(dy.double() * v.double()).item()
    for name, x, true, yardstick in zip(("y", "dq", "dk", "dv"), found, exact, plain, strict=True):
        allowed = 2 * distance(yardstick, true) + unit * (true.double().norm().item() + terms)
        assert x.dtype == dtype, name
        assert distance(x, true) <= allowed, name


def test_numbers_are_as_near_to_float64_with_rotated_positions_as_without() -> None:
    """In bfloat16, of the complete attention between its projections; at most 1.3 times as far."""
    seeded = torch.Generator().manual_seed(0)
    qkv = torch.randn(1, 512, 3, 1, 64, generator=seeded)
    qkv[:, :, 2] += 3 * torch.randn(64, generator=seeded)
    dy = torch.randn(1, 512, 1, 64, generator=seeded).to(DEVICE, torch.bfloat16)
    given = qkv.to(DEVICE, torch.bfloat16).flatten(2)

    def kernel(q: Tensor, k: Tensor, v: Tensor, phi: str, normalize: bool) -> Tensor:
        assert q.dtype == k.dtype == v.dtype == torch.bfloat16
        return op.chunked(chunked.packed(q, k, v), 1, 64, phi, normalize)[0]

    errors = []
    for rotate in (unrotated, Rotary(64)):
        mixes = []
        for attend, dtype in ((kernel, torch.bfloat16), (chunked.attend, torch.float64)):
            layer = Attention(64, 1, rotate)
            layer._implementation, layer._attend, layer._takes_chunk = "kernel", attend, False
            leaf = given.to(dtype).requires_grad_()
            y = layer._mix(leaf)
            gradient = torch.autograd.grad(y, leaf, dy.to(dtype))[0]
            mixes.append((y.detach(), *gradient.chunk(3, -1)))
        pairs = zip(*mixes, strict=True)
        errors.append([distance(x, true) / true.norm().item() for x, true in pairs])
    for plain, rotated in zip(*errors, strict=True):
        assert rotated <= 1.3 * plain


@BOTH_WAYS
@pytest.mark.parametrize(
    ("chunk", "segments", "normalize"),
    [(16, 1, True), (64, 1, False), (16, 2, False), (16, 3, True), (32, 3, False), (64, 2, True)],
)
def test_same_numbers_at_any_chunk_and_number_of_segments(
    chunk: int, segments: int, normalize: bool, one_pass: bool
) -> None:
    shape = Shape(heads=1, key=24, value=16, feature_map="softplus", normalize=normalize)
    q, k, v, dy = sample(2, 100, 1, 24, 16)
    one = fused(pack(q, k, v), dy, shape, plan(32))
    other = fused(pack(q, k, v), dy, shape, plan(chunk, segments, one_pass))
    for x, y in zip(one, other, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_same_numbers_of_packed_rows_that_lie_apart() -> None:
    shape = Shape(heads=3, key=16, value=24, feature_map="elu+1", normalize=True)
    q, k, v, dy = sample(2, 40, 3, 16, 24, torch.bfloat16)
    together = pack(q, k, v)
    apart = torch.full(
        (2, 43, together.shape[2] + 5), float("nan"), dtype=torch.bfloat16, device=DEVICE
    )
    apart = apart[:, 2:42, 3:-2].copy_(together)
    for x, y in zip(
        fused(together, dy, shape, plan(16)), fused(apart, dy, shape, plan(16)), strict=True
    ):
        assert torch.equal(x, y)


def test_same_numbers_of_sequences_that_lie_four_gigabytes_apart() -> None:
    """Memory between them is reserved but not touched."""
    shape = Shape(heads=1, key=16, value=16, feature_map="softplus", normalize=True)
    q, k, v, dy = sample(2, 20, 1, 16, 16, torch.bfloat16)
    together, stride = pack(q, k, v), 2**31 + 16
    reserved = torch.empty(stride + together[0].numel(), dtype=torch.bfloat16, device=DEVICE)
    apart = reserved.as_strided(together.shape, (stride, *together.stride()[1:])).copy_(together)
    for x, y in zip(
        fused(together, dy, shape, plan(16)), fused(apart, dy, shape, plan(16)), strict=True
    ):
        assert torch.equal(x, y)


@pytest.mark.parametrize("segments", [1, 2])
def test_same_bits_whatever_comes_later(segments: int) -> None:
    shape = Shape(heads=1, key=16, value=16, feature_map="softplus", normalize=True)
    q, k, v, dy = sample(1, 70, 1, 16, 16, torch.bfloat16)
    y, dq, _, _ = fused(pack(q, k, v), dy, shape, plan(16, segments))
    for x in (q, k, v, dy):
        x[:, 37:] *= -100
    other_y, other_dq, _, _ = fused(pack(q, k, v), dy, shape, plan(16, segments))
    assert torch.equal(y[:, :37], other_y[:, :37])
    assert torch.equal(dq[:, :37], other_dq[:, :37])


@BOTH_WAYS
def test_same_error_of_dq_at_4096_tokens_whatever_the_mean_of_the_values(one_pass: bool) -> None:
    """1 %, where a state that is not centred gives 20 % at a mean of three standard deviations."""
    shape = Shape(heads=1, key=64, value=64, feature_map="softplus", normalize=True)
    q, k, v, dy = sample(1, 4096, 1, 64, 64)
    v = v + 3 * torch.randn(64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    q, k, v, dy = (x.bfloat16() for x in (q, k, v, dy))
    found = fused(pack(q, k, v), dy, shape, plan(64, one_pass=one_pass))
    inputs = [x.double().requires_grad_() for x in (q, k, v)]
    y = chunked.attend(inputs[0], inputs[1], inputs[2], "softplus", True)
    exact = [y.detach(), *torch.autograd.grad(y, inputs, dy.double())]
    for x, true in zip(found, exact, strict=True):
        assert distance(x, true) <= 0.01 * true.norm().item()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-7)])
def test_same_numbers_one_token_at_a_time(
    dtype: torch.dtype, tolerance: float, normalize: bool
) -> None:
    shape = Shape(heads=2, key=24, value=16, feature_map="softplus", normalize=normalize)
    q, k, v, _ = sample(2, 40, 2, 24, 16, dtype)
    whole = launch.forward(pack(q, k, v), shape, plan(32)).y_BTHV
    state = launch.state(pack(q, k, v)[:, :35], shape, plan(16, 2))
    for t in range(35, 40):
        y = decode.step(q[:, t], k[:, t], v[:, t], *state, "softplus", normalize)
        assert distance(y, whole[:, t]) <= tolerance * whole[:, t].double().norm().item()
    kv, k_sum = launch.state(pack(q, k, v), shape, plan(32))
    torch.testing.assert_close(state[0], kv)
    if normalize:
        torch.testing.assert_close(state[1], k_sum)


@pytest.mark.parametrize("normalize", [True, False])
def test_same_numbers_one_token_at_a_time_with_gates(normalize: bool) -> None:
    q, k, v, _ = sample(2, 20, 2, 24, 16)
    g = -torch.rand(2, 20, 2, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    y_BTHV, last = functional._plain(q, k, v, "softplus", normalize, g, None, ())
    _, state = functional._plain(
        q[:, :15], k[:, :15], v[:, :15], "softplus", True, g[:, :15], None, ()
    )
    state = [x.contiguous() for x in state]
    for t in range(15, 20):
        y = decode.step(q[:, t], k[:, t], v[:, t], *state, "softplus", normalize, g[:, t])
        torch.testing.assert_close(y, y_BTHV[:, t], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state[0], last.kv_NHKV, rtol=1e-4, atol=1e-5)


GATES: list[tuple[str, float, int, int, tuple[int, ...]]] = [
    # gate, largest negative logarithm, chunk, segments, tokens of each sequence
    ("none", 0.0, 16, 2, ()),
    ("none", 0.0, 16, 1, (1, 33, 46)),
    ("head", 0.1, 64, 1, ()),
    ("head", 0.5, 16, 3, (33, 47)),
    ("token", 0.3, 64, 2, ()),
    ("token", 5.0, 16, 1, (1, 33, 46)),
    ("token", 80.0, 16, 3, ()),
]


@pytest.mark.parametrize(
    ("normalize", "dtype"),
    [(True, torch.float32), (False, torch.float32), (True, torch.bfloat16)],
)
@pytest.mark.parametrize("case", GATES, ids=str)
def test_numbers_are_near_to_float64_with_gates_and_states(
    case: tuple[str, float, int, int, tuple[int, ...]],
    normalize: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Relative errors: 1e-5 in float32, 1 % in bfloat16; of gates in strong decay 1e-4.

    Gradients are differences: an error of a tenth of that of their terms is allowed too.
    """
    gate, strongest, chunk, segments, lengths = case
    B, T, H, K, V = 1, 80, 2, 24, 16
    q, k, v, dy = sample(B, T, H, K, V, dtype)
    seeded = torch.Generator().manual_seed(1)

    def uniform(*sizes: int) -> Tensor:
        return torch.rand(*sizes, generator=seeded).to(DEVICE)

    N = len(lengths) or B
    decay = -strongest * uniform(*((H,) if gate == "head" else (B, T, H)))
    state = State(uniform(N, H, K, V) - 0.5, uniform(N, H, K))
    dstate = State(uniform(H, K, V).expand(N, H, K, V), uniform(N, H, K) * normalize)
    leaves = [x.requires_grad_() for x in (q, k, v, decay, *state)]
    monkeypatch.setattr(op, "choose", lambda *_: plan(chunk, segments, one_pass=True))
    y, states = op.chunked(
        pack(q, k, v), H, K, "softplus", normalize,
        log_decay=None if gate == "none" else decay,
        initial=functional.join(state), lengths=lengths, final=True,
    )  # fmt: skip
    found = [y, *functional.split(states, K, V)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    q, k, v, decay, kv, k_sum = exact
    y, states = functional._plain(q, k, v, "softplus", normalize, decay, State(kv, k_sum), lengths)
    true = [y, *states]
    gradients = [dy, *dstate]
    if not normalize:  # the sum of features serves the division only
        found, true, gradients = found[:2], true[:2], gradients[:2]
        leaves, exact = leaves[:-1], exact[:-1]
    if gate == "none":
        del leaves[3], exact[3]
    found += torch.autograd.grad(found, leaves, gradients)
    true += torch.autograd.grad(true, exact, [x.double() for x in gradients])
    for i, (x, y) in enumerate(zip(found, true, strict=True)):
        near = 0.01 if dtype == torch.bfloat16 else 1e-4 if strongest > 1 else 1e-5
        terms = dy.double().norm().item() if i >= len(gradients) else 0.0
        assert distance(x, y) <= near * max(y.norm().item(), 0.1 * terms), i


def test_same_bits_of_a_sequence_among_others_as_alone() -> None:
    shape = Shape(heads=2, key=16, value=16, feature_map="softplus", normalize=True, gate="token")
    q, k, v, dy = sample(1, 60, 2, 16, 16, torch.bfloat16)
    decay = -torch.rand(1, 60, 2).to(DEVICE)
    chosen = plan(16, one_pass=True)

    def parts(first: int, last: int, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        rows, g = pack(q, k, v)[:, first:last], decay[:, first:last]
        options = {"log_decay": g, "lengths": lengths}
        made = launch.forward(rows, shape, chosen, keep=True, **options)
        gradient = launch.backward(rows, dy[:, first:last], made, shape, chosen, **options)
        return made.y_BTHV, gradient.dqkv_BTW, gradient.dgate

    together, alone = parts(0, 60, (21, 39)), parts(21, 60, ())
    for x, y in zip(together, alone, strict=True):
        assert torch.equal(x[:, 21:], y)


def test_same_bits_whether_states_are_kept_or_made_again() -> None:
    shape = Shape(heads=2, key=16, value=16, feature_map="softplus", normalize=True)
    q, k, v, dy = sample(1, 60, 2, 16, 16, torch.bfloat16)
    chosen, rows = plan(16, one_pass=True), pack(q, k, v)
    made = [launch.forward(rows, shape, chosen, keep=keep) for keep in (True, False)]
    one, two = (launch.backward(rows, dy, x, shape, chosen).dqkv_BTW for x in made)
    assert torch.equal(one, two)


def test_same_slope_of_small_features_as_in_float64() -> None:
    """1 - exp(-f) would lose all digits of a feature below 1e-7."""
    shape = Shape(heads=1, key=16, value=16, feature_map="softplus", normalize=False)
    q, k, v, dy = sample(1, 20, 1, 16, 16)
    q, k = q - 14, k - 20
    exact = quadratic(q.double(), k.double(), v.double(), dy.double(), shape)
    for one_pass in (False, True):
        found = fused(pack(q, k, v), dy, shape, plan(16, one_pass=one_pass))
        for x, true in zip(found, exact, strict=True):
            assert distance(x, true) <= 1e-5 * true.norm().item()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(("softplus", True), torch.float32), (("relu", False), torch.bfloat16)],
    ids=str,
)
def test_operator_is_what_pytorch_asks_of_one(
    kind: Kind, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # PyTorch's own checks compare what empty tensors hold
    q, k, v, _ = sample(2, 20, 1, 16, 16, dtype)
    arguments = (pack(q, k, v).requires_grad_(), None, None, [], 1, 16, *kind, True, False)
    torch.library.opcheck(torch.ops.lmscaling.chunked.default, arguments)


def test_operator_with_gates_states_and_lengths_is_what_pytorch_asks_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    q, k, v, _ = sample(1, 20, 2, 16, 16)
    decay = (-torch.rand(1, 20, 2)).to(DEVICE).requires_grad_()
    state = State(torch.rand(2, 2, 16, 16).to(DEVICE), torch.rand(2, 2, 16).to(DEVICE))
    initial = functional.join(state).requires_grad_()
    rows = pack(q, k, v).requires_grad_()
    arguments = (rows, decay, initial, [7, 13], 2, 16, "softplus", True, True, True)
    torch.library.opcheck(torch.ops.lmscaling.chunked.default, arguments)


def test_operator_compiles_into_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def loss(qkv_BTW: Tensor) -> Tensor:
        return op.chunked(2 * qkv_BTW, 2, 16, "softplus", True)[0].square().mean()

    q, k, v, _ = sample(2, 20, 2, 16, 16)
    qkv_BTW = pack(q, k, v).requires_grad_()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    one, two = (torch.autograd.grad(f(qkv_BTW), qkv_BTW)[0] for f in (loss, compiled))
    assert torch.equal(one, two)


def test_operator_gives_one_gradient_to_a_projection_whose_views_it_is_given() -> None:
    q, k, v, dy = sample(2, 20, 2, 16, 16)
    qkv_BTW = pack(q, k, v).requires_grad_()
    q, k, v = (2 * qkv_BTW).unflatten(-1, (3, 2, -1)).unbind(2)
    y = op.chunked(chunked.packed(q, k, v), 2, 16, "softplus", True)[0]
    (found,) = torch.autograd.grad(y, qkv_BTW, dy, retain_graph=True)
    y = chunked.attend(q.double(), k.double(), v.double(), "softplus", True)
    torch.testing.assert_close(found, torch.autograd.grad(y, qkv_BTW, dy.double())[0])
