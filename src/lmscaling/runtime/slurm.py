"""Commands and options for Slurm, and the ends of jobs that Snakemake's plugin does not see."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Collection
from typing import Any

from lmscaling.runtime.slurm_queue import asked, say
from lmscaling.runtime.slurm_submission import PLUGIN

SHORT = {"--exclude": "-x", "--dependency": "-d"}
"""Options of ``sbatch`` whose values are lists, and their short names."""

ENDED = ("CANCELLED", "PREEMPTED")
"""States in which no process of a job runs and Slurm will start none."""

JOBSTEP = "snakemake_executor_plugin_slurm_jobstep"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

# What sbatch was asked for must not become options of srun, which gets its own.
FORGET = (
    "for name in ${!SLURM_@} ${!SRUN_@} ${!SBATCH_@}; do"
    " [[ $name =~ ^SLURM_(CONF|JOB_?ID|ARRAY_.*|CLUSTER_NAME|SUBMIT_.*)$ ]] || unset $name; done"
)

# A file that another node wrote is seen here after a while.
AWAIT = (
    'for path in {paths}; do for i in {{1..60}}; do [ -e "$path" ] && break; sleep 1; done; done'
)


def batch_command(job: Any, command: str, as_script: bool) -> str:
    """The command of the batch script of a job, which starts the command of its rule with ``srun``.

    Args:
        job: The job of Snakemake.
        command: Of the shell, of its rule.
        as_script: Whether ``sbatch`` reads a script. If not, the plugin passes the command between
            double quotes to a shell, and escapes only these quotes.
    """
    folders = {os.path.dirname(path) or "." for path in (*job.log, *job.output)}
    steps = ["set -euo pipefail", f"mkdir -p {shlex.join(sorted(folders))}"]
    if job.input:
        steps.append(AWAIT.format(paths=shlex.join(job.input)))
    plugin: Any = sys.modules[JOBSTEP]
    settings = [
        plugin.get_cpu_setting(job, bool(job.resources.get("gpu"))),
        plugin.get_gpu_setting(job),
        plugin.get_node_setting(job),
    ]
    srun = f"exec srun -n1 --cpu-bind=q {' '.join(filter(None, settings))}"
    threads = " ".join(f"{name}={job.threads}" for name in THREADS)
    inner = shlex.join(["bash", "-c", "; ".join([*steps, command])])
    outer = shlex.join(["exec", "bash", "-c", f"{FORGET}; {srun} env {threads} {inner}"])
    return outer if as_script else re.sub(r"([\\$`])", r"\\\1", outer)


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
