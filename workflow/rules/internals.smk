# All that this workflow asks of the objects inside Snakemake and Python, with the reason: no
# directive and no option offers it.

import gc
import os
import sys
from pathlib import Path

from snakemake.cli import get_profile_dir
from snakemake.utils import available_cpu_count

from lmscaling.runtime import slurm, slurm_submission

# The graph of a large study is thousands of objects that all stay. Collecting garbage among them
# took an eighth of the planning time.
gc.set_threshold(200_000, 50, 100)

# Inside a Slurm job Snakemake runs once more, to make one file. It must not ask Slurm for anything.
IN_JOB = workflow.remote_exec
if not IN_JOB:
    slurm.patch_status_query()

# The command that makes this study again names the study files that were given.
CONFIGFILES = workflow.overwrite_configfiles

# `snakemake figures` without --cores takes all cores. The default profile cannot say so: its
# `cores:` would also cut the threads of Slurm jobs down to the cores of the login node.
SETTINGS = workflow.resource_settings
if SETTINGS.cores is None and SETTINGS.nodes is None:
    SETTINGS.cores = workflow.global_resources["_cores"] = available_cpu_count()
CORES = SETTINGS.cores or 4


# A function, for Snakemake chooses the executor after it has read the rules.
def is_on_slurm():
    return workflow.executor_plugin is not None and workflow.executor_plugin.name == "slurm"


# What the profile gives to every job as `slurm_extra`. A rule with its own would lose it.
def site_options():
    given = SETTINGS._parsed_default_resources.get("slurm_extra")
    known = {"input": [], "attempt": 1, "threads": 1, "rulename": "train"}
    asked = given and given.evaluate(None, async_run=workflow.async_run, **known)
    return str(asked.value or "") if asked else ""


SITE_OPTIONS = site_options()


# The file of `--profile`, whose lines a message names. Snakemake keeps only what it says.
def profile():
    words = [word for given in sys.argv for word in given.split("=", 1)]
    after = dict(zip(words, words[1:]))
    name = after.get("--profile", os.environ.get("SNAKEMAKE_PROFILE", ""))
    found = get_profile_dir(name) if name else None
    return Path(os.path.relpath(os.path.realpath(found[1]))) if found else None


# A run whose budget is longer than a job takes several jobs. Each is a restart, on top of the
# profile's retries. The directive `retries:` would not do: the Snakemake inside a job would read
# it too, and make all attempts within the time of one job.
onstart:
    if workflow.non_local_exec:
        for rule, n in RUNS.further_jobs().items():
            workflow.get_rule(rule).restart_times = workflow.execution_settings.retries + n
    if is_on_slurm():
        executor = workflow.scheduler._executor
        slurm_submission.Submission(executor, RUNS.queue, profile(), sys.argv)
