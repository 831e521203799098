"""Cases of test_quadratic.py in Triton's interpreter, which must be chosen before Triton is loaded.

Argument: which cases. Prints JSON: a list of [what, found, at most].
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import itertools
import json
import sys
from collections.abc import Callable, Iterator

import interpreter
import torch
from torch import Tensor
from torch.utils import deterministic

from lmscaling.bench.checks import exactness
from lmscaling.kernels import feature_maps
from lmscaling.kernels.tiled_triton import launch, op

assert interpreter

MAPS = tuple(feature_maps.FEATURE_MAPS)
Finding = tuple[str, float, float]
SMALL = {64: (32, 16, 1, 1)}
"""Tiles so small that 63 tokens have whole blocks, split diagonals and a ragged end."""


def inputs(
    T: int, K: int, H: int, dtype: torch.dtype, B: int = 1, V: int | None = None, mean: float = 0.0
) -> list[Tensor]:
    """q, k and v as views of one packed projection if widths allow, and dy."""
    torch.manual_seed(T + K + H)
    V = V or K
    q, k, v = torch.randn(B, T, 3, H, max(K, V)).to(dtype).unbind(2)
    v = v + mean if mean else v
    return [q[..., :K], k[..., :K], v[..., :V], torch.randn(B, T, H, V).to(dtype)]


def plain(
    q: Tensor, k: Tensor, v: Tensor, feature_map: str, normalize: bool, window: int = 0
) -> Tensor:
    """The definition, every operation in the dtype of the arguments."""
    phi = feature_maps.find(feature_map)
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    a = torch.einsum("bthk,bshk->bhts", phi.of(q), phi.of(k)).tril()
    a = a.triu(1 - window) if window else a
    y = torch.einsum("bhts,bshv->bthv", a, v)
    return y / (a.sum(-1).transpose(1, 2).unsqueeze(-1) + phi.epsilon) if normalize else y


def outcome(
    attend: Callable[..., Tensor],
    tensors: list[Tensor],
    *options: object,
    dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """y, dq, dk, dv."""
    q, k, v, dy = (x.to(dtype or x.dtype) for x in tensors)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    y = attend(*leaves, *options)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def distances(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [
        (a.double() - b).square().mean().sqrt().item() for a, b in zip(found, exact, strict=True)
    ]


def near(
    name: str, tensors: list[Tensor], feature_map: str, normalize: bool, window: int = 0
) -> Iterator[Finding]:
    """At most twice as far from float64 as plain PyTorch; one rounding of the result is free."""
    options = feature_map, normalize, window
    exact = outcome(plain, tensors, *options, dtype=torch.float64)
    ours = distances(outcome(op.attend, tensors, *options), exact)
    theirs = distances(outcome(plain, tensors, *options), exact)
    free = torch.finfo(tensors[0].dtype).eps / 2
    for what, found, least, x in zip(("y", "dq", "dk", "dv"), ours, theirs, exact, strict=True):
        scale = max(1.0, x.square().mean().sqrt().item())
        yield f"{name} {feature_map} {normalize} {what}", found, 2 * least + free * scale


def accuracy(dtype: torch.dtype) -> Iterator[Finding]:
    pairs = itertools.cycle(itertools.product((True, False), MAPS))
    for (T, K, H), pair in zip(
        itertools.product((1, 17, 63, 100), (16, 24, 64), (1, 3)), pairs, strict=False
    ):
        tensors = inputs(T, K, H, dtype)
        if pair == (True, "identity"):  # a sum of products of any sign cannot divide
            tensors[:2] = [x.abs() for x in tensors[:2]]
        yield from near(f"{T} {K} {H}", tensors, pair[1], pair[0])
    yield from near("V < K, B 2", inputs(40, 24, 2, dtype, B=2, V=16), "softplus", True)


def sample() -> Iterator[Finding]:
    """For Tritons that run no more than this: a ragged end, and a window of grouped queries."""
    for dtype in (torch.float32, torch.bfloat16):
        yield from near(f"{dtype} 63", inputs(63, 24, 1, dtype), "softplus", True)
        tensors = inputs(40, 16, 2, dtype)
        tensors[1:3] = [x[:, :, :1] for x in tensors[1:3]]
        yield from near(f"{dtype} window", tensors, "relu", False, 17)
    yield from causality(torch.bfloat16)


def properties() -> Iterator[Finding]:
    for dtype in (torch.float32, torch.bfloat16):
        yield from causality(dtype)
        packed = inputs(50, 24, 3, dtype)
        whole = [x.contiguous() for x in packed]
        assert not packed[0].is_contiguous()
        options = "softplus", True
        for what, a, b in zip(
            ("y", "dq", "dk", "dv"),
            outcome(op.attend, packed, *options),
            outcome(op.attend, whole, *options),
            strict=True,
        ):
            yield f"{dtype} strided {what}", (a - b).abs().max().item(), 0.0
    tensors = inputs(400, 16, 1, torch.bfloat16, mean=3.0)
    exact = outcome(plain, tensors, "softplus", True, dtype=torch.float64)
    found = outcome(op.attend, tensors, "softplus", True)
    for what, a, b in zip(("y", "dq", "dk", "dv"), found, exact, strict=True):
        yield f"mean 3 {what}", distances([a], [b])[0] / b.square().mean().sqrt().item(), 0.01
    launch.FORWARD, launch.QUERIES, launch.KEYS = TILES_OF_DEVICE
    for dtype in (torch.float32, torch.bfloat16):
        said = exactness.fault("linear", op.attend, torch.device("cpu"), dtype, 64)
        yield f"{dtype} as before a measurement: {said}", float(said is not None), 0.0
    yield from near("tiles of the device", inputs(150, 64, 1, torch.bfloat16), "softplus", True)


def windows() -> Iterator[Finding]:
    """Windows beside the sizes of tiles, and fewer heads of keys than of queries."""
    dtypes = itertools.cycle((torch.float32, torch.bfloat16))
    for window, groups in ((1, 1), (2, 2), (15, 1), (17, 4), (33, 2), (62, 1), (63, 2), (200, 4)):
        dtype = next(dtypes)
        tensors = inputs(63, 24, 4, dtype)
        tensors[1:3] = [x[:, :, : 4 // groups] for x in tensors[1:3]]
        yield from near(f"window {window} {groups}", tensors, "softplus", window % 2 > 0, window)
    tensors[1:3] = [x.clone() for x in tensors[1:3]]
    yield from near("groups alone", tensors, "relu", False)
    q, k, v, dy = inputs(63, 16, 1, torch.float32)
    before = outcome(op.attend, [q, k, v, dy], "relu", True, 20)
    q, k, v, dy = (x.clone() for x in (q, k, v, dy))
    for x in (k, v):
        x[:, 10] = 100.0
    dy[:, 50] = 100.0
    after = outcome(op.attend, [q, k, v, dy], "relu", True, 20)
    for i in (0, 1):
        yield "a token behind the window", (before[i] - after[i])[:, 30:50].abs().max().item(), 0.0
    yield "a token in the window", float(before[0][:, 29].equal(after[0][:, 29])), 0.0
    yield from skipped()
    for i in (2, 3):
        yield "a row past the window", (before[i] - after[i])[:, 30:31].abs().max().item(), 0.0


def skipped() -> Iterator[Finding]:
    """Tiles outside the window are not read: what is no number there does not spread."""
    q, k, v, dy = inputs(63, 16, 1, torch.bfloat16)
    v[:, :16], dy[:, 48:] = float("nan"), float("nan")
    y, dq, dk, dv = outcome(op.attend, [q, k, v, dy], "relu", False, 15)
    for what, x in (
        ("y", y[:, 32:]),
        ("dq", dq[:, 32:48]),
        ("dk", dk[:, 16:32]),
        ("dv", dv[:, :32]),
    ):
        yield f"tiles outside the window {what}", float(not x.isfinite().all()), 0.0


def causality(dtype: torch.dtype) -> Iterator[Finding]:
    """What comes later must not change a bit of y; its dy no bit of dk, dv behind it."""
    tensors = inputs(60, 16, 1, dtype)
    q, k, v, _ = tensors
    before = op.attend(q, k, v, "relu", True)
    changed = [x.clone() for x in tensors]
    q, k, v, dy = changed
    for x in (q, k, v):
        x[:, 33] = 100.0
    after = op.attend(q, k, v, "relu", True)
    yield f"{dtype} y before", (before - after)[:, :33].abs().max().item(), 0.0
    yield f"{dtype} y behind differs", float((before - after)[:, 33:].abs().max() == 0), 0.0
    dy[:, 33] = 100.0
    for what, a, b in zip(
        ("dk", "dv"),
        outcome(op.attend, tensors, "relu", True)[2:],
        outcome(op.attend, [*tensors[:3], dy], "relu", True)[2:],
        strict=True,
    ):
        yield f"{dtype} {what} behind", (a - b)[:, 34:].abs().max().item(), 0.0


def operators() -> Iterator[Finding]:
    q, k, v, dy = inputs(20, 16, 1, torch.float32)
    for normalize in (True, False):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        arguments = (*leaves, "softplus", normalize)
        said = torch.library.opcheck(op.forward, arguments, raise_exception=False)
        _, y32, inverse = op.forward(q, k, v, "softplus", normalize)
        arguments = (q, k, v, dy, y32, inverse, "softplus")
        again = torch.library.opcheck(op.backward, arguments, raise_exception=False)
        for name, result in (said | {f"backward {n}": r for n, r in again.items()}).items():
            yield f"opcheck {name} {result}", float(result != "SUCCESS"), 0.0
        whole = torch.compile(op.attend, fullgraph=True, backend="aot_eager")
        for a, b in zip(
            outcome(whole, [q, k, v, dy], "softplus", normalize),
            outcome(op.attend, [q, k, v, dy], "softplus", normalize),
            strict=True,
        ):
            yield "compiled", (a - b).abs().max().item(), 0.0


TILES_OF_DEVICE = launch.FORWARD, launch.QUERIES, launch.KEYS
CASES = {
    "float32": lambda: accuracy(torch.float32),
    "bfloat16": lambda: accuracy(torch.bfloat16),
    "windows": windows,
    "sample": sample,
    "properties": properties,
    "operators": operators,
}


def main() -> None:
    launch.FORWARD = launch.QUERIES = SMALL
    launch.KEYS = {64: (16, 32, 1, 1)}
    # Every element of a result must be written: what empty memory holds is made no number.
    assert deterministic.fill_uninitialized_memory  # pyright: ignore[reportAttributeAccessIssue]
    torch.use_deterministic_algorithms(True)
    print(json.dumps(list(CASES[sys.argv[1]]())))


if __name__ == "__main__":
    main()
