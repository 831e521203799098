"""Options of ``sbatch``, and the ends of jobs that Snakemake's Slurm plugin does not see."""

import re
import sys
from collections.abc import Callable, Collection
from typing import Any

from lmscaling.runtime.slurm_queue import asked, say
from lmscaling.runtime.slurm_submission import PLUGIN

SHORT = {"--exclude": "-x", "--dependency": "-d"}
"""Options of ``sbatch`` whose values are lists, and their short names."""

ENDED = ("CANCELLED", "PREEMPTED")
"""States in which no process of a job runs and Slurm will start none."""


def excluding(sick: Collection[str]) -> str:
    """The option of ``sbatch`` that excludes these nodes; empty if there are no others.

    A cluster of one node would refuse the job for ever.
    """
    listing, complaint = asked("sinfo --noheader --Node --format=%N")
    if complaint:
        say(f"{complaint}; no node is excluded")
    return f"--exclude={','.join(sorted(sick))}" if set(listing.split()) - set(sick) else ""


def joined(site: str, *ours: str) -> str:
    """Options of ``sbatch`` from the profile, then ours, which win where both say something else.

    Slurm reads only the last of several lists of nodes to exclude, or of jobs to wait for, so both
    lists become one.
    """
    options = []
    for option in filter(None, ours):
        name, _, value = option.partition("=")
        pattern = rf"(?<!\S)(?:{name}[=\s]+|{SHORT.get(name, name)}\s*)(?=[^\s-])(\S+)"
        if name in SHORT and re.search(pattern, site):
            site = re.sub(pattern, rf"{name}=\1,{value}", site)
        else:
            options.append(option)
    return " ".join(filter(None, [site, *options]))


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
