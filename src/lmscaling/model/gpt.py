"""GPT-2 with any attention variant; it counts its own parameters and FLOPs.

Pre-LN blocks, tanh GELU, biases, learned positions, and a head that shares its weights with the
token embedding, unless the study says otherwise. The vocabulary is padded to a multiple of 64 with
rows that no token uses. As in nanoGPT these rows take part in the softmax, where training reduces
their probability to nearly zero within a few updates.

Legend: B batch, T tokens, N = B T, D model width, V vocabulary (padded).

Source: Radford et al. 2019 (GPT-2), section 2.3; initial values as in OpenAI's code.
"""

import copy
import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lmscaling import attention
from lmscaling.config.cell import Cell
from lmscaling.errors import UserError
from lmscaling.kernels import cross_entropy
from lmscaling.kernels.rotary import Rotary, unrotated
from lmscaling.model.block import Block, blocks, norm, widened

PAD_VOCABULARY = 64
INIT_SHIFT = 0.5
"""Initial share of the token before in an embedding."""
LOGITS_AT_ONCE = 2**28
"""Most logits in memory at one time: half a GiB in bf16, with their gradient in their place."""


@dataclass
class States:
    """State of sampling: one state per block, and the number of tokens so far."""

    blocks: list[Any]
    length: int
    last_BD: Tensor | None = None
    """Embedding of the last token, if the model shifts tokens."""

    @property
    def bytes(self) -> int:
        """Size of the tensors."""
        return attention.state_bytes((self.blocks, self.last_BD))


