# All that this workflow asks of the objects inside Snakemake and Python, with the reason: no
# directive and no option offers it.

import gc

from snakemake.utils import available_cpu_count

from lmscaling.runtime import gpus, slurm

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

# On a workstation, which submits no jobs, as many jobs run as there are GPUs, and they share its
# cores. The profile cannot say so, for machines differ.
GPUS = [] if IN_JOB or SETTINGS.nodes is not None else gpus.available()
if GPUS and "gpu" not in workflow.global_resources:
    workflow.global_resources["gpu"] = len(GPUS)
GPU_CORES = max(1, min(4, CORES // len(GPUS))) if GPUS else 4


# A function, for Snakemake chooses the executor after it has read the rules.
def is_on_slurm():
    return workflow.executor_plugin is not None and workflow.executor_plugin.name == "slurm"


# A run whose budget is longer than a job takes several jobs. Each is a restart, on top of the
# profile's retries. The directive `retries:` would not do: the Snakemake inside a job would read
# it too, and make all attempts within the time of one job.
onstart:
    if workflow.non_local_exec:
        for rule, n in RUNS.further_jobs().items():
            workflow.get_rule(rule).restart_times = workflow.execution_settings.retries + n


# A rule that needs no GPU is a local rule, unless the profile gives it a place of its own under
# `set-resources:`, as on a cluster whose nodes for data transfer are a partition. Snakemake knows
# these resources only after the rule has said where it runs.
def runs_here(rule):
    places = SETTINGS.overwrite_resources.get(rule, {})
    return not any(name.startswith("slurm_") for name in places)


# Where a shard is missing or the manifest is outdated, all that leads to the manifest has to run. By
# itself Snakemake would not run a job whose output a stopped workflow left, nor make a manifest anew
# because a shard was deleted.
def forcing(ask):
    def marks(wildcards):
        if not IN_JOB:
            workflow.dag.forcefiles.update(SHARDS.due(wildcards))
        return ask(wildcards)

    return marks
