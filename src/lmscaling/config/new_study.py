"""What a study must be to begin with, beyond what its records must be to be read.

A study that has results stays readable, whatever this module will refuse one day. One that somebody
is about to run is compared with the text, the files and the folders that are there.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmscaling.config import sweeps
from lmscaling.config.budget import parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.checks import Rule, check
from lmscaling.config.grid import Grid, expand, of_task
from lmscaling.config.places import StudyError, located
from lmscaling.config.study import Study
from lmscaling.data.rows import Corpus
from lmscaling.errors import UserError, choose

LONGEST_STUDY = 64
LONGEST_RUN = 150
"""Longest name of a run: a temporary file beside its files adds a host and a process to the name,
and a file system allows 255 characters."""


def plan(values: dict[str, Any], folder: str = "results") -> Grid:
    """The cells of a study that is about to be run.

    Args:
        values: The study, as ``study_file.read_study`` returns it.
        folder: Folder of all studies.

    Raises:
        UserError: The study is invalid, or cannot be run as it is meant.
    """
    grid = replace(expand(values), folder=folder)
    tokenized = {
        tokens: Path(grid.results, "tokens", tokens, "manifest.json").is_file()
        for tokens in grid.corpora
    }
    with located(values):
        n = len(grid.study.study)
        problem = f"is a name of {n} characters; allowed: up to {LONGEST_STUDY}"
        check([("study", n <= LONGEST_STUDY, problem)])
        check(_of_baseline(grid.study))
        for cell in (*grid.cells.values(), *grid.tasks.values()):
            check(_of_cell(grid.study, cell))
            check(_of_rung(cell, grid.corpora[cell.data.folder]))
        for tokens, corpus in grid.corpora.items():
            if not tokenized[tokens]:
                check(_of_files(corpus))
        check(_of_amounts(grid.study, tokenized[grid.tokens]))
        for name, study in grid.variants.items():
            [tokens] = {cell.data.folder for cell in grid.tasks.values() if cell.task == name}
            with of_task(name):
                check(_of_amounts(study, tokenized[tokens]))
        sweeps.expand(grid.study)
    return grid


def needs_counts(values: dict[str, Any]) -> bool:
    """Whether a budget of a study may depend on models, which ``model/sizing.py`` counts."""
    parts = [values, *(values.get("tasks") or {}).values()]
    budgets = [part.get("budget") for part in parts if isinstance(part, dict)]
    return any(isinstance(text, str) and ("flop" in text or "per" in text) for text in budgets)


def _of_baseline(study: Study) -> Iterator[Rule]:
    """A baseline that the study names is one of its attentions; the default may be none."""
    known = study.axes.values("attention")
    usual = study.baseline == Study.baseline
    problem = f"{study.baseline!r} is no attention of the study; {choose(study.baseline, known)}"
    yield "baseline", usual or study.baseline in known, problem


def _of_cell(study: Study, cell: Cell) -> Iterator[Rule]:
    """The budget holds an update, its branches too, and more than the warm-up; the name is short
    enough for files."""
    update = cell.update_tokens
    updates = parse_budget(cell.budget).updates(update)
    yield (
        "budget",
        updates >= 1,
        f"{cell.budget} is less than one update of {update} tokens; allowed: at least {update} "
        "tokens",
    )
    warm_up = cell.optimizer.warmup_updates
    yield (
        "optimizer.warmup_updates",
        warm_up <= updates,
        f"{warm_up} is more than the updates of the budget, so the peak rate would never be "
        f"reached; allowed: up to {updates // 1:.0f}",
    )
    for share in cell.keep:
        shares = study.branches.shares if study.branches else []
        yield (
            ("branches", "shares", shares.index(share)),
            share * updates >= 1,
            f"{share:g} is less than one of the {updates:.4g} updates of the budget; allowed: from "
            f"{1 / updates:.2g}",
        )
    yield (
        "axes.attention",
        len(cell.run) <= LONGEST_RUN,
        f"names the cell {cell.name} with {len(cell.run)} characters; allowed: up to "
        f"{LONGEST_RUN}, so give the size a shorter name, or the attention a file of its own",
    )


def _of_rung(cell: Cell, corpus: Corpus) -> Iterator[Rule]:
    """The text, as far as is known, pays a budget that others are compared with."""
    tokens = parse_budget(cell.budget).updates(cell.update_tokens) * cell.update_tokens
    try:
        most = corpus.source.most_tokens("train") if cell.rung else None
    except UserError:  # the rules of files say so
        most = None
    yield (
        "budget",
        most is None or tokens <= cell.epochs * most or tokens == math.inf,
        f"{cell.rung} is {tokens:,.0f} tokens at size {cell.size}, and the text of "
        f"{cell.data.dataset} has at most {most or 0:,.0f}; write epochs: "
        f"{math.ceil(tokens / most) if most and tokens < math.inf else 1}, or a smaller budget",
    )


def _of_files(corpus: Corpus) -> Iterator[Rule]:
    """The local files of a text and of its tokenizer are there."""
    row = ("datasets", corpus.dataset)
    remedy = "does not exist; correct the row, or put the file there"
    try:
        local = corpus.source.local()
    except UserError as error:
        raise StudyError(row, f"cannot be read: {error}") from None
    for key, path in local:
        yield (*row, key), os.path.exists(path), f"{path} {remedy}"
        is_kept = os.path.isfile(path) or os.path.isdir(path)
        yield (*row, key), is_kept, f"{path} is no regular file; write its text into one"
    file = corpus.encoding.file
    path = ("tokenizers", corpus.tokenizer, "file")
    yield path, not file or os.path.isfile(file), f"{file} {remedy}"


def _of_amounts(study: Study, is_tokenized: bool) -> Iterator[Rule]:
    """Contexts are as long as sequences, and there is as much to validate on as is validated on, as
    far as is known. Local files of a text that is tokenized may be gone."""
    row, source = f"datasets.{study.dataset}", study.datasets[study.dataset]
    try:
        length = source.length
        most = None if is_tokenized else source.most_tokens("validation")
    except UserError as error:
        if is_tokenized:
            return
        raise StudyError(("datasets", study.dataset), f"cannot be read: {error}") from None
    for i, context in enumerate(study.axes.context):
        problem = f"{context} is not the length of the sequences of {row}; allowed: {length}"
        yield ("axes", "context", i), length in (None, context), problem
    more = "validate on more sequences" if length else "name more files"
    tokens = study.validation.tokens
    yield (
        "validation.tokens",
        most is None or tokens <= most,
        f"{tokens} is more than the validation text of {row} can have, at most {most or 0:,.0f}; "
        f"write fewer tokens, or {more}",
    )
