"""From a study to its cells: the product of the axes, less the combinations skipped.

What no single field can know is checked here: that rows exist, that contexts divide, that the
sequences of an update can be shared among the devices, and that every ``skip`` leaves something
out. Nothing is trained, opened or imported for it.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

import yaml

from lmscaling import registry
from lmscaling.config import Cell, Data, Model, Skip, Study
from lmscaling.errors import UserError, choose
from lmscaling.explain import checked
from lmscaling.fields import Split
from lmscaling.files import read_json, write_json
from lmscaling.rows import Corpus

AXES = ("attention", "size", "context", "seed", "lr_scale")
"""Axes of a grid, in the order in which cells are numbered."""

RESERVED = {"published", "measured"}
"""Folders of ``results/`` that are no study: they are in git."""


@dataclass(frozen=True)
class Grid:
    """A study with its cells by run, and what was left out of it with the reason."""

    study: Study
    cells: dict[str, Cell]
    skipped: list[tuple[Cell, str]]

    @property
    def corpus(self) -> Corpus:
        """What the cells train on."""
        return _corpus(self.study)

    @property
    def sources(self) -> dict[Split, list[str]]:
        """What each shard of a split is made from."""
        return {split: self.corpus.source.files(split) for split in get_args(Split)}

    @property
    def tokens(self) -> str:
        """Folder of the tokens below ``tokens/``."""
        return next(iter(self.cells.values())).data.folder


@dataclass(frozen=True)
class Record:
    """``study.json``: a study as it was laid out, and the command that makes it."""

    command: str
    grid: Grid


def write_record(path: Path, values: dict[str, Any]) -> Grid:
    """Write ``study.json`` if its values are whole and not there already.

    A file that would not change keeps its time, so that nothing is made anew for it.

    Returns:
        The study's grid.
    """
    grid = expand(values["study"])
    if not path.is_file() or read_json(path, "study record") != values:
        write_json(path, values)
    return grid


def read_record(path: Path) -> Record:
    """The study that lies in a folder of results.

    Raises:
        UserError: The file is missing or not whole; nearest says which studies there are.
    """
    if not path.is_file():
        known = sorted(p.parent.name for p in path.parent.parent.glob("*/study.json"))
        raise UserError(f"{path} does not exist; studies: {choose(path.parent.name, known)}")
    values = read_json(path, "study record")
    if not isinstance(values, dict) or not {"command", "study"} <= values.keys():
        raise UserError(f"study record {path} is not whole; delete it and run snakemake again")
    return Record(values["command"], expand(values["study"]))


def read_study(paths: list[Path]) -> dict[str, Any]:
    """Study files laid over each other as Snakemake does: mappings merge, all else is replaced.

    Raises:
        UserError: A file is missing or no YAML mapping.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        try:
            values = yaml.safe_load(path.read_text())
        except FileNotFoundError:
            raise UserError(f"study file {path} does not exist") from None
        except yaml.YAMLError as error:
            problem = " ".join(str(error).split())
            raise UserError(f"study file {path} is not valid YAML: {problem}") from None
        if not isinstance(values, dict):
            raise UserError(f"study file {path} holds {values!r}; allowed: keys with values")
        _lay_over(merged, values)
    return merged


