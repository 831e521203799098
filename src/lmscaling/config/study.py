"""The schema of a study file, as frozen checked dataclasses; ``grid.py`` derives the cells."""

from dataclasses import asdict, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapSerializer, WrapValidator
from pydantic.dataclasses import dataclass

from lmscaling.config.axes import Axes, Branches, Evaluate, Exempt, Skip, Where
from lmscaling.config.budget import Budget, Counts
from lmscaling.config.cell import Initial, Optimizer, Parts, Validation
from lmscaling.config.devices import Device
from lmscaling.config.schedule import CONSTANT, AnySchedule
from lmscaling.config.speed import Speed
from lmscaling.config.tasks import Task
from lmscaling.data.rows import DatasetRow, Tokenizer
from lmscaling.errors import choose
from lmscaling.types import (
    STRICT,
    Context,
    Documents,
    Epochs,
    Flag,
    GPUs,
    Heads,
    InitStd,
    Layers,
    Name,
    Number,
    Position,
    Positive,
    Rate,
    Timed,
    Width,
    WidthRule,
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Size:
    """One model size: the shape of a GPT-2 and its learning rates."""

    n_layer: Layers
    """Number of transformer blocks."""
    n_head: Heads
    """Number of attention heads; must divide ``d_model``."""
    d_model: Width
    """Width of the residual stream."""
    lr: Rate | dict[Name, Rate]
    """Peak learning rate at ``lr_scale`` 1; or that of each attention by label, as in ``{softmax:
    6e-4, linear: 1e-3}``."""
    token_shift: Flag = False
    """Whether each token's embedding also has a learned share of the token before it, of its own
    document if documents are masked."""
    init_std: InitStd = 0.02
    """Standard deviation of the initial weights; GPT-2's is 0.02."""

    def __post_init__(self) -> None:
        if self.d_model % self.n_head:
            low = self.d_model - self.d_model % self.n_head
            raise ValueError(
                f"d_model {self.d_model} is not a multiple of n_head {self.n_head}; "
                f"nearest widths are {low} and {low + self.n_head}"
            )

    def rate(self, attention: str) -> float:
        """The rate of an attention. One that only the speed study has may be without: its times do
        not depend on it, so it gets the first."""
        if isinstance(self.lr, dict):
            return self.lr.get(attention, next(iter(self.lr.values())))
        assert not isinstance(self.lr, str)
        return self.lr


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OwnDevice:
    """A device that is not listed, for the plan. No result depends on it."""

    peak_flops: Annotated[float, Field(ge=1e9, le=1e18), Number]
    """Dense bf16 FLOP/s, without sparsity."""
    bandwidth: Annotated[float, Field(ge=1e9, le=1e15), Number]
    """Bytes per second of its memory."""
    memory_bytes: Annotated[float, Field(ge=1e9, le=1e14), Number]
    """Bytes of its memory."""
    power: Annotated[float, Field(ge=1, le=1e5), Number] | None = None
    """Largest power of its board, watts."""


def _part(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """``all`` is the part without an axis, and ``auto`` is no part of its own."""
    if isinstance(value, str) and value not in ("all", "auto"):
        raise ValueError(
            f"{value!r} is no part of the grid; {choose(value, ('all', 'auto'))}, null, or values "
            "of axes, such as {size: 124M}"
        )
    return value if value == "auto" else check({} if value == "all" else value)


if TYPE_CHECKING:
    Calibrated = Where | Literal["auto"] | None
else:
    Calibrated = Annotated[
        Where | None,
        WrapSerializer(lambda value, rest: value if value == "auto" else rest(value)),
        WrapValidator(_part, json_schema_input_type=Where | Literal["all", "auto"] | None),
    ]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Study:
    """A study: the content of ``config/study.yaml``."""

    study: Name
    """Name of the study; its results are in ``results/<study>/``."""
    datasets: dict[Name, DatasetRow]
    """Available datasets by name."""
    tokenizers: dict[Name, Tokenizer]
    """Available tokenizers by name."""
    sizes: dict[Name, Size]
    """Available model sizes by name; only those listed in ``axes`` are trained."""
    dataset: str
    """Row under ``datasets`` that the study trains on."""
    tokenizer: str
    """Row under ``tokenizers`` that the study uses."""
    axes: Axes
    ablate: dict[str, Any] = field(default_factory=dict)
    """Values by dotted names, as ``position: none``, each of which alone replaces that of the
    study, for all its cells: what one part of a recipe is worth."""
    skip: list[Skip]
    """Combinations that are left out, with the reason."""
    exceptions: list[Exempt] = field(default_factory=list)
    """Cells with other ``gpus``, ``update_tokens``, ``epochs`` or ``lr`` than the rest, with the
    reason."""
    baseline: Name = "softmax"
    """Label of the attention that the others are compared with; without it on the axis, the first
    one there."""
    match: Literal["params"] | None = None
    """With ``params``, all models of a size have as many parameters as that of the baseline: the
    width of their MLPs is chosen so, as a multiple of 8. By default all MLPs are equally wide."""
    position: Position = "learned"
    """Position encoding: a learned table, rotary embeddings of queries and keys, or none."""
    block: Parts = Parts()
    """Norm, MLP, biases and heads of the models, and their output."""
    width_rule: WidthRule | None = None
    """How initial weights, learning rates and logits depend on the width of a model. With ``mup``,
    learning rates are those at ``base_width`` (Yang et al. 2022, arXiv:2203.03466, table 8); null
    changes nothing with the width."""
    base_width: Width | None = None
    """``d_model`` that ``width_rule`` counts from; not used without a rule."""
    initial: Initial | None = None
    """Finished runs whose weights models begin with; null draws them from the seed."""
    documents: Documents = "mixed"
    """With ``masked``, attention does not cross documents and positions restart in each. With
    ``mixed``, a token sees all earlier tokens of its sequence, also those of other documents."""
    update_tokens: Context
    """Tokens per optimizer update, over all devices; the same for every cell."""
    budget: Budget
    """Budget of a cell: ``24 hours`` of productive time, ``200 updates``, ``1e9 tokens``, ``1e18
    flops``, or ``20 tokens per parameter``, of all of them or ``per non-embedding parameter``."""
    counts: dict[str, Counts] = field(default_factory=dict)
    """FLOPs and parameters of models by a hash of their shapes, for budgets that depend on them.
    Workflow and command line write them; not yours to write."""
    gpus: GPUs
    """GPUs per cell, all on one node; 0 trains on the CPU."""
    clock: Timed = "wall"
    """Time that runs count. ``processor`` counts the seconds that the processor works for the run,
    all its threads together, for ``gpus: 0`` only: other programs on the same cores change it
    little."""
    job_hours: Annotated[float, Field(ge=1e-3, le=8_760), Number] = 24.0
    """Longest job that the cluster allows. A longer run stops itself in time and continues in
    another job. No result depends on it, so it is not part of a cell."""
    epochs: Epochs = 1
    """Largest number of passes over the data; a run that needs more ends as ``out_of_tokens``."""
    optimizer: Optimizer
    schedule: AnySchedule = CONSTANT
    """How the learning rate changes while the budget is spent: the name of a kind, or a
    mapping with ``kind`` and the fields of that kind. The warm-up, ``optimizer.warmup_updates``,
    comes before every kind."""
    validation: Validation
    calibrate: Calibrated = field(default_factory=Where)
    """Cells that are calibrated before training: micro-batch, recomputation and tunable values are
    measured. The other cells use the plan's estimate. ``all`` for all cells; null for none. With
    ``auto``, a few of each attention; the others train with the settings of the nearest."""
    branches: Branches | None = None
    """Decayed branches; null for none."""
    evaluate: Evaluate | None = None
    """Evaluations by position; null for none."""
    speed: Speed | None = None
    """Measurements of time and memory of updates, decoding and single layers; null for none."""
    tasks: dict[Name, Task] = field(default_factory=dict)
    """Small grids on other data, such as associative recall, by name; see ``docs/tasks.md``."""
    price_per_gpu_hour: Annotated[float, Field(gt=0, le=1e6), Number] | None = None
    """Dollars; the plan then has the price of each cell. No result depends on it."""
    loggers: dict[Literal["csv", "mlflow", "tensorboard", "wandb"], dict[str, Any]] = field(
        default_factory=dict
    )
    """Loggers of Lightning that mirror the logs of runs, each with its own options, such as
    ``wandb: {offline: true}``; their packages are yours to install. No result depends on them."""
    devices: dict[str, OwnDevice] = field(default_factory=dict)
    """Devices that the plan does not know, by the beginning of the name that their driver gives."""
    published: Flag = False
    """Whether figures also show the numbers in ``results/published/``."""
    protocol: dict[str, Positive]
    """Version of the training method, for ``all`` attentions or for one by name. Raising a number
    trains the cells again to which it applies."""

    @property
    def own_devices(self) -> dict[str, Device]:
        """``devices`` as the plan takes them."""
        return {name: Device(**asdict(own), published=False) for name, own in self.devices.items()}

    @property
    def compared_with(self) -> str:
        """Label of the baseline."""
        known = self.axes.values("attention")
        return self.baseline if self.baseline in known else known[0]


def schema() -> dict[str, Any]:
    """JSON schema of the study file for editors, as in ``config/study.schema.json``."""
    made = TypeAdapter(Study).json_schema()
    made["$defs"]["Axes"]["additionalProperties"] = {
        "description": "Values of another key of the study by its dotted name, such as "
        "optimizer.weight_decay; the study's own among them.",
        "type": ["array", "object"],
    }
    return made
