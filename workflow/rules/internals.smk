# All that this workflow asks of the objects inside Snakemake and Python, with the reason: no
# directive and no option offers it.

import gc
import shlex
import sys
from pathlib import Path

from snakemake.path_modifier import PathModifier
from snakemake.utils import available_cpu_count

from lmscaling import registry
from lmscaling.runtime import slurm

# Inside a Slurm job Snakemake runs once more, to make one file. It must not ask Slurm for anything.
IN_JOB = workflow.remote_exec
if not IN_JOB:
    slurm.patch_status_query()

# Another workflow may use this one as a module: its target, its cores, and the shell of its own
# rules stay as they are.
IS_MODULE = not workflow.modifier.is_main_snakefile()
IS_DEFAULT = workflow.default_target is None
rule_name = workflow.modifier.modify_rulename

# The rules look into the folder of results while they plan, and pass it to commands. So the
# module's `prefix:` is put before it here, once, and not before each path by Snakemake.
FOLDER = workflow.modifier.path_modifier.replace_prefix("results/").removesuffix("/")
workflow.modifier.path_modifier = PathModifier(None, None, workflow)


# Of these rules alone, where `shell.prefix` would hold for all rules of all workflows.
class shell(shell):
    pass


def braced(path):
    return shlex.quote(str(path)).replace("{", "{{").replace("}", "}}")


# Jobs find the Python that runs this workflow, whether or not its environment is activated. An
# environment of conda and a container have their own Python with what this package needs, and read
# the package itself through a link: where the folder of the package is also that of all others,
# PYTHONPATH cannot name it.
if not workflow.deployment_settings.deployment_method:
    shell.prefix(f"PATH={braced(Path(sys.executable).parent)}:$PATH; ")
else:
    LINKED = Path(".snakemake", "lmscaling", "lmscaling").absolute()
    if LINKED.resolve() != registry.PACKAGE.resolve():
        LINKED.parent.mkdir(parents=True, exist_ok=True)
        LINKED.unlink(missing_ok=True)
        LINKED.symlink_to(registry.PACKAGE)
    shell.prefix(f"export PYTHONPATH={braced(LINKED.parent)}; ")

# The graph of a large study is thousands of objects that all stay. Collecting garbage among them
# took an eighth of the planning time.
gc.set_threshold(200_000, 50, 100)

# The command that makes this study again names the study files that were given.
CONFIGFILES = workflow.overwrite_configfiles

# `snakemake figures` without --cores takes all cores. The default profile cannot say so: its
# `cores:` would also cut the threads of Slurm jobs down to the cores of the login node.
SETTINGS = workflow.resource_settings
if not IS_MODULE and SETTINGS.cores is None and SETTINGS.nodes is None:
    SETTINGS.cores = workflow.global_resources["_cores"] = available_cpu_count()
CORES = SETTINGS.cores or 4


# A function, for Snakemake chooses the executor after it has read the rules.
def is_on_slurm():
    return workflow.executor_plugin is not None and workflow.executor_plugin.name == "slurm"


# A run whose budget is longer than a job takes several jobs. Each is a restart, on top of the
# profile's retries. The directive `retries:` would not do: the Snakemake inside a job would read
# it too, and make all attempts within the time of one job.
onstart:
    if workflow.non_local_exec:
        for rule, n in RUNS.further_jobs().items():
            workflow.get_rule(rule_name(rule)).restart_times = (
                workflow.execution_settings.retries + n
            )
