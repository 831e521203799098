"""A study whose losses follow a known surface, with decayed branches or without."""

import json
from dataclasses import replace

import numpy as np
from test_store import end, header, log, record, update, validation

from lmscaling.config import study_file

N = {"s": 40e6, "m": 110e6, "l": 300e6, "xl": 800e6}
PARAMETERS = {"E": 1.7, "A": 400.0, "B": 410.0, "alpha": 0.34, "beta": 0.28}
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
TOKENS = 4e18
"""Of all sizes: tokens of softmax at context 1024 in a day, times N."""
NOISE = 0.002
POINT_NOISE = 0.0005
"""Of branches, besides that of their trunk."""


def values_of(plain, **axes):
    """Values of the study: four sizes, three contexts, two attentions, one day."""
    size = {"n_layer": 1, "n_head": 1, "d_model": 8, "lr": 1e-2}
    whole = {"attention": ["softmax", "linear"], "size": list(N), "context": [1024, 4096, 16384]}
    return plain | {
        "sizes": {name: size | {"n_layer": i + 1} for i, name in enumerate(N)},
        "budget": "24 hours", "update_tokens": 2**19, "branches": {"shares": list(SHARES)},
        "validation": {"tokens": 2**19, "every_tokens": 2**25}, "exceptions": [],
        "skip": [], "axes": whole | axes,
    }  # fmt: skip


def surface(n: float, tokens: float) -> float:
    p = PARAMETERS
    return p["E"] + p["A"] * n ** -p["alpha"] + p["B"] * tokens ** -p["beta"]


def write(folder, values, branches=True, trunks=True):
    """Lay out the study in a folder and record all its runs."""
    folder.mkdir(exist_ok=True)
    (folder / "study.json").write_text(json.dumps({"command": "", "study": values}))
    laid_out = study_file.read_record(folder / "study.json").grid
    rng, own = np.random.default_rng(0), np.random.default_rng(1)
    luck = {run: rng.normal(0, NOISE) for run in laid_out.cells}
    for run, cell in laid_out.cells.items() if trunks else ():
        shares = sorted({*np.geomspace(1 / 500, 1, 40), *SHARES})
        fill(folder, run, cell, [(at, loss(cell, at) + 0.05 + luck[run]) for at in shares])
    for run, cell in laid_out.branches.items() if branches else ():
        share = cell.branch or 1.0
        value = loss(cell, share) + luck[cell.trunk] + own.normal(0, POINT_NOISE)
        fill(folder, run, cell, [(share, value)])
    return laid_out


def per_day(cell) -> float:
    """Tokens of a cell in a day: softmax slows down as contexts grow."""
    slow = 1 + cell.context / 8192 if cell.attention == "softmax" else 1.2
    return TOKENS / N[cell.size] / slow


def loss(cell, share: float) -> float:
    gap = 0.04 * (cell.attention == "linear") + 0.01 * abs(np.log2(cell.context / 4096))
    return surface(N[cell.size], share * per_day(cell)) + gap


def fill(folder, run, cell, points, most=None, params=N):
    """Record a run with losses at shares of its tokens, by default those of a day."""
    n = int(params[cell.size])
    first = replace(header(run), params=n, params_total=n + 10**7 + 8 * cell.context)
    at, rows = 0, [replace(first, flops_per_token=6.0 * n)]
    for share, value in points:
        tokens = share * (most or per_day(cell))
        place = {"tokens": int(tokens), "train_seconds": 86400 * share}
        at = max(1, round(tokens / 2**19))
        rows += [replace(update(at), train_loss=value, **place)]
        rows += [replace(validation(at), val_loss=value, **place)]
    record(folder, run, log(*rows, end(at)), updates=at)
    path = folder / "runs" / run / "run.json"
    made = json.loads(path.read_text())
    counts = {"params": n, "params_total": first.params_total, "flops_per_token": 6.0 * n}
    path.write_text(json.dumps(made | counts))
