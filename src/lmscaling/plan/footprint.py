"""The memory that a cell takes of a device, and the micro-batch that fits.

It is estimated from the shape of the model, and from a measured peak where there is one.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.plan.throughput.model import QUANTILES

GUESSED_TOKENS = 2**14
"""Tokens in an estimated micro-batch; larger ones are hardly faster on an H100."""
FILL = 0.9
"""Share of a device's memory that a plan or a calibration fills. The rest is for the CUDA context,
the buffers of NCCL and fragments, which PyTorch's allocator does not count."""

STATE_BYTES = 18
"""Per parameter: float32 weight (4), gradient (4) and two moments (8); autocast's bf16 copy (2).
Among several ranks the gradient is a view of the buckets in which it is sent."""
MOMENT_BYTES = 4
"""Of these, one moment."""
ACTIVATION_BYTES = 37
"""Per token, layer and unit of width, without dropout and T x T matrices. Autograd saves 36.1: in
float32 both inputs of norms (8); in bf16 the inputs of qkv, out and up (6), q, k, v (6), and the
input and output of GELU (16). A compiled block saves 34.1. Without autocast's float32 residual
stream it would be 34 (Korthikanti et al. 2022, arXiv:2205.05198, section 4.1, less dropout). The
kernels of linear attention keep 2.1 more where their backward pass is one kernel."""
QK_NORM_BYTES = 6
"""The same beside these of norms of queries and keys, in a compiled block: what they return."""
COPY_BYTES = 4
"""The same of copies of keys and values that heads share, times ``n_kv_head / n_head``."""
ACTIVATION_SD = 0.10
"""Standard deviation of the logarithm of an estimate of the activations' bytes; the published
longest contexts of flash, tiled and chunked attention that fit 80 GB agree with it."""
MEASURED_MEMORY_SD = 0.02
"""The same of all memory once a calibration has measured a trial of the same layout."""
SCORE_BYTES = {"softmax_scores": 9, "linear_scores": 5}
"""Per head and pair of tokens of one layer, where attention is no kernel; likewise from the longest
published contexts. The other kinds take nothing that shows beside the activations, except"""
STATES_BYTES = 8
"""per token and element of 64 x width, if the states of all tokens are there at once."""
RESIDUAL_BYTES = 4
"""The same if blocks are recomputed; the residual stream is float32 under autocast."""
HEAD_BYTES = 2 * 2**28
"""Logits in memory at one time in bf16; their gradient takes their place."""
SOFTCAP = 6
"""Factor on these while logits are capped: before and after, and twice in float32."""
HEAD_GRADIENT_BYTES = 6
"""Per weight of the head: a gradient in float32 from the forward pass on, a part of it in bf16."""


@dataclass(frozen=True)
class Shape:
    """Parameters of a cell's model, its training FLOPs per token, and remarks on it."""

    params_total: int
    flops_per_token: float
    remarks: tuple[str, ...] = ()
    """What a reader should know about its attentions, one sentence each without a full stop."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Layers by the way in which their attention is computed, one of ``terms.KINDS``."""
    params: int = 0
    """Without embeddings; 0 if it is not known."""


@dataclass(frozen=True)
class Layout:
    """How a device computes its share of an update."""

    micro_batch: int
    recompute: bool
    memory_bytes: float
    """Per device."""
    memory_sd: float = 0.0
    """Standard deviation of its logarithm."""

    def fits(self, memory: float) -> str:
        """Whether it fits into so many bytes: for sure within the interval of 80 %, likely, or
        not."""
        if self.memory_bytes > FILL * memory:
            return "does not fit"
        most = self.memory_bytes * math.exp(QUANTILES[0.8] * self.memory_sd)
        return "fits" if most <= FILL * memory else "likely fits"


SMALLEST = Layout(1, True, 0.0)
"""The layout that needs the least memory."""


def sequences(cell: Cell) -> int:
    """Sequences per update and device."""
    return cell.update_tokens // cell.context // max(1, cell.gpus)


