"""Loss by position: how well a run's final weights use the tokens before a target.

The same targets, the first tokens of a text's validation stream, are split into windows of the
trained context, of half of it, and so on. These contexts split the tokens evenly, include every
smaller context of a study whose contexts are powers of two, and depend on the run only, so a
context that is added to the study repeats no evaluation. The loss of the targets is averaged in
bins of their position, in the window and in the document.

Positions double from bin to bin (``data/document_positions.py``). Standard errors come from
contiguous blocks of the targets, the same at every context, because neighbouring tokens are not
independent.

Legend: N targets, B windows, T context, K blocks.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmscaling.bench.checks import gate
from lmscaling.config.cell import Cell
from lmscaling.data import document_positions
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_lines, write_text
from lmscaling.model import finished_run
from lmscaling.model.gpt import GPT
from lmscaling.records.run import Evaluation, finite, line
from lmscaling.runtime import gpus

SHORTEST = 64
"""Shortest context in addition to the trained one: the smallest of the demo."""

BLOCKS = 32
"""Blocks of the text for standard errors, whose own relative error is then about 1 / sqrt(62)."""

PASS_TOKENS = 2**14
"""Tokens of a forward pass, unless one window is longer."""


def evaluate(run: Path, manifest: Path, out: Path) -> str:
    """Evaluate the final weights of a run on one text.

    The file is empty if the run has no weights, its record is damaged or the text is shorter than
    one window. An evaluation of these weights that exists stays as it is.

    Args:
        run: ``results/<study>/runs/<run>``.
        manifest: ``manifest.json`` of the text's tokens.
        out: Path of the result, JSON lines of ``run.Evaluation``.

    Returns:
        A summary in one sentence.

    Raises:
        UserError: The run is not finished, its tokenizer was another one, or a GPU is missing.
    """
    record = run / "run.json"
    if out.is_file() and record.is_file() and out.stat().st_mtime >= record.stat().st_mtime:
        return f"{out} exists and stays as it is"
    try:
        cell = finished_run.cell(run)
    except UserError as error:
        if not record.is_file():
            raise
        write_text(out, "")
        return f"{error}; {out} is empty"
    stream = Stream(manifest, "validation")
    dataset = _dataset(stream, cell, read_json(record, "run record").get("ranks_sha256"))
    n = min(cell.validation.tokens, stream.tokens - 1) // cell.context * cell.context
    rows = []
    if not finished_run.weights(run).is_file():
        summary = f"{cell.name} has no weights"
    elif not n:
        summary = f"{dataset} has {stream.tokens:,} tokens, fewer than a window of {cell.name}"
    else:
        with gpus.reserved(min(1, cell.gpus)):
            model = finished_run.model(run).to(_device(cell)).eval()
            checks, batch = gate.record_beside(run, cell), max(1, PASS_TOKENS // cell.context)
            gate.require(checks, model, batch, _device(cell), compiled=False)
            tokens = stream.read(0, n + 1)
            columns = list(_columns(model, tokens, stream.positions(0, tokens[:-1]), cell))
        rows = [Evaluation(run=cell.run, dataset=dataset, **values) for values in columns]
        summary = (
            f"{cell.name} on {n:,} tokens of {dataset}, {len(contexts(cell.context))} contexts"
        )
    write_lines(out, map(line, rows))
    return summary


def contexts(trained_context: int) -> list[int]:
    """The trained context, half of it, and so on down to ``SHORTEST``."""
    halves = [trained_context]
    while halves[-1] % 2 == 0 and halves[-1] // 2 >= SHORTEST:
        halves.append(halves[-1] // 2)
    return halves


def token_losses(model: GPT, tokens: np.ndarray, context: int) -> np.ndarray:
    """Loss of each of N targets in nats, float64 ``[N]``, from N + 1 tokens in windows.

    The context of a target is its own window. Matrices are multiplied in bfloat16 on a GPU and in
    float32 on the CPU, as in training.
    """
    device = model.wte.weight.device
    losses_N = np.empty(len(tokens) - 1)
    pass_tokens = max(1, PASS_TOKENS // context) * context
    for start in range(0, len(losses_N), pass_tokens):
        part = tokens[start : start + pass_tokens + 1].astype("int64")
        ids = torch.from_numpy(part).to(device)
        x_BT, y_BT = ids[:-1].view(-1, context), ids[1:].view(-1, context)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            losses_BT = model.token_losses(x_BT, y_BT)
        losses_N[start : start + pass_tokens] = losses_BT.flatten().cpu().numpy()
    return losses_N


def blocks(n: int, context: int) -> np.ndarray:
    """Block of each of n targets, ``[N]``; blocks consist of windows of the trained context."""
    windows = n // context
    return np.arange(n) // context * min(BLOCKS, windows) // windows


def binned(
    losses_N: np.ndarray, positions_N: np.ndarray, blocks_N: np.ndarray
) -> Iterator[dict[str, Any]]:
    """The columns of one row for each bin of positions with at least one target."""
    bins_N = document_positions.bins(positions_N)
    shape = int(bins_N.max()) + 1, int(blocks_N.max()) + 1
    keys_N = bins_N * shape[1] + blocks_N
    counts = np.bincount(keys_N, minlength=math.prod(shape)).reshape(shape)
    sums = np.bincount(keys_N, losses_N, minlength=math.prod(shape)).reshape(shape)
    for i, (counts_K, sums_K) in enumerate(zip(counts, sums, strict=True)):
        if counts_K.any():
            yield {
                "start": document_positions.bounds(i)[0],
                "stop": document_positions.bounds(i)[1],
                "tokens": int(counts_K.sum()),
                "loss": finite(float(sums_K.sum() / counts_K.sum())),
                "loss_se": standard_error(sums_K, counts_K),
            }


def standard_error(sums_K: np.ndarray, counts_K: np.ndarray) -> float | None:
    """Standard error of a mean over tokens, from sums and counts of K blocks.

    Blocks have different numbers of tokens, so the mean is a ratio of two sums. With equal counts
    this is the standard error of the mean of block means.

    Source: Cochran, Sampling Techniques (1977), chapter 6, the variance of a ratio.
    """
    k, n, total = np.count_nonzero(counts_K), counts_K.sum(), sums_K.sum()
    if k < 2 or not np.isfinite(total):
        return None
    residuals_K = sums_K - counts_K * (total / n)
    return float(np.sqrt(k / (k - 1) * np.sum(residuals_K**2)) / n)


def _columns(
    model: GPT, tokens: np.ndarray, document_N: np.ndarray, cell: Cell
) -> Iterator[dict[str, Any]]:
    n = len(tokens) - 1
    blocks_N = blocks(n, cell.context)
    for context in contexts(cell.context):
        losses_N = token_losses(model, tokens, context)
        for axis, positions_N in (("sequence", np.arange(n) % context), ("document", document_N)):
            for values in binned(losses_N, positions_N, blocks_N):
                yield {"context": context, "axis": axis, **values}


def _dataset(stream: Stream, cell: Cell, tokenizer: str | None) -> str:
    """The name of the text, from the sidecar of its first shard.

    Args:
        stream: The tokens.
        cell: The cell of the run.
        tokenizer: SHA-256 of the run's tokenizer; None if its shards had no sidecar.

    Raises:
        UserError: The text was tokenized otherwise than the one that the run trained on.
    """
    sidecar = read_json((stream.folder / stream.shards[0].file).with_suffix(".json"), "sidecar")
    if sidecar["encoding"] != cell.data.encoding:
        raise UserError(
            f"tokens {stream.folder} have encoding {sidecar['encoding']}; "
            f"allowed: {cell.data.encoding}, the encoding of run {cell.run}"
        )
    if tokenizer not in (None, sidecar["ranks_sha256"]):
        raise UserError(
            f"tokens {stream.folder} are of a tokenizer with SHA-256 {sidecar['ranks_sha256']}; "
            f"allowed: {tokenizer}, the tokenizer of run {cell.run}"
        )
    return sidecar["dataset"]


def _device(cell: Cell) -> torch.device:
    """A GPU if the run was trained on GPUs, so that the precision is the same."""
    if cell.gpus and not torch.cuda.is_available():
        raise UserError(
            f"cell {cell.name} was trained on a GPU and this machine has none; "
            "run it on a machine with a GPU"
        )
    return torch.device("cuda" if cell.gpus else "cpu")
