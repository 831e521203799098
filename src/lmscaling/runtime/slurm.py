"""What Snakemake's Slurm plugin does not do: queue behind jobs of an earlier Snakemake, see ends.

A Snakemake that was killed leaves its jobs at work, and one that is started again submits every
open cell once more. Slurm can make the second job wait for the end of the first, without a GPU.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PLUGIN = "snakemake_executor_plugin_slurm"

OVER = ("CANCELLED", "PREEMPTED")
"""States after which no process runs and Slurm starts none. The plugin (2.8.0) waits for ever for
a job that was preempted by cancelling, and if ``sacct`` says ``CANCELLED by 1000``."""


def behind(rules: Iterable[str]) -> dict[str, str]:
    """Option of ``sbatch`` by run, for runs that jobs submitted from this folder train already."""
    found: dict[str, list[str]] = {}
    for line in _queue().splitlines():
        job, comment, folder = line.split("|", 2)
        rule, _, run = comment.removeprefix("rule_").partition("_wildcards_")
        if rule in rules and Path(folder) == Path.cwd():
            found.setdefault(run, []).append(job)
    for run, jobs in found.items():
        print(
            f"{run} is with Slurm already, as job {', '.join(jobs)}: "
            "if there is anything left to do behind it, a new job goes on with it",
            file=sys.stderr,
        )
    return {run: f" --dependency=afterany:{':'.join(jobs)}" for run, jobs in found.items()}


def _queue() -> str:
    """Jobs of this user that have not ended: number, comment, folder."""
    command = shlex.split("squeue --me --noheader --format=%i|%k|%Z")
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"squeue does not answer ({error}); earlier jobs are not seen", file=sys.stderr)
        return ""
    return asked.stdout


def see_ends() -> None:
    """Let the plugin see that a job has ended where it would wait for ever; no-op without it."""
    plugin = sys.modules.get(PLUGIN)
    asked: Callable[..., Any] | None = getattr(plugin, "query_job_status", None)
    if plugin is None or asked is None:
        return
    query, listed = asked, set[str]()

    async def seeing(command: str, logger: Any) -> tuple[dict[str, str] | None, float | None]:
        states, seconds = await query(command, logger)
        if states is None:
            return states, seconds
        # Slurm forgets a job MinJobAge after its end. The plugin looks for the outputs of one that
        # is unknown, and counts it as failed if they are not there.
        forgotten = dict.fromkeys(listed - states.keys(), "UNKNOWN")
        listed.update(states)
        ended = {job: "CANCELLED" for job, state in states.items() if state.startswith(OVER)}
        return states | ended | forgotten, seconds

    plugin.__dict__["query_job_status"] = seeing
