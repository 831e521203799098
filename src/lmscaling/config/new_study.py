"""What a study must be to begin with, beyond what its records must be to be read.

A study that has results stays readable, whatever this module will refuse one day. One that somebody
is about to run is compared with the text, the files and the folders that are there.
"""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmscaling.config import sweeps
from lmscaling.config.budget import parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid, expand
from lmscaling.config.places import StudyError, located
from lmscaling.config.study import Study
from lmscaling.data.rows import Corpus
from lmscaling.errors import UserError

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
    with located(values):
        if len(grid.study.study) > LONGEST_STUDY:
            raise StudyError(
                f"study is a name of {len(grid.study.study)} characters; allowed: up to "
                f"{LONGEST_STUDY}",
                "study",
            )
        for cell in (*grid.cells.values(), *grid.tasks.values()):
            _check_budget(grid.study, cell)
            if len(cell.run) > LONGEST_RUN:
                raise StudyError(
                    f"the cell {cell.name} has a name of {len(cell.run)} characters; allowed: up "
                    f"to {LONGEST_RUN}, so give the size a shorter name, or the attention a file "
                    "of its own",
                    *("axes", "attention"),
                )
        for tokens, corpus in grid.corpora.items():
            if not _has_tokens(grid, tokens):
                _check_files(grid.study, corpus)
        _check_amounts(grid.study, _has_tokens(grid, grid.tokens))
        for name, study in grid.variants.items():
            [folder] = {cell.data.folder for cell in grid.tasks.values() if cell.task == name}
            _check_amounts(study, _has_tokens(grid, folder), "tasks", name)
        sweeps.expand(grid.study)
    return grid


def _has_tokens(grid: Grid, tokens: str) -> bool:
    return Path(grid.results, "tokens", tokens, "manifest.json").is_file()


def _check_budget(study: Study, cell: Cell) -> None:
    """Check that the budget holds an update, its branches too, and more than the warm-up."""
    budget = parse_budget(cell.budget)
    if budget.seconds:
        return
    tokens = cell.update_tokens if budget.unit == "tokens" else 1
    updates = budget.amount / tokens
    if updates < 1:
        raise StudyError(
            f"budget {cell.budget} is less than one update of {cell.update_tokens} tokens; "
            f"allowed: at least {cell.update_tokens} tokens",
            "budget",
        )
    warm_up = cell.optimizer.warmup_updates
    if warm_up > updates:
        raise StudyError(
            f"optimizer.warmup_updates {warm_up} is more than the {math.ceil(updates)} updates "
            f"of the budget, so the peak rate would never be reached; allowed: up to "
            f"{math.floor(updates)}",
            *("optimizer", "warmup_updates"),
        )
    for share in cell.keep:
        if share * updates < 1:
            shares = study.branches.shares if study.branches else []
            raise StudyError(
                f"branches.shares {share:g} is less than one of the {math.ceil(updates)} updates "
                f"of the budget; allowed: from {1 / updates:.2g}",
                *("branches", "shares", shares.index(share)),
            )


def _check_files(study: Study, corpus: Corpus) -> None:
    """Check that the local files of a text and of its tokenizer are there."""
    try:
        local = corpus.source.local()
    except UserError as error:
        raise StudyError(str(error), "datasets", corpus.dataset) from None
    for key, path in local:
        if not os.path.exists(path):
            raise StudyError(
                f"datasets.{corpus.dataset}.{key}: {path} does not exist; correct the row, or put "
                "the file there",
                *("datasets", corpus.dataset, key),
            )
    file = corpus.encoding.file
    if file and not os.path.isfile(file):
        raise StudyError(
            f"tokenizers.{corpus.tokenizer}.file {file} does not exist; correct the row, or put "
            "the file there",
            *("tokenizers", corpus.tokenizer, "file"),
        )


def _check_amounts(study: Study, has_tokens: bool, *task: str) -> None:
    """Check that contexts are as long as sequences, and that there is as much to validate on as is
    validated on, as far as is known.

    Args:
        study: The study, or that of a task.
        has_tokens: Whether its text is tokenized; local files may then be gone.
        task: Where the task stands in the study; nothing for the study itself.
    """
    place, source = "".join(f"{part}." for part in task), study.datasets[study.dataset]
    try:
        length = source.length
        most = None if has_tokens else source.most_tokens("validation")
    except UserError as error:
        if has_tokens:
            return
        raise StudyError(str(error), "datasets", study.dataset) from None
    for i, context in enumerate(study.axes.context):
        if length not in (None, context):
            raise StudyError(
                f"{place or 'axes.'}context {context} is not the length of the sequences of "
                f"datasets.{study.dataset}; allowed: {length}",
                *(*(task or ("axes",)), "context", i),
            )
    if most is not None and study.validation.tokens > most:
        raise StudyError(
            f"{place}validation.tokens {study.validation.tokens} is more than the validation text "
            f"of datasets.{study.dataset} can have, at most {most:,.0f}; write fewer tokens, or "
            f"{'validate on more sequences' if length else 'name more files'}",
            *(*task, "validation", "tokens"),
        )
