"""The launch options of every kernel and the number of segments, by shape and device.

Nothing is tuned at run time. The plan depends only on the call and on ``tuned.json``, with a
default that compiles everywhere, so that all runs of a study use the same kernels.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lmscaling.kernels.chunked_triton import tuned
from lmscaling.kernels.chunked_triton.config import Config

PROGRAMS_PER_PROCESSOR = 2
"""Programs of 128 threads with up to 255 registers each that fit on one multiprocessor."""
SEGMENT_TOKENS = 512
"""Minimum length of a segment, whose float32 state is as large as 128 rows of k and v in bf16."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes and options of the function to compute."""

    heads: int
    key: int
    """Width of a query or key."""
    value: int
    """Width of a value."""
    feature_map: str
    normalize: bool
    gate: str = "none"
    """``"none"``, ``"head"`` or ``"token"``."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The launch options of all kernels of one call."""

    forward: Config = field(default_factory=Config)
    backward: Config = field(default_factory=Config)
    """Of the kernel that computes dq, dk and dv in one pass, from states that the forward pass
    keeps; both then have its chunk."""
    backward_q: Config = field(default_factory=Config)
    backward_kv: Config = field(default_factory=Config)
    """Of the two kernels that read nothing but what is given. Which of both ways is used is
    ``one_pass``; gates and given states need the first."""
    sums: Config = field(default_factory=Config)
    one_pass: bool = False
    segments: int = 1
    """Parts of a sequence that separate programs process."""

    def segment_tokens(self, T: int) -> int:
        """Tokens of every segment except the last: a multiple of every kernel's chunk."""
        every = (self.forward, self.backward, self.backward_q, self.backward_kv, self.sums)
        chunk = max(config.chunk for config in every)
        return -(-T // (self.segments * chunk)) * chunk

    def in_one_pass(self) -> "Plan":
        """The plan that keeps states and computes all gradients in one pass."""
        forward = replace(self.forward, chunk=self.backward.chunk)
        return replace(self, one_pass=True, forward=forward)


SAFE = Config(chunk=16, warps=8, stages=1)
"""Compiles for every width, dtype and architecture, but is slow if registers spill."""

_ONE_STAGE = Config(stages=1)


def safe() -> Plan:
    """Every kernel with ``SAFE``."""
    return Plan(forward=SAFE, backward=SAFE, backward_q=SAFE, backward_kv=SAFE, sums=SAFE)


_given: dict[Shape, Plan] = {}
"""Plans by the function that they compute, for any number of heads."""


def use(plan: Plan | None, shape: Shape) -> None:
    """Let every later call of this process that computes the function of a shape follow a plan,
    with a number of segments of its own, for any number of heads.

    None lets ``choose`` decide again.
    """
    _given.pop(_function(shape), None)
    if plan:
        _given[_function(shape)] = plan


def _function(shape: Shape) -> Shape:
    return replace(shape, heads=0)


TABLE = {
    # (tensor cores, dtype, padded width): forward, backward_q, backward_kv
    ("warpgroup", torch.bfloat16, 16): (Config(), Config(), _ONE_STAGE),
    ("warpgroup", torch.bfloat16, 32): (Config(), Config(), _ONE_STAGE),
    ("warpgroup", torch.bfloat16, 64): (Config(), Config(), _ONE_STAGE),
    ("warpgroup", torch.bfloat16, 128): (
        Config(chunk=64, warps=8, stages=1),
        Config(chunk=32, warps=8, stages=1),
        Config(chunk=32, warps=8, stages=1),
    ),
    ("tensor memory", torch.bfloat16, 16): (_ONE_STAGE, _ONE_STAGE, _ONE_STAGE),
    ("tensor memory", torch.bfloat16, 32): (_ONE_STAGE, _ONE_STAGE, _ONE_STAGE),
    ("tensor memory", torch.bfloat16, 64): (_ONE_STAGE, _ONE_STAGE, _ONE_STAGE),
    ("tensor memory", torch.bfloat16, 128): (
        Config(chunk=64, warps=8, stages=1),
        Config(chunk=32, warps=8, stages=1),
        Config(chunk=32, warps=8, stages=1),
    ),
    ("warp", torch.bfloat16, 16): (Config(), Config(), Config()),
    ("warp", torch.bfloat16, 32): (Config(), Config(), Config()),
    ("warp", torch.bfloat16, 64): (
        Config(),
        Config(chunk=32, warps=8),
        Config(chunk=16, warps=4),
    ),
    ("warp", torch.bfloat16, 128): (Config(chunk=32, warps=8), SAFE, SAFE),
}
"""Chosen by compiling for absent devices with Triton 3.6, 3.7 and 3.9, not by timing: no spills
below width 128 (80 bytes on sm_120 with 3.7), few at 128 with warpgroups. With two stages, 3.6 and
3.7 compute the keys' features twice in ``backward_kv`` on sm_90, and do not compile ``forward`` for
sm_100. float32 does not use tensor cores and uses ``SAFE``."""

ONE_PASS = {
    # (tensor cores, dtype, padded width): backward
    ("warpgroup", torch.bfloat16, 16): Config(),
    ("warpgroup", torch.bfloat16, 32): Config(),
    ("warpgroup", torch.bfloat16, 64): Config(),
    ("tensor memory", torch.bfloat16, 16): _ONE_STAGE,
    ("tensor memory", torch.bfloat16, 32): _ONE_STAGE,
    ("tensor memory", torch.bfloat16, 64): _ONE_STAGE,
}
"""Where the backward pass in one kernel hardly spills, and is used. It moves 0.87 of the bytes of
the two kernels and executes 0.83 of their instructions."""
SPILLING = Config(chunk=32, warps=8, stages=1)
"""Of the same kernel elsewhere, where only given states need it."""
GATED = {("warpgroup", 16): _ONE_STAGE, ("warpgroup", 32): _ONE_STAGE}
"""Of the same kernel with gates, by tensor cores and padded width of a key. At K 32 and V 64, as of
the gated attentions, it executes 0.8 of the instructions of ``GATED_ELSEWHERE``."""
GATED_ELSEWHERE = Config(chunk=32, stages=1)
"""Chunks of 64 tokens need more registers: on sm_90 at K 64, and without warpgroups, they take 400
to 1,000 bytes of stack and hardly fewer instructions, if any."""


def choose(qkv_BTW: Tensor, shape: Shape) -> Plan:
    """The plan for the device of a tensor."""
    if not qkv_BTW.is_cuda:
        return Plan().in_one_pass() if shape.gate != "none" else Plan()
    B, T, _ = qkv_BTW.shape
    device = torch.cuda.get_device_properties(qkv_BTW.device)
    parts = segments(B * shape.heads, T, device.multi_processor_count)
    if given := _given.get(_function(shape)):
        plan = replace(given, segments=parts)
        return plan.in_one_pass() if shape.gate != "none" else plan
    architecture = numbered(device.major, device.minor)
    plan = configured(architecture, qkv_BTW.dtype, shape, parts)
    name, width = str(qkv_BTW.dtype).removeprefix("torch."), block(max(shape.key, shape.value))
    found = tuned.find(tuned.entries(), architecture, name, width, B * shape.heads, T)
    if found is not None:
        plan = replace(
            plan,
            forward=found.forward,
            backward=plan.backward if shape.gate != "none" else found.backward or plan.backward,
            backward_q=found.backward_q,
            backward_kv=found.backward_kv,
            sums=found.forward,
            one_pass=found.backward is not None,
        )
    return plan.in_one_pass() if plan.one_pass or shape.gate != "none" else plan


def segments(sequences: int, T: int, processors: int) -> int:
    """Parts of each sequence, one for each head: as many as let all programs run at once.

    One part more would add a second, nearly empty wave, which takes as long as the first.
    """
    return max(1, min(PROGRAMS_PER_PROCESSOR * processors // sequences, T // SEGMENT_TOKENS))


def numbered(major: int, minor: int) -> int:
    """A device's architecture as in ``sm_90``; 0 for AMD, whose numbers mean other devices."""
    return 0 if torch.version.hip else 10 * major + minor


def configured(architecture: int, dtype: torch.dtype, shape: Shape, segments: int = 1) -> Plan:
    """The plan for an architecture, numbered as in ``sm_90``, without measurements."""
    cores = {9: "warpgroup", 10: "tensor memory"}.get(architecture // 10, "warp")
    kind = (cores, dtype, block(max(shape.key, shape.value)))
    forward, backward_q, backward_kv = TABLE.get(kind, (SAFE, SAFE, SAFE))
    backward = ONE_PASS.get(kind, SPILLING)
    if shape.gate != "none":
        backward = GATED.get((cores, block(shape.key)), GATED_ELSEWHERE)
    return Plan(
        forward=forward,
        backward=SAFE if dtype == torch.float32 else backward,
        backward_q=backward_q,
        backward_kv=backward_kv,
        sums=forward,
        one_pass=kind in ONE_PASS,
        segments=segments,
    )


def compiles_gates(architecture: int) -> bool:
    """Whether the backward pass with gates compiles; not for sm_10x by Triton 3.6 and 3.7."""
    return architecture // 10 != 10


def block(width: int) -> int:
    """The smallest power of two that is not below a width; products need at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def state_width(shape: Shape) -> int:
    """Elements of the state of a head, with widths padded as in registers."""
    return block(shape.key) * (block(shape.value) + 1)
