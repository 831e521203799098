"""S1 to S4: what happens to the divisor of linear attention at high rates and long contexts.

    python results/measured/forgetting/divisor.py            # a processor each: --model 0 and so on

Three models of each form learn 1,000 steps at 512 tokens. From each, branches of 150 steps on texts
of their own go on at 256 and 4,096 tokens and at 4 and 12 times the rate. ``divisor.jsonl`` beside
this file gets a line for each branch when it ends; one that has its line is not trained again.

The rounded form is PyTorch's ``elu(x) + 1``, which is zero below -17 in float32. It is defined here
and nowhere else.
"""

import argparse
import copy
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling.config import grid, study_file
from lmscaling.data.kinds.tables import END, Tables
from lmscaling.kernels.feature_maps import FEATURE_MAPS, FeatureMap
from lmscaling.model.gpt import GPT

ROOT = Path(__file__).parents[3]
OUT = Path(__file__).with_name("divisor.jsonl")
STEP_TOKENS, RATE = 4096, 8e-3
TRUNK_STEPS, BRANCH_STEPS, LAST = 1000, 150, 50
TRUNKS, TEXTS, FEWER, FEWEST = 3, 20, 8, 2
BLOWN = 30.0
"""Medians of the gradient norm before it is clipped."""

FEATURE_MAPS["rounded"] = FeatureMap(lambda x: F.elu(x) + 1)
FEATURE_MAPS["rounded, 1e-6"] = FeatureMap(lambda x: F.elu(x) + 1, epsilon=1e-6)


class Branch(NamedTuple):
    trunk: int
    text: int
    feature: str
    norm: str
    context: int
    times: float
    """Rate over that of the trunk."""
    warmup: int = 20
    windows: int = 0
    """Windows of a step; 0 for those of 4,096 tokens."""


def plan(trunk: int, text: int) -> Iterator[Branch]:
    """All branches of one text from the models of one seed. All texts have those that S1 asks for,
    the others fewer."""
    sums = product(("softplus", "elu+1", "rounded"), ("sum",))
    for form in (*sums, ("softplus", "rms"), ("elu+1", "rms")):
        for context, times in product((256, 4096), (4.0, 12.0)):
            if text < FEWER or (context, times) == (4096, 12.0):
                yield Branch(trunk, text, *form, context, times)
    if text < FEWER:
        yield Branch(trunk, text, "rounded, 1e-6", "sum", 4096, 12.0)  # S3
        yield Branch(trunk, text, "rounded", "sum", 4096, 12.0, warmup=100)
    if text < FEWEST:
        yield Branch(trunk, text, "softplus", "sum", 4096, 4.0, windows=16)  # S4


def text(seed: int, tokens: int) -> Tensor:
    """Documents, as numbers."""
    source = Tables(kind="tables", documents=tokens // 400 + 512, validation_documents=1)
    # Texts follow from their row: another row has another text.
    source = replace(source, concentration=1.0 + 1e-9 * seed)
    texts = source.read("train", 0).texts
    parts = [np.append(END, np.frombuffer(t.encode(), np.uint8)) for t in texts]
    return torch.from_numpy(np.concatenate(parts)[: tokens + 1].astype(np.int64))


def model(feature: str, norm: str, seed: int) -> GPT:
    """A model of ``config/forgetting.yaml`` with a feature map."""
    label = "linear_parts" if norm == "sum" else "linear_parts.normrms"
    files = [ROOT / "config" / name for name in ("study.yaml", "forgetting.yaml")]
    cells = grid.expand(study_file.read_study(files)).cells.values()
    wanted = label, seed, 512
    gpt = GPT(next(c for c in cells if (c.attention, c.seed, c.context) == wanted))
    for layers in gpt.each_attention().values():
        for layer in layers:
            layer.FEATURE_MAP = feature
    return gpt


def steps(
    gpt: GPT, optimizer: torch.optim.Optimizer, tokens: Tensor, context: int, rates: list[float]
) -> Iterator[tuple[float, float, float]]:
    """Loss, gradient norm before it is clipped, and smallest divisor (infinite without one) of each
    step; ends at the first that is no number."""
    n = len(tokens) // len(rates)
    (layers,) = gpt.each_attention().values()
    for i, rate in enumerate(rates):
        part = tokens[i * n : (i + 1) * n + 1]
        x_BT, y_BT = part[:-1].view(-1, context), part[1:].view(-1, context)
        loss = gpt.loss(x_BT, y_BT)
        optimizer.zero_grad()
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(gpt.parameters(), 1.0))
        divisors = [layer.smallest_divisor for layer in layers if layer.has_sum]
        yield float(loss.detach()), norm, min(map(float, divisors), default=float("inf"))
        if not np.isfinite([float(loss.detach()), norm]).all():
            return
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()


