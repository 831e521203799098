"""The properties that a right attention has, held against random numbers; see ``variant.py``.

Legend: B sequences, T tokens, D model width.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lmscaling.attention import Documents, Recomputed
from lmscaling.runtime import faults

TOKENS = (70, 37)
"""Lengths of the sequences: longer than a chunk, and odd. Neither is a multiple of a tile."""
CUTS = (1, 2, 16, 31, 33, 63, 65, 69)
"""Tokens that keep their values while all later ones change, one number for each sequence."""
PROMPT = 33
"""Tokens that are read at once before the others are decoded one by one."""
STARTS = ((33, 34), (64,))
"""Tokens that begin a document in the middle of a row: one of a single token and, in other rows,
one at the edge of a chunk."""
BORDER = 128
"""Tokens of a usual block, at whose borders longer sequences are cut."""
ROUNDING = 2e-3
"""Largest difference between two ways to compute the same in float32, as a share of the largest
output. Of a variant that is wrong it is hundreds of times larger."""
LOWERED = 3e-2
"""The same with products in bfloat16, and of attentions that always have such products."""


class Bench:
    """An attention with random inputs, and the context and the kind of documents of a cell."""

    def __init__(
        self, attend: nn.Module, width: int, context: int, masked: bool, device: torch.device
    ) -> None:
        self.attend, self.context, self.masked, self.device = attend, context, masked, device
        self.rounding = LOWERED if getattr(attend, "IN_BFLOAT16", False) else ROUNDING
        self.x_BTD, self.other_BTD = self._drawn(len(CUTS), TOKENS[0], width)

    def _drawn(self, *shape: int) -> tuple[Tensor, Tensor]:
        return torch.randn(*shape).to(self.device), torch.randn(*shape).to(self.device)

    def faults(self) -> Iterator[str | None]:
        """What is wrong, from what would explain the rest; None for each property that holds."""
        trained = self.device.type == "cuda"  # with products in bfloat16; in float32 on a CPU
        for lowered in (False, True):
            for T in TOKENS:
                yield self._form(self.x_BTD[:2, :T], lowered)
        for T in TOKENS:
            yield self._repeated(self.x_BTD[:2, :T], trained)
            yield self._alone(self.x_BTD[:2, :T])
        yield self._ahead(CUTS, trained)
        yield self._gradients(self.x_BTD[:2], trained)
        if not isinstance(self.attend, Recomputed):
            yield self._decoded(self.x_BTD[:2], PROMPT)
        if self.masked:
            yield from self._of_documents(trained)
        if self.context > TOKENS[0]:
            yield from self._at_context(trained)

    def _at_context(self, trained: bool) -> Iterator[str | None]:
        """The same of one sequence as long as the context, as far as it fits into memory."""
        T, half = self.context, 1 << (self.context - 1).bit_length() - 1
        self.x_BTD, self.other_BTD = self._drawn(1, T, self.x_BTD.shape[2])
        try:
            for n in sorted({half, half + 1, T - 1, T}):
                yield self._form(self.x_BTD[:, :n], trained)
            yield self._repeated(self.x_BTD, trained)
            cuts = {BORDER, BORDER + 1, half, *(T * i // 8 + 1 for i in range(1, 8)), T - 1}
            yield self._ahead(tuple(sorted(cut for cut in cuts if cut < T)), trained)
            yield self._gradients(self.x_BTD, trained)
            if not isinstance(self.attend, Recomputed):
                yield self._decoded(self.x_BTD, T - 2)
            if self.masked:
                yield self._separate(trained, self._documents(1, ((half // 2 + 1, half),)))
        except Exception as error:  # training says so, too
            if not faults.out_of_memory(error):
                raise

    def _of_documents(self, trained: bool) -> Iterator[str | None]:
        documents = self._documents(2)
        for lowered in sorted({False, trained}):
            yield self._form(self.x_BTD[:2], lowered, documents)
            yield self._separate(lowered, documents)
        yield self._repeated(self.x_BTD[:2], trained, documents)
        yield self._ahead(CUTS, trained, self._documents(len(CUTS)))

    def _documents(self, rows: int, starts: tuple[tuple[int, ...], ...] = STARTS) -> Documents:
        """Documents that begin at these tokens, in one row after the other."""
        starts_BT = torch.zeros(rows, self.x_BTD.shape[1], dtype=torch.bool)
        for b in range(rows):
            starts_BT[b, list(starts[b % len(starts)])] = True
        return Documents(starts_BT.to(self.device))

    def _forward(
        self, x_BTD: Tensor, lowered: bool = False, documents: Documents | None = None
    ) -> Tensor:
        """In float32, or with products in bfloat16 as training on a GPU computes them."""
        attend: Any = self.attend
        with torch.autocast(self.device.type, torch.bfloat16, enabled=lowered):
            return attend.forward_documents(x_BTD, documents) if documents else attend(x_BTD)

    def _compute(
        self, x_BTD: Tensor, lowered: bool = False, documents: Documents | None = None
    ) -> Tensor:
        """As training computes it, whose kernels may differ from those without a gradient."""
        return self._forward(x_BTD, lowered, documents).detach()

    def _form(self, x_BTD: Tensor, lowered: bool, documents: Documents | None = None) -> str | None:
        y_BTD = self._forward(x_BTD, lowered, documents)
        if not isinstance(y_BTD, Tensor):
            return f"returns {type(y_BTD).__name__}; allowed: a tensor"
        if y_BTD.shape != x_BTD.shape:
            return f"returns the shape {list(y_BTD.shape)} for an input of {list(x_BTD.shape)}"
        allowed = (torch.bfloat16, torch.float32) if lowered else (torch.float32,)
        if y_BTD.dtype not in allowed:
            where = " under bfloat16 autocast" if lowered else ""
            names = " or ".join(map(str, allowed))
            said = f"returns {y_BTD.dtype} for float32{where}; allowed: {names}"
            return said.replace("torch.", "")
        if not y_BTD.isfinite().all():
            t = _first(~y_BTD.isfinite().all(2).all(0))
            return f"returns a value that is not finite at position {t} of {x_BTD.shape[1]}"
        return None

    def _repeated(
        self, x_BTD: Tensor, lowered: bool, documents: Documents | None = None
    ) -> str | None:
        first_BTD, second_BTD = (self._compute(x_BTD, lowered, documents) for _ in range(2))
        differs_T = (first_BTD != second_BTD).any(2).any(0)
        if not differs_T.any():
            return None
        return (
            f"gives another result for the same input, first at position {_first(differs_T)}; use "
            "no random numbers, no state of earlier calls and no sums in the order of arrival, and "
            "leave its input as it is"
        )

    def _alone(self, x_BTD: Tensor) -> str | None:
        together_BTD = self._compute(x_BTD)
        for b, x_TD in enumerate(x_BTD):
            error_T = _errors(self._compute(x_TD[None]), together_BTD[b : b + 1])
            if (wrong_T := ~(error_T <= self.rounding)).any():
                return (
                    "mixes the sequences of a batch: one of them alone gives another result, first "
                    f"at position {_first(wrong_T)}; compute each sequence by itself"
                )
        return None

    def _ahead(
        self, cuts: tuple[int, ...], lowered: bool, documents: Documents | None = None
    ) -> str | None:
        """Each sequence keeps its first tokens; what is computed of these must keep every bit. A
        single sequence does so with one cut after the other."""
        B, T, _ = self.x_BTD.shape
        expected_BTD = self._compute(self.x_BTD, lowered, documents)
        for part in (cuts[i : i + B] for i in range(0, len(cuts), B)):
            cuts_B1 = torch.tensor(part, device=self.device)[:, None]
            early_BT = torch.arange(T, device=self.device) < cuts_B1
            changed_BTD = torch.where(early_BT[..., None], self.x_BTD, self.other_BTD)
            found_BTD = self._compute(changed_BTD, lowered, documents)
            differs_BT = (found_BTD != expected_BTD).any(2) & early_BT
            if differs_BT.any():
                b = int(differs_BT.any(1).nonzero()[0])
                t = _first(differs_BT[b])
                return (
                    f"looks ahead: its output at position {t} changes with the token at position "
                    f"{self._leaking(b, t, lowered, documents)}; let no token see a later one, as "
                    "torch.tril and is_causal do"
                )
        return None

    def _leaking(self, b: int, t: int, lowered: bool, documents: Documents | None) -> int:
        """A later token whose change changes an output, by halving those that may."""
        expected_D = self._compute(self.x_BTD, lowered, documents)[b, t]
        first, last = t + 1, self.x_BTD.shape[1] - 1
        while first < last:
            middle = (first + last) // 2
            changed_BTD = self.x_BTD.clone()
            changed_BTD[b, t + 1 : middle + 1] = self.other_BTD[b, t + 1 : middle + 1]
            if (self._compute(changed_BTD, lowered, documents)[b, t] != expected_D).any():
                last = middle
            else:
                first = middle + 1
        return first

    def _gradients(self, x_BTD: Tensor, lowered: bool) -> str | None:
        x_BTD = x_BTD.clone().requires_grad_()
        self.attend.zero_grad()
        y_BTD = self._forward(x_BTD, lowered).float()
        (y_BTD * self.other_BTD[: len(x_BTD)]).sum().backward()
        trained = [(f"parameter {n}", p) for n, p in self.attend.named_parameters()]
        for name, tensor in [("its input", x_BTD), *trained]:
            if not tensor.requires_grad:
                continue
            if tensor.grad is None:
                return f"gives {name} no gradient; use it, or make it a buffer"
            if not tensor.grad.isfinite().all():
                return (
                    f"gives {name} a gradient that is not finite; mask before an exponential, and "
                    "divide by nothing that can be zero"
                )
        return None

    def _separate(self, lowered: bool, documents: Documents) -> str | None:
        """Each document of a row and its gradient are those of the document alone."""
        given, allowed = (self.x_BTD[:2], self.other_BTD[:2]), LOWERED if lowered else self.rounding
        parts = zip(*(x.flatten(0, 1).split(documents.lengths) for x in given), strict=True)
        alone = [self._differentiated(x[None], other[None], lowered) for x, other in parts]
        for what, found_BTD, expected in zip(
            ("output", "gradient by its input"),
            self._differentiated(*given, lowered, documents),
            zip(*alone, strict=True),
            strict=True,
        ):
            error_ND = found_BTD.flatten(0, 1) - torch.cat(expected, 1)[0]
            wrong_N = ~(error_ND.abs().amax(1) <= allowed * found_BTD.abs().max())
            for wrong_T in wrong_N.split(documents.lengths):
                if wrong_T.any():
                    return (
                        f"mixes the documents of a row: the {what} of one alone is another, first "
                        f"at position {_first(wrong_T)} of its {len(wrong_T)}; correct "
                        "forward_documents, or leave it out"
                    )
        return None

    def _differentiated(
        self, x_BTD: Tensor, other_BTD: Tensor, lowered: bool, documents: Documents | None = None
    ) -> tuple[Tensor, Tensor]:
        """The output, and the gradient by the input of its product with other numbers."""
        x_BTD = x_BTD.clone().requires_grad_()
        y_BTD = self._forward(x_BTD, lowered, documents).float()
        return y_BTD.detach(), torch.autograd.grad((y_BTD * other_BTD).sum(), x_BTD)[0]

    @torch.no_grad()
    def _decoded(self, x_BTD: Tensor, prompt: int) -> str | None:
        attend: Any = self.attend
        expected_BTD, (B, T, _) = attend(x_BTD), x_BTD.shape
        y_BTD, state = attend.prefill(x_BTD[:, :prompt], attend.init_state(B, T))
        parts = [y_BTD]
        for t in range(prompt, T):
            y_BD, state = attend.decode_step(x_BTD[:, t], state)
            parts.append(y_BD[:, None])
        error_T = _errors(torch.cat(parts, 1), expected_BTD)
        if not (wrong_T := ~(error_T <= self.rounding)).any():
            return None
        t = _first(wrong_T)
        step = f"prefill of {prompt} tokens" if t < prompt else f"decode_step after {t} tokens"
        return (
            f"decodes something else than forward: {step} differs at position {t}, by "
            f"{error_T[t]:.2g} of the largest output"
        )


def _errors(y_BTD: Tensor, expected_BTD: Tensor) -> Tensor:
    """The largest difference at each position, ``[T]``, as a share of the largest output."""
    return (y_BTD - expected_BTD).abs().amax((0, 2)) / expected_BTD.abs().max()


def _first(wrong_T: Tensor) -> int:
    return int(wrong_T.nonzero()[0])
