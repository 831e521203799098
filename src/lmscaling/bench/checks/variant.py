"""The check of an attention variant before its first cell trains, in about a second.

A variant that looks ahead trains to a loss that means nothing, and one that returns another shape
fails hours later. So a small batch of random numbers is computed on the device of training, with
the width, the positions and the options of the cell, in float32 and as training computes it.

Nothing is asked of a variant but that it is a causal map of each sequence, which does the same
twice: windows, gates and maps of any kind pass, with positions and without. Where attention does
not cross documents, those of a row must be computed as each of them alone.

Legend: B sequences, T tokens, D model width.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from torch import Tensor, nn

from lmscaling import attention
from lmscaling.attention import Documents, Recomputed
from lmscaling.config import code
from lmscaling.config.cell import Cell
from lmscaling.errors import UserError
from lmscaling.files import write_record
from lmscaling.kernels.rotary import Rotary, unrotated
from lmscaling.records.checks import Finding, findings
from lmscaling.runtime import environment, faults

TOKENS = (70, 37)
"""Lengths of the sequences: longer than a chunk, and odd. Neither is a multiple of a tile."""
CUTS = (1, 2, 16, 31, 33, 63, 65, 69)
"""Tokens that keep their values while all later ones change, one number for each sequence."""
PROMPT = 33
"""Tokens that are read at once before the others are decoded one by one."""
STARTS = ((33, 34), (64,))
"""Tokens that begin a document in the middle of a row: one of a single token and, in other rows,
one at the edge of a chunk."""
ROUNDING = 2e-3
"""Largest difference between two ways to compute the same in float32, as a share of the largest
output. Of a variant that is wrong it is hundreds of times larger."""
LOWERED = 3e-2
"""The same with products in bfloat16."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An attention as a cell uses it."""

    name: str
    d_model: int = 64
    n_head: int = 4
    rotated: bool = False
    """Whether its positions are rotations."""
    context: int = TOKENS[0]
    """Longest context of the model, if the attention asks for it."""
    masked: bool = False
    """Whether attention does not cross documents."""
    options: dict[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        rotate = Rotary(self.d_model // self.n_head) if self.rotated else unrotated
        context = max(self.context, TOKENS[0])  # as long as what is checked
        size = self.d_model, self.n_head, rotate
        return attention.build(self.name, *size, context=context, **self.options)


def of_cell(cell: Cell) -> list[Variant]:
    """The attentions of a cell."""
    layers = {layer.label: layer for layer in cell.mixers}
    return [
        Variant(
            name=layer.attention,
            d_model=cell.model.d_model,
            n_head=cell.model.n_head,
            rotated=cell.position == "rope",
            context=cell.context if attention.takes_context(layer.attention) else TOKENS[0],
            options=layer.options,
            masked=cell.is_masked,
        )
        for layer in layers.values()
    ]


def require(cell: Cell, device: torch.device, path: Path) -> None:
    """Check the attentions of a cell, unless they have passed on such a device.

    Args:
        path: ``checks/<name>.json``, which gets what passes.

    Raises:
        UserError: One of them is wrong.
        RuntimeError: And any other error of the machine, or for lack of memory.
    """
    here = {
        "device": environment.device_name(cell.gpus),
        "versions": environment.versions_if_installed(("torch", "triton")),
        "code": code.present(cell),
    }
    for variant in of_cell(cell):
        key = {"part": "variant", **asdict(variant), **here}
        if any(found.key == key for found in findings(path)):
            continue
        started, before = environment.now(), time.perf_counter()
        check(variant, device)
        found = Finding(
            key=key,
            way=variant.name,
            message="",
            seconds=time.perf_counter() - before,
            started=started,
        )
        write_record(path, {"findings": [asdict(each) for each in [*findings(path), found]]})


def check(variant: Variant, device: torch.device) -> None:
    """Check an attention variant on a device.

    Raises:
        UserError: It is wrong; the sentence says what, where and what to do.
        RuntimeError: And any other error of the machine, or for lack of memory.
    """
    file = f"attention/{variant.name}.py"
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            bench = _Bench(variant.build().to(device), variant, device)
            wrong = next(filter(None, bench.faults()), None)
    except UserError:
        raise
    except Exception as error:
        if faults.out_of_memory(error) or not faults.is_result(error, device):
            raise
        lines = [f.lineno for f in extract_tb(error.__traceback__) if f.filename.endswith(file)]
        where = f" in line {lines[-1]}" if lines else ""
        wrong = f"raises {type(error).__name__}{where}: {faults.first_line(error)}"
    if wrong:
        raise UserError(
            f"attention {variant.name} {wrong}; mend {file}, then type lmscaling check "
            f"attention {variant.name}"
        )


class _Bench:
    """A variant with random inputs."""

    def __init__(self, attend: nn.Module, variant: Variant, device: torch.device) -> None:
        self.attend, self.masked, self.device = attend, variant.masked, device
        self.x_BTD = torch.randn(len(CUTS), TOKENS[0], variant.d_model).to(device)
        self.other_BTD = torch.randn(len(CUTS), TOKENS[0], variant.d_model).to(device)

    def faults(self) -> Iterator[str | None]:
        """What is wrong, from what would explain the rest; None for each property that holds."""
        trained = self.device.type == "cuda"  # with products in bfloat16; in float32 on a CPU
        for lowered in (False, True):
            for T in TOKENS:
                yield self._form(self.x_BTD[:2, :T], lowered)
        for T in TOKENS:
            yield self._repeated(self.x_BTD[:2, :T], trained)
            yield self._alone(self.x_BTD[:2, :T])
        yield self._ahead(trained)
        yield self._gradients(self.x_BTD[:2], trained)
        if not isinstance(self.attend, Recomputed):
            yield self._decoded(self.x_BTD[:2])
        if self.masked:
            yield from self._of_documents(trained)

    def _of_documents(self, trained: bool) -> Iterator[str | None]:
        documents = self._documents(2)
        for lowered in sorted({False, trained}):
            yield self._form(self.x_BTD[:2], lowered, documents)
            yield self._separate(lowered, documents)
        yield self._repeated(self.x_BTD[:2], trained, documents)
        yield self._ahead(trained, self._documents(len(CUTS)))

    def _documents(self, rows: int) -> Documents:
        """Documents that begin at ``STARTS``, in one row after the other."""
        starts_BT = torch.zeros(rows, TOKENS[0], dtype=torch.bool)
        for b in range(rows):
            starts_BT[b, list(STARTS[b % len(STARTS)])] = True
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
            names = " or ".join(map(_short, allowed))
            return f"returns {_short(y_BTD.dtype)} for float32{where}; allowed: {names}"
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
            "no random numbers, no state of earlier calls and no sums in the order of arrival"
        )

    def _alone(self, x_BTD: Tensor) -> str | None:
        together_BTD = self._compute(x_BTD)
        for b, x_TD in enumerate(x_BTD):
            error_T = _errors(self._compute(x_TD[None]), together_BTD[b : b + 1])
            if (wrong_T := ~(error_T <= ROUNDING)).any():
                return (
                    "mixes the sequences of a batch: one of them alone gives another result, first "
                    f"at position {_first(wrong_T)}; compute each sequence by itself"
                )
        return None

    def _ahead(self, lowered: bool, documents: Documents | None = None) -> str | None:
        """Each sequence keeps its first tokens; what is computed of these must keep every bit."""
        cuts = torch.tensor(CUTS, device=self.device)
        early_BT = torch.arange(TOKENS[0], device=self.device) < cuts[:, None]
        expected_BTD = self._compute(self.x_BTD, lowered, documents)
        changed_BTD = torch.where(early_BT[..., None], self.x_BTD, self.other_BTD)
        found_BTD = self._compute(changed_BTD, lowered, documents)
        differs_BT = (found_BTD != expected_BTD).any(2) & early_BT
        if not differs_BT.any():
            return None
        b = int(differs_BT.any(1).nonzero()[0])
        t = _first(differs_BT[b])
        leaking = self._leaking(b, t, lowered, documents)
        return (
            f"looks ahead: its output at position {t} changes with the token at position "
            f"{leaking}; let no token see a later one, as torch.tril and is_causal do"
        )

    def _leaking(self, b: int, t: int, lowered: bool, documents: Documents | None) -> str:
        """The first later token that, changed alone, changes an output."""
        expected_D = self._compute(self.x_BTD, lowered, documents)[b, t]
        for s in range(t + 1, TOKENS[0]):
            changed_BTD = self.x_BTD.clone()
            changed_BTD[b, s] = self.other_BTD[b, s]
            if (self._compute(changed_BTD, lowered, documents)[b, t] != expected_D).any():
                return str(s)
        return f"{CUTS[b]} or later ones"

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
        given, allowed = (self.x_BTD[:2], self.other_BTD[:2]), LOWERED if lowered else ROUNDING
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
    def _decoded(self, x_BTD: Tensor) -> str | None:
        attend: Any = self.attend
        expected_BTD, (B, T, _) = attend(x_BTD), x_BTD.shape
        y_BTD, state = attend.prefill(x_BTD[:, :PROMPT], attend.init_state(B, T))
        parts = [y_BTD]
        for t in range(PROMPT, T):
            y_BD, state = attend.decode_step(x_BTD[:, t], state)
            parts.append(y_BD[:, None])
        error_T = _errors(torch.cat(parts, 1), expected_BTD)
        if not (wrong_T := ~(error_T <= ROUNDING)).any():
            return None
        t = _first(wrong_T)
        step = f"prefill of {PROMPT} tokens" if t < PROMPT else f"decode_step after {t} tokens"
        return (
            f"decodes something else than forward: {step} differs at position {t}, by "
            f"{error_T[t]:.2g} of the largest output"
        )


def _errors(y_BTD: Tensor, expected_BTD: Tensor) -> Tensor:
    """The largest difference at each position, ``[T]``, as a share of the largest output."""
    return (y_BTD - expected_BTD).abs().amax((0, 2)) / expected_BTD.abs().max()


def _first(wrong_T: Tensor) -> int:
    return int(wrong_T.nonzero()[0])


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
