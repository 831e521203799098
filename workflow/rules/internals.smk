# All that this workflow asks of the objects inside Snakemake and Python, with the reason: no
# directive and no option offers it.

import gc
import os
import shlex
import sys
from pathlib import Path

from snakemake.path_modifier import PathModifier
from snakemake.utils import available_cpu_count
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

from lmscaling import registry
from lmscaling.config.types import digest
from lmscaling.runtime import slurm

# Inside a Slurm job Snakemake runs once more, to make one file. It must not ask Slurm for anything.
IN_JOB = workflow.remote_exec

# Another workflow may use this one as a module: its cores and its target stay as they are. Each of
# its `use rule` reads these files again, but changes to Snakemake are made once.
IS_MODULE = not workflow.modifier.is_main_snakefile()
IS_DEFAULT = workflow.default_target is None
IS_FIRST = not hasattr(workflow, "has_lmscaling")
workflow.has_lmscaling = True
rule_name = workflow.modifier.modify_rulename

if IS_FIRST and not IN_JOB:
    slurm.patch_status_query()

# Executors write the path of Python into the command of a job as it is; a space would divide it.
if IS_FIRST and shlex.quote(sys.executable) != sys.executable:
    for executor in (*RealExecutor.__subclasses__(), *RemoteExecutor.__subclasses__()):
        if method := vars(executor).get("get_python_executable"):
            executor.get_python_executable = lambda self, path=method: shlex.quote(path(self))

# The rules look into the folder of results while they plan, and pass it to commands. So the
# `prefix:` of a module is put before it here, once, and not before each path by Snakemake.
STUDIES = workflow.modifier.path_modifier.replace_prefix("results/").removesuffix("/")
workflow.modifier.path_modifier = PathModifier(None, None, workflow)

# Jobs find the Python that runs this workflow, whether or not its environment is activated. An
# environment of conda and a container have a Python of their own with what this package needs, and
# read the package through a link: PYTHONPATH must not name a folder that holds other packages too.
if not workflow.deployment_settings.deployment_method:
    PREFIX = f"PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH; "
else:
    LINK = Path(".snakemake", "lmscaling", digest({"to": str(registry.PACKAGE)}), "lmscaling")
    if not LINK.is_symlink():
        LINK.parent.mkdir(parents=True, exist_ok=True)
        LINK.symlink_to(registry.PACKAGE)
    PREFIX = f"export PYTHONPATH={shlex.quote(str(LINK.parent.absolute()))}; "


# A class of its own: `shell.prefix` would hold for the rules of every workflow.
class shell(shell):
    pass


shell.prefix(PREFIX.replace("{", "{{").replace("}", "}}"))

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
