# From config/study.yaml to results/<study>/: `snakemake -n` prints the plan, `snakemake` does it.

import functools
import gc
import json
import os
import re
import shlex
import sys
from pathlib import Path

from snakemake.utils import available_cpu_count, min_version

from lmscaling import registry
from lmscaling.config import grid, sweeps
from lmscaling.plan import jobs, text_needs
from lmscaling.records import exports as records
from lmscaling.runtime import slurm
from lmscaling.errors import UserError

min_version("9.20")


# The graph of a large study is thousands of objects that all stay; looking for rubbish among them
# was an eighth of the time of a plan.
gc.set_threshold(200_000, 50, 100)


configfile: "config/study.yaml"


try:
    GRID = grid.expand(config)
except UserError as error:
    sys.exit(f"error: {error}")

STUDY = GRID.study
CELLS = GRID.cells
RUNS = GRID.cells | GRID.branches
FIGURES = {name: os.path.relpath(path) for name, path in registry.figures().items()}
RESULTS = f"results/{STUDY.study}"

# A cell with a record is a source file: no rule can make it, so nothing can train it again.
PENDING = [run for run in RUNS if not Path(f"{RESULTS}/runs/{run}/run.json").is_file()]

# What a reader types to make this study again.
COMMAND = " --configfile ".join(
    ["snakemake --cores all", *(os.path.relpath(p) for p in workflow.overwrite_configfiles)]
)

# `snakemake figures` without --cores takes all cores. A profile cannot say so: what the default
# profile says also cuts the threads of Slurm jobs down to the cores of the login node.
if workflow.resource_settings.cores is None and workflow.resource_settings.nodes is None:
    workflow.resource_settings.cores = available_cpu_count()
    workflow.global_resources["_cores"] = workflow.resource_settings.cores

# Inside a Slurm job Snakemake runs once more: it makes one file, and asks Slurm nothing.
IN_JOB = workflow.remote_exec
if not IN_JOB:
    slurm.see_ends()

# Jobs find the Python that runs this workflow, whether or not its environment is activated.
shell.prefix(f'PATH="{Path(sys.executable).parent}:$PATH"; ')


def any_of(names):
    """A wildcard pattern that matches these names and nothing else."""
    return "|".join(map(re.escape, names)) or "(?!)"


pathvars:
    results=RESULTS,


wildcard_constraints:
    figure=any_of(FIGURES),
    tokens=any_of(GRID.corpora),


include: "workflow/rules/study.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/speed.smk"
include: "workflow/rules/analysis.smk"


# Also a run that ended as oom or diverged is something to hear of: to Snakemake it is a success.
onsuccess:
    shell("python -m lmscaling status {RESULTS} --failed || true")


onerror:
    shell("python -m lmscaling status {RESULTS} --failed || true")


rule all:
    default_target: True
    input:
        "<results>/report.html",
        collect("<results>/runs/{run}/run.json", run=RUNS),
        collect("<results>/evaluations/{evaluation}.jsonl", evaluation=EVALUATIONS),
        collect("<results>/speed/{sweep}/sweep.json", sweep=SWEEPS),
