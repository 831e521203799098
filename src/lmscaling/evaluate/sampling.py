"""Draws tokens from a trained model, one after another, from the states of its layers.

The prompt goes through the model at once (``GPT.prefill``), and each further token through
``GPT.decode_step``. A state of fixed size makes every token take the same time, however many came
before it.

Legend: B sequences, T tokens, V vocabulary (padded).
"""

import codecs
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lmscaling.config.cell import Cell
from lmscaling.data import tokenizer_file, vocabulary
from lmscaling.data.rows import SIZES, Tokenizer
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.model import finished_run
from lmscaling.model.gpt import GPT


def generate(
    model: GPT,
    x_BT: Tensor,
    n: int,
    temperature: float = 1.0,
    seed: int = 0,
    allowed_V: Tensor | None = None,
) -> Iterator[Tensor]:
    """Draw ``n`` tokens after a prompt, int64 ``[B]`` each.

    Args:
        model: The model; its device is that of the prompt.
        x_BT: The prompt, at least one token.
        n: Tokens to draw.
        temperature: Logits are divided by it; 0 takes the most likely token.
        seed: Seed of the draws.
        allowed_V: Which tokens may be drawn, boolean; those of the vocabulary by default. Its
            padding never is.
    """
    device = x_BT.device
    random = torch.Generator(device).manual_seed(seed)
    padded = model.wte.num_embeddings
    never_V = torch.arange(padded, device=device) >= model.vocab_size
    if allowed_V is not None:
        never_V[: len(allowed_V)] |= ~allowed_V.to(device)
    states = model.init_states(len(x_BT), x_BT.shape[1] + n)
    logits_BV, states = model.prefill(x_BT, states)
    for left in range(n, 0, -1):
        logits_BV = logits_BV.float().masked_fill(never_V, -torch.inf)
        if temperature:
            shares_BV = (logits_BV / temperature).softmax(-1)
            x_B = torch.multinomial(shares_BV, 1, generator=random).squeeze(1)
        else:
            x_B = logits_BV.argmax(-1)
        yield x_B
        if left > 1:
            logits_BV, states = model.decode_step(x_B, states)


@dataclass(frozen=True)
class Text:
    """The tokenizer of a run: text to tokens, and tokens to pieces of text."""

    encode: Callable[[str], list[int]]
    decoder: Callable[[], Callable[[int | None], str]]
    """Makes a function that takes one token after another and returns the text that is complete: a
    character may have several tokens. None, after the last token, returns what is left."""


def text_of(run: Path, cell: Cell) -> Text:
    """The tokenizer that a run was trained with, from ``vocabulary/`` of its study.

    Raises:
        UserError: It is not there, or is another one.
    """
    path = run.absolute().parents[1] / "vocabulary" / cell.data.vocabulary_file
    if cell.data.encoding in SIZES:
        row = Tokenizer(encoding=cell.data.encoding)  # pyright: ignore[reportArgumentType]
        encoder = vocabulary.encoding(row, path if path.is_file() else None)
        return Text(encoder.encode_ordinary, lambda: _of_bytes(encoder.decode_single_token_bytes))
    loaded = tokenizer_file.load(path)
    expected = read_json(run / "run.json", "run record").get("ranks_sha256")
    if expected not in (None, loaded.sha256):
        raise UserError(
            f"tokenizer {path} has SHA-256 {loaded.sha256}, but run {run.name} was trained with "
            f"{expected}; put that file back"
        )
    from tokenizers.decoders import DecodeStream

    def decoder() -> Callable[[int | None], str]:
        stream = DecodeStream(skip_special_tokens=False)
        return lambda token: "" if token is None else stream.step(loaded.tokenizer, token) or ""

    return Text(lambda text: loaded.tokenizer.encode(text, add_special_tokens=False).ids, decoder)


def opened(run: Path) -> tuple[Cell, GPT, Text]:
    """A finished run of text, its model with the final weights, on the CPU, and its tokenizer.

    Raises:
        UserError: The run has no weights, no tokenizer or no text.
    """
    cell = finished_run.cell(run)
    if cell.task:
        raise UserError(
            f"run {cell.name} is of task {cell.task}, whose tokens are no text; name a run of the "
            "grid"
        )
    return cell, finished_run.model(run).eval(), text_of(run, cell)


def _of_bytes(bytes_of: Callable[[int], bytes]) -> Callable[[int | None], str]:
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    return lambda token: utf8.decode(b"", True) if token is None else utf8.decode(bytes_of(token))


def sample(
    run: Path,
    prompt: str,
    n: int,
    temperature: float,
    seed: int,
    show: Callable[[str], object] = sys.stdout.write,
) -> str:
    """Continue a prompt with the final weights of a run, and show each piece of text as it comes.

    The text ends with the model's end-of-text, after ``n`` tokens, or where a table of learned
    positions ends.

    Args:
        run: ``results/<study>/runs/<run>``.
        prompt: Text; empty for the beginning of a document.
        n: Most tokens to draw.
        temperature: 0 takes the most likely token.
        seed: Seed of the draws.
        show: Gets the pieces of text.

    Returns:
        A summary in one sentence: tokens, their speed, and the size of the state.

    Raises:
        UserError: The run has no weights or no tokenizer, or the prompt is too long.
    """
    cell, model, text = opened(run)
    end_of_text = cell.model.vocab_size - 1
    ids = [end_of_text, *text.encode(prompt)]
    is_cut = False
    if model.wpe is not None:
        if len(ids) > cell.context:
            raise UserError(
                f"the prompt has {len(ids) - 1} tokens; allowed: up to {cell.context - 1}, because "
                f"the learned positions of {cell.name} end at {cell.context}"
            )
        most = cell.context - len(ids) + 1
        n, is_cut = min(n, most), n > most
    if cell.gpus and torch.cuda.is_available():
        model.to("cuda", torch.bfloat16)
    x_BT = torch.tensor([ids], device=model.wte.weight.device)
    decode, drawn, start = text.decoder(), 0, time.perf_counter()
    show(prompt)
    for x_B in generate(model, x_BT, n, temperature, seed):
        drawn += 1
        if drawn == 1:  # the prompt and the first use of a kernel take time of their own
            start = time.perf_counter()
        if int(x_B) == end_of_text:
            break
        show(decode(int(x_B)))
        sys.stdout.flush()
    show(decode(None))
    seconds = time.perf_counter() - start
    speed = f", {(drawn - 1) / seconds:,.0f} tokens/s after the first" if drawn > 1 else ""
    with torch.no_grad():
        size = model.init_states(1, len(ids) + drawn).bytes
    ends = ", where its learned positions end" if is_cut and drawn == n else ""
    return (
        f"{drawn} tokens{ends}{speed}, state of {size:,} bytes at {len(ids) + drawn - 1:,} tokens"
    )
