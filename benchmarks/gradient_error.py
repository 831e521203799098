"""Error of bfloat16 gradients in every layer of a trained model, on its real inputs.

    python benchmarks/gradient_error.py results/<study>/runs/<run> <manifest> \\
        errors.jsonl

In normalized linear attention, the gradient with respect to queries is a difference of two sums of
order t whose true value is of order sqrt(t). Rounded to bfloat16 it is lost if values have a mean.
The kernels in ``kernels/chunked_triton`` subtract a mean of the values from the state. Here, every
layer of a run receives the queries, keys, values and the gradient of one validation sequence,
rounded to bfloat16, and each implementation is compared with float64 on the same inputs.

``centred`` and ``uncentred`` reproduce in PyTorch the arithmetic of these kernels and of a usual
one, which does not subtract a mean and computes dL/dD from a rounded y.

Legend: T tokens, H heads, K key and value width, C chunk, W packed width.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from lmscaling import kernels
from lmscaling.bench import layer
from lmscaling.bench.checks.exactness import Attend, distance, outcome
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.files import replacing
from lmscaling.kernels import feature_maps
from lmscaling.kernels.linear import forms
from lmscaling.model import finished_run
from lmscaling.model.block import Block
from lmscaling.model.gpt import GPT
from lmscaling.records.run import finite
from lmscaling.runtime import environment, faults, gpus

PHI = "softplus"
IMPLEMENTATIONS = ("chunked", "attention_parallel")
"""Implementations to compare, Triton on a GPU. All others use float32 throughout."""
CHUNK = 64
"""Tokens per chunk of ``centred`` and ``uncentred``."""
QUANTITIES = ("y_error", "dq_error", "dk_error", "dv_error")


def numerics(run: Path, manifest: Path, out: Path) -> str:
    """Compare all implementations in every layer of a finished run; JSON lines.

    The file is empty if the run has no weights.

    Returns:
        A summary in one sentence.

    Raises:
        UserError: The run is not finished, has another attention, or a GPU is missing.
    """
    cell = finished_run.cell(run)
    if cell.attention != "linear":
        raise UserError(f"run {cell.run} has attention {cell.attention}; allowed: linear")
    rows: list[dict[str, Any]] = []
    if finished_run.weights(run).is_file():
        with gpus.reserved(min(1, cell.gpus)):
            described = environment.complete(cell.gpus)
            device = torch.device("cuda" if cell.gpus else "cpu")
            ids = Stream(manifest, "validation").read(0, cell.context + 1).astype("int64")
            tokens = torch.from_numpy(ids).to(device)
            for layer, layer_inputs in enumerate(
                inputs(finished_run.model(run).to(device), tokens)
            ):
                rows += [
                    {"run": cell.run, "layer": layer, "tokens": cell.context, **values}
                    | {"environment": described}
                    for values in compared(*layer_inputs)
                ]
    with replacing(out) as file:
        file.writelines(f"{json.dumps(row)}\n".encode() for row in rows)
    return f"{cell.name}: {len(rows)} comparisons at {cell.context:,} tokens"


def inputs(model: GPT, tokens: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """q, k, v and the gradient of y of each layer, ``[1, T, H, K]`` bfloat16, from T + 1 tokens."""
    device = tokens.device.type
    attentions = [block.attention for block in cast("list[Block]", list(model.blocks))]
    packed, results = [], []
    for attention in attentions:
        attention.qkv.register_forward_hook(lambda _m, _x, output: packed.append(output.detach()))
        attention.out.register_forward_pre_hook(lambda _m, arguments: results.append(arguments[0]))
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        loss = model.loss(tokens[:-1].unsqueeze(0), tokens[1:].unsqueeze(0))
    slopes = torch.autograd.grad(loss, results)
    for attention, qkv_BTW, dy_BTD in zip(attentions, packed, slopes, strict=True):
        q, k, v = qkv_BTW.bfloat16().unflatten(-1, (3, attention.n_head, -1)).unbind(2)
        yield q, k, v, dy_BTD.bfloat16().unflatten(-1, (attention.n_head, -1))


def compared(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHK: Tensor, dy_BTHK: Tensor
) -> Iterator[dict[str, Any]]:
    """The columns of one row per implementation."""
    given = [q_BTHK, k_BTHK, v_BTHK, dy_BTHK]
    device, mean = q_BTHK.device, mean_over_sd(v_BTHK)
    exact = outcome(forms.chunked_materialized, given, device, torch.float64, PHI, True)
    for name, compute in _implementations(q_BTHK.is_cuda).items():
        row = {"implementation": name, "mean_over_sd": mean, **dict.fromkeys(QUANTITIES)}
        try:
            computed = compute(*given)
        except Exception as error:  # of any kind; the other implementations still run
            if not faults.is_result(error, device):
                raise
            status = "oom" if isinstance(error, torch.OutOfMemoryError) else "failed"
            yield row | {"status": status, "message": faults.first_line(error)}
            continue
        errors = {
            quantity: None if x is None else finite(distance(x, y))
            for quantity, x, y in zip(QUANTITIES, computed, exact, strict=True)
        }
        yield row | errors | {"status": "done", "message": ""}


def mean_over_sd(v_BTHK: Tensor) -> float:
    """Root mean square over channels of the mean over tokens, divided by that of the deviation."""
    v = v_BTHK.double()
    return (v.mean(1).square().mean() / v.var(1, correction=0).mean()).sqrt().item()


def _implementations(on_gpu: bool) -> dict[str, Callable[..., Any]]:
    ours = {name: kernels.load("linear", name) for name in IMPLEMENTATIONS}
    attends = ours | (layer.peers() if on_gpu else {})
    return {name: partial(_passes, attend) for name, attend in attends.items()} | {
        "centred": partial(_dq_only, True),
        "uncentred": partial(_dq_only, False),
    }


def _passes(attend: Attend, *given: Tensor) -> list[Tensor]:
    return outcome(attend, list(given), given[0].device, torch.bfloat16, PHI, True)


def _dq_only(
    centred: bool, q: Tensor, k: Tensor, v: Tensor, dy: Tensor
) -> tuple[None, Tensor, None, None]:
    return None, dq(q, k, v, dy, centred), None, None


def dq(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHK: Tensor, dy_BTHK: Tensor, centred: bool) -> Tensor:
    """The gradient with respect to queries, computed by chunks, ``[B, T, H, K]`` bfloat16."""
    phi = feature_maps.find(PHI)
    q, k, v, dy = (x.float().transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHK, dy_BTHK))
    q, k = rounded(phi.of(q)), rounded(phi.of(k))
    s = v.new_zeros(*q.shape[:2], q.shape[3], v.shape[3])
    z = v.new_zeros(*q.shape[:2], 1, q.shape[3])
    chunk = _centred if centred else _uncentred
    gradients = []
    for b_q, b_k, b_v, b_dy in zip(*(x.split(CHUNK, 2) for x in (q, k, v, dy)), strict=True):
        slope = -torch.expm1(-b_q)  # of softplus, from the feature
        gradients.append(chunk(b_q, b_k, b_v, b_dy, s, z) * slope)
        s = s + b_k.mT @ b_v
        z = z + b_k.sum(2, keepdim=True)
    return torch.cat(gradients, 2).transpose(1, 2).bfloat16()


def rounded(x: Tensor) -> Tensor:
    """To bfloat16 and back."""
    return x.bfloat16().float()


def _centred(q: Tensor, k: Tensor, v: Tensor, dy: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """dphi(q) of one chunk as ``kernels/chunked_triton/backward.py`` computes it."""
    weights = rounded((q @ k.mT).tril()).sum(-1, keepdim=True) + q @ z.mT
    zz = (z * z).sum(-1, keepdim=True)
    c = z @ s / torch.where(zz > 0, zz, 1.0)
    da = dy @ v.mT
    count = torch.arange(1, q.shape[2] + 1, device=q.device).unsqueeze(-1)
    centre = torch.where(zz > 0, dy @ c.mT, da.tril().sum(-1, keepdim=True) / count)
    slope = dy @ rounded(s - z.mT @ c).mT + rounded((da - centre).tril()) @ k
    e = -(q * slope).sum(-1, keepdim=True) / weights
    return (slope + e * z + rounded(e.expand_as(da).tril()) @ k) / weights


def _uncentred(q: Tensor, k: Tensor, v: Tensor, dy: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """dphi(q) of one chunk with an uncentred state and delta from a rounded y."""
    a = rounded((q @ k.mT).tril())
    weights = a.sum(-1, keepdim=True) + q @ z.mT
    y = rounded((a @ v + q @ rounded(s)) / weights)
    g = rounded(dy / weights)
    delta = -(g * y).sum(-1, keepdim=True)
    return g @ rounded(s).mT + delta * z + rounded((g @ v.mT + delta).tril()) @ k


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a finished run of linear attention")
    parser.add_argument("manifest", type=Path, help="manifest.json of its tokens")
    parser.add_argument("out", type=Path, help="JSON lines, one for each layer and method")
    given = parser.parse_args()
    try:
        print(numerics(given.run, given.manifest, given.out))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
