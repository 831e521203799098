"""A cell: one point of the grid, with every number that the result of its run depends on.

``Cell`` is the schema of ``cell.json``; ``grid.py`` derives cells from a study.
"""

import json
from dataclasses import field, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer
from pydantic.dataclasses import dataclass

from lmscaling.config.attention_row import Layer
from lmscaling.config.budget import Budget
from lmscaling.config.schedule import CONSTANT, AnySchedule, WarmUp
from lmscaling.types import (
    STRICT,
    Context,
    Documents,
    Epochs,
    Flag,
    Fraction,
    GPUs,
    Heads,
    InitStd,
    Layers,
    Name,
    Number,
    Position,
    Positive,
    Seed,
    Share,
    Timed,
    Tokens,
    Vocabulary,
    Width,
    WidthRule,
    digest,
    dump,
    less,
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Data:
    """The source of a cell's tokens."""

    dataset: Name
    """Row under ``datasets:``."""
    source: dict[str, JsonValue]
    """``Dataset.identity``: values and not a row, so that a run keeps its hash when the class of
    its row gains a field."""
    tokenizer: Name
    """Row under ``tokenizers:``."""
    encoding: str
    """Encoding of the tokenizer; ``file`` if it has no name."""
    vocabulary: dict[str, JsonValue] = field(default_factory=dict)
    """What determines the ids of a tokenizer without a name: the SHA-256 of its file. Empty for a
    named encoding."""

    @property
    def folder(self) -> str:
        """Folder of the tokens in ``tokens/``; depends on the text and the tokenizer."""
        values = less(dump(self), "dataset", *([] if self.vocabulary else ["vocabulary"]))
        return f"{self.dataset}-{self.tokenizer}-{digest(values)}"

    @property
    def vocabulary_file(self) -> str:
        """Name of the tokenizer's file in ``vocabulary/``; empty if it needs none."""
        if self.vocabulary:
            return f"{self.tokenizer}-{digest(self.vocabulary)}.json"
        return "" if self.encoding == "bytes" else f"{self.encoding}.tiktoken"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Model:
    """The shape of one GPT-2."""

    n_layer: Layers
    n_head: Heads
    d_model: Width
    vocab_size: Vocabulary
    """Vocabulary size of the tokenizer, before padding."""
    token_shift: Flag = False
    """See ``Size.token_shift``."""
    init_std: InitStd = 0.02
    """See ``Size.init_std``."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Parts:
    """What the blocks and the head of a model are made of; GPT-2's by default."""

    norm: Literal["layer", "rms"] = "layer"
    """``rms`` divides by the root mean square: no mean, no bias (Zhang and Sennrich 2019,
    arXiv:1910.07467)."""
    mlp: Literal["gelu", "swiglu"] = "gelu"
    """``swiglu`` has three matrices (Shazeer 2020, arXiv:2002.05202), 8/3 times as wide as the
    model and not 4 times, so that it has as many parameters."""
    bias: Flag = True
    """Whether linear layers and layer norms have biases."""
    qk_norm: Flag = False
    """Whether queries and keys get a root mean square norm over each head, before they are rotated,
    as in Qwen3 (arXiv:2505.09388)."""
    n_kv_head: Heads | None = None
    """Heads of keys and values, each shared by a group of heads (Ainslie et al. 2023,
    arXiv:2305.13245); null for ``n_head``."""
    softcap: Annotated[float, Field(ge=1e-3, le=1e6), Number] | None = None
    """``c`` in ``c tanh(x / c)`` of the final logits; null for none. Gemma 2 (arXiv:2408.00118) has
    30."""
    tied_head: Flag = True
    """Whether the head is the table of token embeddings."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Optimizer:
    """AdamW or Muon, and the linear warm-up of its learning rate."""

    kind: Literal["adamw", "muon"] = "adamw"
    """``muon`` is PyTorch's (Jordan 2024) for the matrices of blocks, with AdamW for all else; its
    updates are as large as AdamW's, so rates can be equal (Liu et al. 2025, arXiv:2502.16982)."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay rates of the first and second moment."""
    eps: Annotated[float, Field(ge=1e-20, le=1), Number] = 1e-8
    """Added to the square root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0, le=10), Number] = 0.1
    """Decoupled weight decay of matrices; biases and norms have none."""
    clip_norm: Annotated[float, Field(ge=1e-6, le=1e9), Number] = 1.0
    """Largest norm of the complete gradient; larger gradients are scaled down to it."""
    warmup_updates: Annotated[int, Field(ge=0, le=10**9), Number] = 700
    """Updates over which the learning rate rises linearly from 0."""

    def __post_init__(self) -> None:
        first, second = self.betas
        if first > second:
            raise ValueError(
                f"betas are [{first}, {second}], and the first moment must not be the slower one; "
                f"write betas: [{second}, {first}]"
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Validation:
    """When the validation loss is measured, and on how many tokens."""

    tokens: Tokens
    """Size of the validation set: the first tokens of the validation stream."""
    every_tokens: Tokens
    """Training tokens between validations; must be a multiple of ``update_tokens``."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Initial:
    """Finished runs whose final weights the models of a study begin with, as for a longer context
    or another text. Of the runs with this context, each cell takes that of its attention and size.
    """

    study: Name
    """The name of their study, in the same folder of results."""
    context: Context
    """Their context, tokens."""
    seed: Seed | None = None
    """Their seed; null for that of the cell."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Cell:
    """One point of the grid, with every number that the result of its run depends on."""

    task: Name | None = None
    """Row under ``tasks:``; None for a cell of the grid."""
    attention: Name
    """File stem in ``src/lmscaling/attention/``, or the label of ``layers``."""
    layers: tuple[Layer, ...] = ()
    """Attentions of the layers, repeated in this order; empty if ``attention`` is that of all."""
    match: tuple[Layer, ...] = ()
    """Attentions of the baseline whose number of parameters the model has; its MLPs are wider or
    narrower for it. Empty if the MLPs are four times as wide as the model."""
    size: Name
    """Row under ``sizes:``; its values are in ``model`` and ``lr``."""
    context: Context
    """Sequence length in tokens."""
    seed: Seed = 0
    """Seed of the initial weights and, with ``block_tokens``, of the order of the text."""
    lr_scale: Annotated[float, Field(gt=0)] = 1.0
    """Factor on the learning rate of the size; ``lr`` includes it."""
    lr: Annotated[float, Field(gt=0)]
    """Peak learning rate; see ``schedule``."""
    model: Model
    position: Position = "learned"
    """See ``Study.position``."""
    block: Parts = Parts()
    """See ``Study.block``."""
    width_rule: WidthRule | None = None
    """See ``Study.width_rule``."""
    base_width: Width | None = None
    """See ``Study.base_width``; None without a rule."""
    initial: Initial | None = None
    """See ``Study.initial``."""
    documents: Documents = "mixed"
    """See ``Study.documents``. A document begins with the last token of the vocabulary, or with its
    sequence."""
    data: Data
    block_tokens: Context | None = None
    """Tokens of the blocks of text whose order is drawn from the seed; None reads the shards from
    end to end."""
    epochs: Epochs = 1
    """See ``Study.epochs``."""
    optimizer: Optimizer
    schedule: AnySchedule = CONSTANT
    """See ``Study.schedule``."""
    update_tokens: Context
    """Tokens per optimizer update, over all devices."""
    budget: Budget
    """See ``Study.budget``; one that depends on the model is in updates here."""
    rung: Budget | None = None
    """The budget as the study says it, of a cell of an axis of budgets or if it is one that depends
    on the model."""
    gpus: GPUs
    """Number of GPUs, all on one node; 0 for the CPU."""
    clock: Timed = "wall"
    """See ``Study.clock``."""
    validation: Validation
    protocol: dict[str, Positive] = field(default_factory=dict)
    """Protocol numbers that apply to this cell and are not 1."""
    branch: Share | None = None
    """Share of the budget at which this decayed branch ends; None for a trunk."""
    keep: tuple[Share, ...] = ()
    """Shares of the budget for whose branches a trunk keeps a checkpoint. They do not change the
    run, so its name does not depend on them."""

    @model_serializer(mode="wrap")
    def _dumped(self, dumped: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without a block that is GPT-2's, AdamW, and what there is not: files of cells with them
        stay as they are."""
        optional = "width_rule", "base_width", "rung", "initial"
        absent = [name for name in optional if getattr(self, name) is None]
        absent += ["block"] if self.block == Parts() else []
        values = less(dumped(self), *absent)
        if "optimizer" in values and self.optimizer.kind == "adamw":
            values["optimizer"] = less(values["optimizer"], "kind")
        return values

    @property
    def mixers(self) -> tuple[Layer, ...]:
        """Attentions of the first layers; the following layers repeat them in this order."""
        return self.layers or (Layer(attention=self.attention),)

    @property
    def variants(self) -> list[str]:
        """File stems of its attentions, each once."""
        return list(dict.fromkeys(layer.attention for layer in self.mixers))

    @property
    def multiple(self) -> float:
        """Its width in base widths; 1 without a rule of widths."""
        return self.model.d_model / (self.base_width or self.model.d_model)

    @property
    def is_masked(self) -> bool:
        """Whether attention does not cross documents."""
        return self.documents == "masked"

    @property
    def name(self) -> str:
        """Name for display; code reads the fields and never parses the name."""
        scale = f"-lr{self.lr_scale:g}" if self.lr_scale != 1 else ""
        branch = f"-b{self.branch:g}" if self.branch else ""
        task = f"{self.task}-" if self.task else ""
        amount, _, unit = (self.rung or "").partition(" ")
        rung = f"-{amount}{unit.replace(' ', '-')}" if self.rung else ""
        point = f"{self.attention}-{self.size}-ctx{self.context}-s{self.seed}"
        return f"{task}{point}{scale}{rung}{branch}"

    @cached_property
    def run(self) -> str:
        """Folder of the run: the name and a hash of all values that are not the default."""
        return f"{self.name}-{digest(less(dump(self, exclude_defaults=True), 'keep'))}"

    @cached_property
    def trunk(self) -> str:
        """Run of the trunk; the run itself if it is not a branch."""
        return replace(self, branch=None).run if self.branch else self.run

    @property
    def rates(self) -> WarmUp:
        """Learning rates of a trunk; those of a branch depend on where its trunk left them."""
        return WarmUp(self.lr, self.optimizer.warmup_updates, self.schedule)

    @cached_property
    def calibration(self) -> str:
        """Name of the calibration, with a hash of the values that speed and memory depend on."""
        values = dump(self)
        values["model"] = dump(self.model, exclude_defaults=True)
        keys = ("attention", "model", "position", "context", "update_tokens", "gpus")
        name = f"{self.attention}-{self.size}-ctx{self.context}"
        # A value that few cells have renames no other calibration, nor those of shipped records.
        keys += tuple(key for key in ("layers", "match") if values[key])
        keys += ("documents",) if self.is_masked else ()
        keys += ("block",) if "block" in values else ()
        if self.optimizer.kind != "adamw":
            values["kind"] = self.optimizer.kind
            keys += ("kind",)
        return f"{name}-{digest({key: values[key] for key in keys})}"

    @property
    def computation(self) -> str:
        """Hash of the values that FLOPs and parameters of the model depend on."""
        keys = ("match", "model", "block", "position", "documents", "context")
        values = dump(self, exclude_defaults=True)
        own = {key: values[key] for key in keys if key in values}
        return digest(own | {"mixers": dump(replace(self, layers=self.mixers))["layers"]})

    @property
    def check(self) -> str:
        """Name of the check of its kernels, with a hash of the values that these depend on."""
        width = self.model.d_model // self.model.n_head
        values: dict[str, JsonValue]
        values = {"vocab_size": self.model.vocab_size, "position": self.position}
        if not self.gpus:  # a study that moves to GPUs is checked there, too
            values["device"] = "cpu"
        if self.layers:
            values["layers"] = dump(self)["layers"]
        if self.is_masked:
            values["documents"] = self.documents
        return f"{self.attention}-d{width}-{digest(values)}"

    def to_json(self) -> str:
        """One line of JSON with all values, including defaults."""
        return json.dumps(dump(self), ensure_ascii=True)


def branch_checkpoint(share: float) -> str:
    """Name of the trunk's checkpoint for the branch that ends at a share of the budget."""
    return f"branch-{share:g}.safetensors"