def memory_bytes(
    cell: Cell,
    params_total: int,
    micro_batch: int,
    recompute: bool,
    kinds: Iterable[str] = (),
    scale: float = 1.0,
) -> float:
    """Training memory of one device in bytes (bf16-mixed).

    Args:
        cell: The cell.
        params_total: Parameters of its model.
        micro_batch: Sequences at once.
        recompute: Whether blocks are recomputed.
        kinds: How its attentions are computed, of ``terms.KINDS``.
        scale: Factor on what the parameters do not take, from a measured peak.
    """
    shape, tokens = cell.model, micro_batch * cell.context
    of_block = ACTIVATION_BYTES + QK_NORM_BYTES * cell.block.qk_norm
    of_block += COPY_BYTES * (cell.block.n_kv_head or 0) / shape.n_head
    per_layer = RESIDUAL_BYTES if recompute else of_block
    units = shape.n_layer * per_layer + (of_block if recompute else 0)
    head = min(HEAD_BYTES, 2 * tokens * shape.vocab_size) * (SOFTCAP if cell.block.softcap else 1)
    head += HEAD_GRADIENT_BYTES * shape.vocab_size * shape.d_model
    pairs = shape.n_head * tokens * cell.context
    own = [SCORE_BYTES[kind] * pairs for kind in kinds if kind in SCORE_BYTES]
    own += [STATES_BYTES * 64 * tokens * shape.d_model for kind in kinds if kind == "states"]
    others = tokens * shape.d_model * units + head + max(own, default=0)
    return state_bytes(cell, params_total) + scale * others


def state_bytes(cell: Cell, params_total: int) -> float:
    """Bytes of weights, gradients and moments; Muon has one moment of the matrices of blocks."""
    if cell.optimizer.kind == "adamw":
        return STATE_BYTES * params_total
    rows = cell.model.vocab_size * (1 if cell.block.tied_head else 2)
    rows += cell.context if cell.position == "learned" else 0
    of_blocks = max(0, params_total - rows * cell.model.d_model)
    return STATE_BYTES * params_total - MOMENT_BYTES * of_blocks


def memory_scale(cell: Cell, shape: Shape, calibration: Calibration) -> float:
    """What the measured peak of a cell makes of ``memory_bytes`` without the parameters."""
    if not calibration.peak_memory_bytes:
        return 1.0
    states = state_bytes(cell, shape.params_total)
    layout = calibration.micro_batch, calibration.recompute
    guessed = memory_bytes(cell, shape.params_total, *layout, shape.kinds) - states
    found = max(calibration.peak_memory_bytes - states, guessed / 2)
    unsure = MEASURED_MEMORY_SD * calibration.peak_memory_bytes / guessed
    return (found / guessed) ** (ACTIVATION_SD**2 / (ACTIVATION_SD**2 + unsure**2))


def guess(
    cell: Cell,
    params_total: int,
    memory: float | None,
    kinds: Iterable[str] = (),
    scale: float = 1.0,
) -> Layout | None:
    """The largest micro-batch, up to a typical size, that fits for sure, else the smallest one that
    likely fits; None if one sequence does not.

    Args:
        cell: The cell.
        params_total: Parameters of its model.
        memory: Memory of a device in bytes; None for no limit.
        kinds: As in ``memory_bytes``.
        scale: As in ``memory_bytes``.
    """
    fitting = max(1, GUESSED_TOKENS // cell.context)
    sizes = [d for d in range(1, fitting + 1) if sequences(cell) % d == 0]
    layout = None
    for size, recompute in [(size, False) for size in reversed(sizes)] + [(1, True)]:
        needed = memory_bytes(cell, params_total, size, recompute, kinds, scale)
        activations = needed - state_bytes(cell, params_total)
        layout = Layout(size, recompute, needed, ACTIVATION_SD * activations / needed)
        if memory is None or layout.fits(memory) == "fits":
            return layout
    return layout if layout and memory and layout.fits(memory) == "likely fits" else None
