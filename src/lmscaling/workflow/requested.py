"""What was asked of Snakemake, and its answer in words: targets, dry runs, and the end of a run.

A finished result is a source file to Snakemake, and a source file is no target. People name one
all the same, so targets are looked at before Snakemake does.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.formatting import aligned, skipped, some
from lmscaling.plan import estimate, jobs
from lmscaling.records import ledger
from lmscaling.runtime.job_logs import Failure

LISTED = 20
"""A dry run of so many jobs names each of them."""

WHY = {
    "forced": "forced",
    "output files have to be generated": "missing",
    "incomplete output files": "incomplete",
    "updated input files": "an input is newer",
    "input files updated by another job": "an input is made again",
    "set of input files has changed since last execution": "other inputs",
    "params have changed since last execution": "other parameters",
    "neither input nor output": "it declares no file",
    "run or shell but no output": "it declares no file",
}
"""Reasons of a job, as ``snakemake.jobs.Reason.get_names`` calls them, in a word."""


class Targets:
    """Files and rules that a user has named."""

    def __init__(
        self,
        is_made: Callable[[str], bool],
        known: Callable[[], Iterable[str]],
        represented: Callable[[str], str] = str,
    ) -> None:
        """Look at targets.

        Args:
            is_made: Says whether a name is a rule, or a file that some rule makes now.
            known: All names that a study has, for the message about another one.
            represented: The output of the job that makes a file.
        """
        self.is_made, self.known, self.represented = is_made, known, represented

    def resolve(self, target: str) -> str | None:
        """What Snakemake is asked for in place of a target; None if it is finished.

        Raises:
            UserError: There is no such target; the message names the nearest.
        """
        path = os.path.relpath(target)
        if (other := self.represented(path)) != path:
            return other
        for name in (target, path):
            if self.is_made(name):
                return name
        if os.path.exists(path):
            return None
        raise UserError(_unknown(target, list(self.known())))

    def resolve_all(self, targets: Iterable[str]) -> list[str]:
        """What Snakemake is asked for, in order; standard error names what is finished."""
        found = {target: self.resolve(target) for target in targets}
        for target, asked in found.items():
            if asked is None:
                print(
                    f"{target} is finished, so it stays as it is{_again(target)}", file=sys.stderr
                )
        return list(dict.fromkeys(asked for asked in found.values() if asked is not None))


def _again(target: str) -> str:
    """What to type to make a finished result again; empty if it is none of ours."""
    parts = Path(os.path.relpath(target)).parts
    match parts:
        case ("results", study, "runs", run, "run.json"):
            return f"; to train it again: lmscaling reset --study {study} {run}"
        case ("results", study, "speed", kind, sweep, "sweep.json"):
            size = sweep.rpartition("-")[0]
            return f"; to measure it again: lmscaling reset --study {study} {kind}/{size}"
        case ("results", *_):
            return "; delete it to make it again"
    return ""


def _unknown(target: str, known: list[str]) -> str:
    """A sentence about a target that is neither made nor there."""
    folded = {name.lower(): name for name in known}
    words = {os.path.basename(os.path.dirname(name)).lower(): name for name in known}
    names = folded if "/" in target else words | folded
    close = get_close_matches(target.lower(), names, n=1, cutoff=0.5)
    nearest = f"; nearest is {names[close[0]]}" if close else ""
    listed = "" if nearest else "; snakemake --list lists the rules"
    return f"{target} is neither a rule nor a file of this study{nearest}{listed}"


def dry_run(grid: Grid, pending: Iterable[str], planned: list[tuple[str, str, list[str]]]) -> str:
    """What ``snakemake -n`` prints of a study.

    Args:
        grid: The study.
        pending: Runs without a record.
        planned: Rule, wildcards and reasons of each job.
    """
    results = Path(grid.results)
    planned = [job for job in planned if job[0] != "all"]
    lines = _each(planned) if len(planned) <= LISTED else _by_rule(planned)
    cells = grid.cells | grid.branches | grid.tasks
    pending = set(pending)
    trained = {name for rule, name, _ in planned if rule == "train"}
    # One job trains all missing branches of a trunk.
    trunks = {_trunk(cells[name]) for rule, name, _ in planned if rule == "branch"}
    trained |= {run for run in pending & grid.branches.keys() if _trunk(cells[run]) in trunks}
    waiting = {run: cell for run, cell in cells.items() if run in trained}
    spent, held = _begun(results, waiting)
    kept = len(cells) - len(pending)
    if waiting:
        lines += ["", _hours(results, waiting, spent, grid.study.calibrate == "auto")]
    if kept:
        lines.append(f"{kept:,} finished {'run is' if kept == 1 else 'runs are'} kept")
    if held:
        lines.append(
            f"{len(held)} held after repeated failures, which fail again until you type "
            f"lmscaling reset --go-on --study {grid.study.study} --status held: "
            + some([cells[run].name for run in held])
        )
    lines += skipped((cell.name, reason) for cell, reason in grid.skipped)
    lines.append("snakemake -n -p lists each job; lmscaling plan estimates each cell")
    many = "job is" if len(planned) == 1 else "jobs are"
    return "\n".join([f"{len(planned):,} {many} to be done; this dry run does nothing", *lines])


def _trunk(cell: Cell) -> tuple[object, ...]:
    """What a trunk and its branches share, at a hundredth of the cost of a hash."""
    return cell.attention, cell.size, cell.context, cell.seed, cell.lr_scale


def _each(planned: list[tuple[str, str, list[str]]]) -> list[str]:
    rows = [[f"  {rule}", name, _why(reasons)] for rule, name, reasons in planned]
    return aligned(rows, left={0, 1, 2}) if rows else []


def _by_rule(planned: list[tuple[str, str, list[str]]]) -> list[str]:
    counts = Counter(rule for rule, _, _ in planned)
    reasons: dict[str, Counter[str]] = {rule: Counter() for rule in counts}
    for rule, _, names in planned:
        reasons[rule][_why(names)] += 1
    rows = [
        [f"  {rule}", f"{n:,}", ", ".join(
            why if count == n else f"{count:,} {why}"
            for why, count in reasons[rule].most_common(3)
        )]
        for rule, n in counts.items()
    ]  # fmt: skip
    return aligned(rows, left={0, 2})


def _why(names: list[str]) -> str:
    """Reasons of a job in a few words; that its input is made first is none beside others."""
    others = [name for name in names if name != "input files updated by another job"]
    return ", ".join(WHY.get(name, name) for name in others or names)


def _begun(results: Path, waiting: Mapping[str, Cell]) -> tuple[dict[str, float], list[str]]:
    """Productive seconds of runs that have begun, and the runs that are held until released."""
    spent, held = {}, []
    for run in waiting:
        if entries := ledger.recent(results / "scratch" / run / ledger.NAME):
            spent[run] = entries[-1].train_seconds
            hold = ledger.hold(entries)
            held += [run] if hold and hold.needs_release else []
    return spent, held


def _hours(
    results: Path, waiting: Mapping[str, Cell], spent: Mapping[str, float], is_auto: bool
) -> str:
    """GPU-hours until the budgets of these runs are spent."""
    seconds: dict[str, float] = {}
    pace: dict[str, float | None] = {}
    for run, cell in waiting.items():
        total = jobs.productive_seconds(cell)
        if total is None:
            name = cell.calibration
            if name not in pace:
                pace[name] = _update_seconds(results / "calibrations" / f"{name}.json")
            total = estimate.expected_seconds(cell, pace[name])
        if total is not None:
            seconds[run] = max(0.0, total - spent.get(run, 0.0)) * max(1, cell.gpus)
    n_branches = sum(cell.branch is not None for cell in waiting.values())
    text = f"{len(waiting) - n_branches:,} runs and {n_branches:,} branches are to be trained"
    unit = "GPU-hours" if any(cell.gpus for cell in waiting.values()) else "hours"
    if seconds:
        hours = sum(seconds.values()) / 3600
        text += f": at most {hours:{',.0f' if hours >= 10 else '.2g'}} {unit}"
    if unknown := len(waiting) - len(seconds):
        said = "predicted by lmscaling plan" if is_auto else "unknown until they are calibrated"
        text += f"; the time of {unknown:,} is {said}"
    return text


def _update_seconds(path: Path) -> float | None:
    if not path.is_file():
        return None
    return checked(Calibration, read_json(path, "calibration"), str(path)).update_seconds


def last_words(grid: Grid, failed: Iterable[Failure]) -> None:
    """Print what has failed at the end of a workflow, why, and what to type."""
    from lmscaling.status import failures

    failures.last_words(Path(grid.results), grid, failed)