class _Embedding(nn.Embedding):
    """Draws no values where there is no memory for them: PyTorch would load its compiler."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


class GPT(nn.Module):
    """The model of a cell, with initial weights drawn from the cell's seed, on PyTorch's default
    device: other devices draw other numbers, so training draws them on the CPU.

    Each tensor is drawn from the seed and its own name, so two variants with the same seed start
    with the same embeddings, norms and MLPs. Layers alike of a model that is only ``counted``, as
    its parameters are, share a block.
    """

    def __init__(self, cell: Cell, counted: bool = False) -> None:
        super().__init__()
        shape = cell.model
        self.context, self.vocab_size = cell.context, shape.vocab_size
        self.masked = cell.is_masked
        self.marks_windows = bool(cell.data.source.get("marked_windows"))
        padded = math.ceil(shape.vocab_size / PAD_VOCABULARY) * PAD_VOCABULARY
        torch.manual_seed(cell.seed)  # for parameters that a variant initializes itself
        rope = cell.position == "rope"
        rotate = Rotary(shape.d_model // shape.n_head) if rope else unrotated
        self.wte = _Embedding(padded, shape.d_model)
        learned = cell.position == "learned"
        self.wpe = _Embedding(cell.context, shape.d_model) if learned else None
        share = torch.full((shape.d_model,), INIT_SHIFT)
        self.shift = nn.Parameter(share) if shape.token_shift else None
        self.mixers = cell.mixers
        parts = cell.block
        self.blocks = blocks(cell, rotate, counted)
        self.norm = norm(shape.d_model, parts)
        self.head = None if parts.tied_head else nn.Linear(shape.d_model, padded, bias=False)
        """None if the head is the table of embeddings."""
        self.softcap = parts.softcap
        self.recompute = False
        """Whether the backward pass recomputes the activations of blocks."""
        self.is_marked = False
        """Whether only targets from 0 on count in ``loss``; others are -1."""
        self.multiple = cell.multiple
        """Its width in base widths; what the head reads is divided by it."""
        self.widened = widened(self.blocks, cell, rotate) if cell.width_rule else {}
        """With a rule of widths, the layers whose weights begin smaller and learn slower."""
        self._init(cell.seed, shape.n_layer, shape.init_std)

    def _init(self, seed: int, n_layer: int, init_std: float) -> None:
        """N(0, ``init_std``), scaled by 1 / sqrt(2 L) for the 2 L outputs into the residual stream;
        zero biases. With a rule of widths, divided by the root of the width in base widths where
        both ends of a layer grow with the width, and by itself where only its inputs do."""
        if self.wte.weight.is_meta:
            return
        into_residual = {block.down for block in self._each_block()}
        into_residual |= {getattr(block.attention, "out", None) for block in self._each_block()}
        for name, module in self.named_modules():
            if not isinstance(module, nn.Linear | nn.Embedding):
                continue
            std = init_std / math.sqrt(2 * n_layer) if module in into_residual else init_std
            if name in self.widened:
                std /= math.sqrt(self.multiple) if self.widened[name] else self.multiple
            key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            generator = torch.Generator(module.weight.device)
            generator.manual_seed(int.from_bytes(key[:7], "big"))
            nn.init.normal_(module.weight, std=std, generator=generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, x_BT: Tensor) -> Tensor:
        """Logits ``[B, T, V]`` of the next token, padding included; ``T`` up to the context."""
        return self.logits(self.hidden(x_BT))

    @property
    def head_weight(self) -> Tensor:
        """The weight of the head, ``[V, D]``."""
        return (self.wte if self.head is None else self.head).weight

    def logits(self, h: Tensor) -> Tensor:
        """Logits ``[..., V]`` of what ``hidden`` returns."""
        return cross_entropy.capped(F.linear(h, self.head_weight), self.softcap)

    def hidden(self, x_BT: Tensor) -> Tensor:
        """The input of the head, ``[B, T, D]``."""
        if self.marks_windows:
            x_BT = x_BT.clone()
            x_BT[:, 0] = self.vocab_size - 1
        given = (attention.Documents(x_BT == self.vocab_size - 1),) if self.masked else ()
        h_BTD = self._embed(x_BT, 0, documents=given[0] if given else None)
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                h_BTD = checkpoint(block, h_BTD, *given, use_reentrant=False)
            else:
                h_BTD = block(h_BTD, *given)
        return self._normed(h_BTD)

    def _normed(self, h: Tensor) -> Tensor:
        """What the head reads of the residual stream."""
        h = self.norm(h)
        return h if self.multiple == 1 else h / self.multiple

    def _embed(
        self,
        x_BT: Tensor,
        start: int,
        documents: attention.Documents | None = None,
        last_BD: Tensor | None = None,
    ) -> Tensor:
        """Embeddings of tokens, the first of which is at position ``start``, or in documents, and
        after a token with the embedding ``last_BD``."""
        h_BTD, stop = self.wte(x_BT), start + x_BT.shape[1]
        if self.shift is not None:
            before_BTD = F.pad(h_BTD, (0, 0, 1, 0))[:, :-1]
            if last_BD is not None:
                before_BTD = torch.cat((last_BD.unsqueeze(1), before_BTD[:, 1:]), 1)
            if documents is not None:
                before_BTD = before_BTD * (documents.positions_BT > 0).unsqueeze(-1)
            h_BTD = h_BTD + self.shift * before_BTD
        if self.wpe is None:
            return h_BTD
        if stop > self.context:  # a GPU would report a failed assertion only
            raise UserError(
                f"a context of {stop} tokens is longer than the position table; "
                f"allowed: up to {self.context}"
            )
        if documents is not None:
            return h_BTD + self.wpe(documents.positions_BT)
        return h_BTD + self.wpe(torch.arange(start, stop, device=x_BT.device))

    def init_states(self, batch: int, context: int) -> States:
        """States before the first token of each sequence, with room for ``context`` tokens."""
        states = [block.attention.init_state(batch, context) for block in self._each_block()]
        return States(states, 0)

    @torch.no_grad()
    def prefill(self, x_BT: Tensor, states: States) -> tuple[Tensor, States]:
        """Logits ``[B, V]`` after the first T tokens, and the states there.

        No gradient. The states passed in must not be used again.

        Raises:
            UserError: There are more tokens than positions in the table.
        """
        h_BTD = self._embed(x_BT, 0)
        after = []
        for block, state in zip(self._each_block(), states.blocks, strict=True):
            h_BTD, state = block.prefill(h_BTD, state)
            after.append(state)
        states = States(after, x_BT.shape[1], self._last(x_BT[:, -1]))
        return self.logits(self._normed(h_BTD[:, -1])), states

    @torch.no_grad()
    def decode_step(self, x_B: Tensor, states: States) -> tuple[Tensor, States]:
        """Logits ``[B, V]`` after the next token, and the states there; see ``prefill``."""
        h_BD = self._embed(x_B.unsqueeze(1), states.length, last_BD=states.last_BD).squeeze(1)
        after = []
        for block, state in zip(self._each_block(), states.blocks, strict=True):
            h_BD, state = block.decode_step(h_BD, state)
            after.append(state)
        return self.logits(self._normed(h_BD)), States(after, states.length + 1, self._last(x_B))

    def _last(self, x_B: Tensor) -> Tensor | None:
        """What the next token needs of a token."""
        return None if self.shift is None else self.wte(x_B)

    def each_attention(self) -> dict[str, list[Any]]:
        """The attentions of the layers, by the label of their kind."""
        n, kinds = len(self.mixers), {layer.label: [] for layer in self.mixers}
        for i, block in enumerate(self._each_block()):
            kinds[self.mixers[i % n].label].append(block.attention)
        return {label: layers for label, layers in kinds.items() if layers}

    def tunable(self, device_type: str) -> dict[str, tuple[int | str, ...]]:
        """Options of the attention on this type of device; see ``Attention.tunable``.

        Of a model with several kinds of attention, names begin with the kind: ``linear.chunk``.
        """
        kinds = self.each_attention()
        return {
            f"{label}.{name}" if len(kinds) > 1 else name: values
            for label, layers in kinds.items()
            for name, values in layers[0].tunable(device_type).items()
        }

    def tune(self, choice: dict[str, int | str]) -> None:
        """Set options of the attention by the names of ``tunable``.

        Raises:
            UserError: The attention has no such option, or an implementation has no file.
        """
        kinds = self.each_attention()
        for name, value in choice.items():
            label, _, option = name.rpartition(".")
            layers = [one for kind in kinds if label in ("", kind) for one in kinds[kind]]
            if not layers or not all(hasattr(each, option) for each in layers):
                raise UserError(
                    f"{name} {value!r}: this attention has no option {name}; leave it out"
                )
            for each in layers:
                setattr(each, option, value)

    def compile_blocks(self) -> None:
        """Compile each block in place. Those with the same attention share one graph.

        Attention of masked documents stays outside, as it would be compiled for every batch, and
        that of variants which say so.
        """
        for block in self._each_block():
            if self.masked or not getattr(block.attention, "COMPILES", True):
                block.compile_mlp()
            else:
                block.compile(dynamic=False)

    def loss(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        """Mean cross-entropy in nats per target that counts, at least float32; for one backward
        pass."""
        h_ND, y_N = self.hidden(x_BT).flatten(0, 1), y_BT.flatten()
        if self.is_marked:
            counts_N = y_N >= 0
            h_ND, y_N = h_ND[counts_N], y_N[counts_N]
        return cross_entropy.mean(h_ND, self.head_weight, y_N, self._rows, self.softcap)

    @torch.no_grad()
    def token_losses(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        """Cross-entropy of every token in nats, ``[B, T]``, at least float32, without gradient."""
        h_ND, y_N = self.hidden(x_BT).flatten(0, 1), y_BT.flatten()
        given = self.head_weight, y_N, self._rows, self.softcap
        return cross_entropy.token_losses(h_ND, *given).view_as(y_BT)

    @property
    def _rows(self) -> int:
        return max(1, LOGITS_AT_ONCE // self.wte.num_embeddings)

    @property
    def params(self) -> int:
        """Parameters without embeddings and the head: the N of scaling laws."""
        shift = 0 if self.shift is None else self.shift.numel()
        parts = Counter[nn.Module](self._each_block()) + Counter([self.norm])
        return shift + sum(n * p.numel() for part, n in parts.items() for p in part.parameters())

    @property
    def params_total(self) -> int:
        """All parameters except the rows that pad the vocabulary."""
        tables = 1 if self.head is None else 2
        rows = tables * self.vocab_size + (self.context if self.wpe is not None else 0)
        return self.params + rows * self.norm.weight.numel()

    def flops_per_token(self, lengths: Mapping[int, float] | None = None) -> float:
        """Training FLOPs per token at the cell's context: three times those of a forward pass.

        Args:
            lengths: Share of the tokens in masked documents of each length, see
                ``document_positions.lengths_in_windows``; all of the context's if not given.
        """
        head = 2 * self.head_weight.numel()
        attentions = sum(
            len(layers) * share * layers[0].flops_per_token(length)
            for layers in self.each_attention().values()
            for length, share in (lengths or {self.context: 1.0}).items()
        )
        mlps = sum(block.flops_of_mlp for block in self._each_block())
        return 3 * (head + attentions + mlps)

    def state_bytes(self, gpus: int) -> int:
        """Bytes of the states of one sequence after as many tokens as the context has.

        On GPUs the model samples in bfloat16, on a CPU in float32.
        """
        with torch.device("meta"):
            kinds = copy.deepcopy([layers[0] for layers in self.each_attention().values()])
            counts = [len(layers) for layers in self.each_attention().values()]
            dtype = torch.bfloat16 if gpus else torch.float32
            last = 0 if self.shift is None else self.shift.numel() * dtype.itemsize
            return last + sum(
                n * attention.state_bytes(one.to("meta", dtype).init_state(1, self.context))
                for n, one in zip(counts, kinds, strict=True)
            )

    def _each_block(self) -> Iterator[Block]:
        return iter(cast("list[Block]", self.blocks))  # the element type of a ModuleList is Module