def adamw(gpt: GPT) -> torch.optim.Optimizer:
    return torch.optim.AdamW(gpt.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)


def trunk(feature: str, norm: str, seed: int) -> tuple[GPT, torch.optim.Optimizer]:
    """A model that has learned at 512 tokens, and its optimizer."""
    gpt = model(feature, norm, seed)
    optimizer, tokens = adamw(gpt), text(seed, TRUNK_STEPS * STEP_TOKENS)
    rates = [RATE * min(1.0, (i + 1) / 50) for i in range(TRUNK_STEPS)]
    *_, (loss, _, _) = steps(gpt, optimizer, tokens, 512, rates)
    print(f"{feature}, {norm}, seed {seed}: {loss:.3f}", flush=True)
    return gpt, optimizer


@torch.no_grad()
def loss_of(gpt: GPT, tokens: Tensor, context: int) -> list[float]:
    """Losses of the model that a branch began with, in its last steps."""
    size = (len(tokens) - 1) // BRANCH_STEPS
    found: list[float] = []
    for i in range(BRANCH_STEPS - LAST, BRANCH_STEPS):
        part = tokens[i * size : (i + 1) * size + 1]
        found.append(float(gpt.loss(part[:-1].view(-1, context), part[1:].view(-1, context))))
    return found


def trained(branch: Branch, gpt: GPT, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """The line of a branch."""
    size = (branch.windows or STEP_TOKENS // branch.context) * branch.context
    tokens = text(1000 + 100 * branch.trunk + branch.text, BRANCH_STEPS * size)
    own = copy.deepcopy(gpt)
    adam = adamw(own)
    adam.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    top = branch.times * RATE
    grown = [min(1.0, (i + 1) / branch.warmup) for i in range(BRANCH_STEPS)]
    rates = [RATE + (top - RATE) * share for share in grown]
    rows = [*steps(own, adam, tokens, branch.context, rates)]
    losses, norms, divisors = zip(*rows, strict=True)
    is_number = len(rows) == BRANCH_STEPS and bool(np.isfinite(losses[-1]))
    rise = None
    if is_number:
        before = loss_of(gpt, tokens, branch.context)
        rise = statistics.fmean(losses[-LAST:]) - statistics.fmean(before)
    highest = max(norms) / statistics.median(norms)
    return branch._asdict() | {
        "is_number": is_number,
        "is_blown": not is_number or not highest <= BLOWN,
        "highest_norm": highest if np.isfinite(highest) else None,
        "smallest_divisor": min(divisors) if np.isfinite(min(divisors)) else None,
        "rise": rise,
        "steps": len(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    every = range(TRUNKS)
    parser.add_argument("--model", type=int, nargs="*", choices=every, default=every)
    seeds = parser.parse_args().model
    rows = map(json.loads, OUT.read_text().splitlines() if OUT.exists() else ())
    done = {tuple(row[key] for key in Branch._fields) for row in rows}
    planned = (one for seed in seeds for n in range(TEXTS) for one in plan(seed, n))
    left = [one for one in planned if (*one,) not in done]
    left.sort(key=lambda b: (b.trunk, b.feature.partition(",")[0], b.norm))
    torch.set_num_threads(1)
    made: tuple[object, ...] = ()
    gpt = optimizer = None
    with OUT.open("a") as out:
        for branch in left:
            form = branch.feature.partition(",")[0], branch.norm, branch.trunk
            if form != made:
                (gpt, optimizer), made = trunk(*form), form
            assert gpt
            assert optimizer
            for layers in gpt.each_attention().values():
                for layer in layers:
                    layer.FEATURE_MAP = branch.feature
            out.write(json.dumps(trained(branch, gpt, optimizer)) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
