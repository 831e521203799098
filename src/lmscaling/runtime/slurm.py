"""What Snakemake's Slurm plugin lacks: to queue behind earlier jobs, and to see that jobs ended.

A Snakemake that was killed leaves its jobs running, and the next one submits every open cell once
more. Slurm can make the second job of a run wait, without a GPU, until the first has ended.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

PLUGIN = "snakemake_executor_plugin_slurm"

ENDED = ("CANCELLED", "PREEMPTED")
"""States in which no process of a job runs and Slurm will start none."""


def dependencies(rules: Collection[str]) -> dict[str, str]:
    """The option of ``sbatch`` that queues a run behind its earlier jobs, by run.

    Earlier jobs are those of this user that were submitted from this folder and have not ended.
    """
    jobs: dict[str, list[str]] = {}
    for line in _queue().splitlines():
        job, comment, folder = line.split("|", 2)
        rule, _, run = comment.removeprefix("rule_").partition("_wildcards_")
        if rule in rules and Path(folder) == Path.cwd():
            jobs.setdefault(run, []).append(job)
    for run, earlier in jobs.items():
        print(
            f"{run} is with Slurm already, as job {', '.join(earlier)}: "
            "a new job waits for it and trains what it leaves unfinished",
            file=sys.stderr,
        )
    return {run: f" --dependency=afterany:{':'.join(earlier)}" for run, earlier in jobs.items()}


def excluding(sick: Collection[str]) -> str:
    """The option of ``sbatch`` that excludes these nodes; empty if there are no others.

    A cluster of one node would refuse the job for ever.
    """
    nodes = set(_listing("sinfo --noheader --Node --format=%N", "no node is excluded").split())
    return f" --exclude={','.join(sorted(sick))}" if nodes - set(sick) else ""


def _queue() -> str:
    """Jobs of this user that have not ended: number, comment, folder."""
    return _listing("squeue --me --noheader --format=%i|%k|%Z", "earlier jobs are not seen")


def _listing(command: str, otherwise: str) -> str:
    """What a command of Slurm prints; empty, with a message, if it does not answer."""
    words = shlex.split(command)
    try:
        listing = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{words[0]} does not answer ({error}); {otherwise}", file=sys.stderr)
        return ""
    return listing.stdout


def patch_status_query() -> None:
    """Let the plugin notice jobs that have ended, where it would wait for them for ever.

    It replaces the plugin's ``query_job_status`` and does nothing if there is none. Up to 2.8.0 the
    plugin has no option or hook for this: ``slurm-status-command`` accepts only ``sacct`` and
    ``squeue``, and of the states these print, the plugin takes the following for running jobs:

    - ``PREEMPTED``, which is final where a partition preempts by cancelling;
    - ``CANCELLED by 1000``, as ``sacct`` writes it;
    - none at all, after ``MinJobAge``, when Slurm has forgotten a job. ``UNKNOWN`` makes the plugin
      look for the outputs of the job instead.
    """
    plugin = sys.modules.get(PLUGIN)
    original: Callable[..., Any] | None = getattr(plugin, "query_job_status", None)
    if plugin is None or original is None:
        return
    query, listed = original, set[str]()

    async def query_with_ends(
        command: str, logger: Any
    ) -> tuple[dict[str, str] | None, float | None]:
        states, seconds = await query(command, logger)
        if states is None:
            return states, seconds
        forgotten = dict.fromkeys(listed - states.keys(), "UNKNOWN")
        listed.update(states)
        ended = {job: "CANCELLED" for job, state in states.items() if state.startswith(ENDED)}
        return states | ended | forgotten, seconds

    plugin.__dict__["query_job_status"] = query_with_ends
