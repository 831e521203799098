"""A run as a model of lm-evaluation-harness, which finds it by the entry point ``lmscaling``:

    lm_eval --model lmscaling --model_args run=results/<study>/runs/<run> --tasks hellaswag

A text is scored as in training: end-of-text precedes it, and the padding of the vocabulary takes
part in the softmax. Texts are scored one after another, whatever ``batch_size`` is.

Legend: N targets, D model width, V vocabulary (padded).
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

from lmscaling.bench.checks import gate
from lmscaling.errors import UserError, choose
from lmscaling.evaluate import sampling

DTYPES = {"float32": torch.float32, "float64": torch.float64}

ROWS, MOST_NEW = 1024, 256
"""Targets whose logits are in memory at once; tokens of an answer if a task does not say."""


class RunLM(LM):
    """The final weights of a run.

    Args:
        run: ``results/<study>/runs/<run>``.
        device: By default a GPU if the run had one and there is one, else the CPU.
        dtype: float32 or float64; by default matrices are multiplied as in training, in bfloat16
            on a GPU.

    Raises:
        UserError: The run has no weights, no tokenizer or no text, or there is no such type.
    """

    def __init__(
        self, run: str, device: str | None = None, dtype: str | None = None, **_: Any
    ) -> None:
        super().__init__()
        cell, model, self.text = sampling.opened(Path(run))
        if device is None:
            device = "cuda" if cell.gpus and torch.cuda.is_available() else "cpu"
        if dtype not in (None, *DTYPES):
            raise UserError(f"dtype {dtype!r} is no type of weights; {choose(dtype, DTYPES)}")
        self.is_mixed = dtype is None and torch.device(device).type == "cuda"
        self.model = model.to(device, DTYPES[dtype or "float32"])
        gate.require(
            gate.record_beside(Path(run), cell), self.model, 1, self._place, compiled=False
        )
        self.end_of_text = cell.model.vocab_size - 1

    @property
    def _place(self) -> torch.device:
        return self.model.wte.weight.device

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """Log-likelihood in nats of each continuation after its context, and whether each of its
        tokens is the most likely one. A context that is too long loses its beginning."""
        return [self._continuation(*request.args) for request in requests]

    def _continuation(self, context: str, continuation: str) -> tuple[float, bool]:
        words = context.rstrip()  # white space belongs to the token that follows
        ids, n = self._ids(context + continuation), len(self._ids(words))
        return self._scored(ids, min(n, len(ids) - 1))

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """Log-likelihood of each text, each token of it predicted once, from as many tokens before
        it as the contexts allow."""
        return [self._scored(self._ids(request.args[0]), 1)[0] for request in requests]

    def _ids(self, text: str) -> list[int]:
        return [self.end_of_text, *self.text.encode(text)]

    @torch.no_grad()
    def _scored(self, ids: list[int], first: int) -> tuple[float, bool]:
        """Of the tokens from number ``first`` on, in windows of the context of the run."""
        total, is_greedy, context = 0.0, True, self.model.context
        tokens_N = torch.tensor(ids, device=self._place)
        for start in range(first, len(ids), context):
            stop = min(start + context, len(ids))
            window_N = tokens_N[max(0, stop - 1 - context) : stop - 1]
            with torch.autocast(self._place.type, torch.bfloat16, enabled=self.is_mixed):
                h_ND = self.model.hidden(window_N.unsqueeze(0))[0, start - stop :]
            parts = h_ND.split(ROWS), tokens_N[start:stop].split(ROWS)
            for h, targets in zip(*parts, strict=True):
                logits = self.model.logits(h.to(self.model.head_weight.dtype))
                total -= float(F.cross_entropy(logits, targets, reduction="sum"))
                is_greedy &= bool((logits.argmax(-1) == targets).all())
        return total, is_greedy

    def generate_until(self, requests: list[Any]) -> list[str]:
        """What follows each context, up to one of the strings ``until`` or the end of the text."""
        return [self._answer(*request.args) for request in requests]

    def _answer(self, context: str, options: dict[str, Any]) -> str:
        until = options.get("until") or []
        ends = [until] if isinstance(until, str) else until
        n = min(int(options.get("max_gen_toks", MOST_NEW)), self.model.context - 1)
        temperature = float(options.get("temperature", 1)) if options.get("do_sample") else 0.0
        ids = self._ids(context)[n - self.model.context :]
        prompt_BT = torch.tensor([ids], device=self._place)
        decode, text = self.text.decoder(), ""
        for x_B in sampling.generate(self.model, prompt_BT, n, temperature):
            if int(x_B) == self.end_of_text:
                break
            text += decode(int(x_B))
            if found := [at for end in ends if (at := text.find(end)) >= 0]:
                return text[: min(found)]
        return text + decode(None)