def _lay_over(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _lay_over(below[key], value)
        else:
            below[key] = value


def expand(values: dict[str, Any]) -> Grid:
    """The cells of a study, in the order of its axes.

    Raises:
        UserError: Something in the study cannot be run; one sentence says what and what would.
    """
    study = checked(Study, values, "study file")
    _check_rows(study)
    cells, skipped, used = {}, [], set()
    for chosen in product(*(getattr(study.axes, axis) for axis in AXES)):
        point: dict[str, Any] = dict(zip(AXES, chosen, strict=True))
        reasons = [i for i, skip in enumerate(study.skip) if skip.axes.items() <= point.items()]
        if not reasons:
            _check_shape(study, point["context"])
        cell = _cell(study, point)
        if reasons:
            used.update(reasons)
            skipped.append((cell, study.skip[reasons[0]].reason))
        else:
            cells[cell.run] = cell
    for i, skip in enumerate(study.skip):
        if i not in used:
            raise UserError(_useless_skip(study, skip))
    if not cells:
        raise UserError("study file: skip leaves no cell; remove an entry or add to an axis")
    return Grid(study, cells, skipped)


def _cell(study: Study, point: dict[str, Any]) -> Cell:
    size = study.sizes[point["size"]]
    corpus = _corpus(study)
    concerned = ("all", point["attention"])
    return Cell(
        **point,
        lr=size.lr * point["lr_scale"],
        model=Model(
            n_layer=size.n_layer,
            n_head=size.n_head,
            d_model=size.d_model,
            vocab_size=corpus.encoding.vocab_size,
        ),
        data=Data(
            dataset=corpus.dataset,
            source=corpus.source.identity(),
            tokenizer=corpus.tokenizer,
            encoding=corpus.encoding.encoding,
        ),
        optimizer=study.optimizer,
        update_tokens=study.update_tokens,
        budget=study.budget,
        gpus=study.gpus,
        validation=study.validation,
        protocol={k: v for k, v in study.protocol.items() if k in concerned and v != 1},
    )


def _corpus(study: Study) -> Corpus:
    return Corpus(
        dataset=study.dataset,
        source=study.datasets[study.dataset],
        tokenizer=study.tokenizer,
        encoding=study.tokenizers[study.tokenizer],
    )


def _check_rows(study: Study) -> None:
    """Every name used has its row or its file."""
    if study.study in RESERVED:
        raise UserError(
            f"study file: study {study.study!r} is a folder of results/ in git; rename it"
        )
    uses = [
        ("dataset", [study.dataset], study.datasets, "row under datasets"),
        ("tokenizer", [study.tokenizer], study.tokenizers, "row under tokenizers"),
        ("axes.size", study.axes.size, study.sizes, "row under sizes"),
        ("axes.attention", study.axes.attention, registry.attentions(), "file in attention/"),
        ("protocol", study.protocol, ["all", *registry.attentions()], "file in attention/"),
    ]
    for place, names, known, what in uses:
        for name in names:
            if name not in known:
                raise UserError(
                    f"study file: {place} {name!r} has no {what}; {choose(name, known)}"
                )
    every, update = study.validation.every_tokens, study.update_tokens
    if every % update:
        nearest = max(1, round(every / update)) * update
        raise UserError(
            f"study file: validation.every_tokens {every} is not a multiple of "
            f"update_tokens {update}; nearest is {nearest}"
        )


def _check_shape(study: Study, context: int) -> None:
    """A context must cut the update and the validation set evenly, and feed every device."""
    for place, tokens in (
        ("update_tokens", study.update_tokens),
        ("validation.tokens", study.validation.tokens),
    ):
        if tokens % context:
            divisors = [d for d in range(1, tokens + 1) if tokens % d == 0]
            nearest = min(divisors, key=lambda d: abs(d - context))
            raise UserError(
                f"study file: axes.context {context} does not divide {place} {tokens}; "
                f"nearest is {nearest}"
            )
    sequences = study.update_tokens // context
    if study.gpus and sequences % study.gpus:
        fewer = max(d for d in range(1, study.gpus + 1) if sequences % d == 0)
        raise UserError(
            f"study file: axes.context {context} makes {sequences} sequences an update, which "
            f"{study.gpus} gpus cannot share evenly; set gpus to {fewer}, or leave the context out "
            f"with skip: [{{context: {context}, reason: ...}}]"
        )


def _useless_skip(study: Study, skip: Skip) -> str:
    """Which of the values named is not on its axis."""
    text = ", ".join(f"{axis}: {value}" for axis, value in skip.axes.items())
    for axis, value in skip.axes.items():
        known = getattr(study.axes, axis)
        if value not in known:
            return f"study file: skip {{{text}}} matches no cell; {axis} {choose(value, known)}"
    return f"study file: skip {{{text}}} matches no cell"
