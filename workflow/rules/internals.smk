# All that this workflow asks of the objects inside Snakemake and Python, with the reason: no
# directive and no option offers it.

import functools
import gc
import inspect
import os
import shlex
import sys
from pathlib import Path

from snakemake.cli import get_profile_dir
from snakemake.common import overwrite_function_params
from snakemake.io import is_flagged
from snakemake.jobs import Job
from snakemake.path_modifier import PathModifier
from snakemake.persistence import FileBackupMixin
from snakemake.resources import Resource
from snakemake.settings.enums import Quietness
from snakemake.utils import available_cpu_count
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import SharedFSUsage

from lmscaling import registry
from lmscaling.config.types import digest
from lmscaling.runtime import console, frozen, gpus, slurm, slurm_submission
from lmscaling.status import live
from lmscaling.workflow import requested

# Inside a job of another executor, or of a group, Snakemake runs once more, to make one file. It must
# not ask Slurm for anything.
IN_JOB = workflow.remote_exec
RULES = Path(str(workflow.current_basedir)).parent

# Another workflow may use this one as a module: its target, its cores, its terminal and the jobs of
# its own rules stay as they are. Each of its `use rule` reads these files again, but Slurm's plugin
# and the executors are changed once.
IS_MODULE = not workflow.modifier.is_main_snakefile()
IS_ASKED = not IN_JOB and not IS_MODULE  # by a user, with options and targets
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

# Snakemake works out the signature of a rule's function anew for every job, and of the method that
# evaluates a resource ten times for every job: a sixth of the planning time.
for subject in (Resource, *(getattr(lms, name) for name in lms.__all__)):
    for method in filter(inspect.isfunction, vars(subject).values()):
        parameters = dict(inspect.signature(method).parameters)
        parameters.pop("self", None)
        overwrite_function_params(method, parameters)


# The jobs of a dry run: rule, wildcards and reasons. The numbers are all that the terminal shows,
# so Snakemake may stop where --quiet would: before it works out what each job would print.
def planned_jobs():
    workflow.output_settings.quiet = {Quietness.RULES, Quietness.PROGRESS}
    needed = set(workflow.dag.needrun_jobs())
    ordered = [job for level in workflow.dag.toposorted(needed) for job in level]
    return [
        (
            job.rule.name,
            " ".join(job.wildcards_dict.values()),
            list(workflow.dag.reason(job).get_names()),
        )
        for job in ordered
    ]


# The cells that the terminal shows in place.
@functools.cache
def watch():
    return live.Watch(Path(RESULTS), RUNS.trunks, RUNS.finished)


# The terminal shows a few lines instead of Snakemake's ten for each job, unless an option asks for
# more or for less. The filter comes before Snakemake's own at the handler of the terminal.
CONSOLE = console.install(
    workflow.output_settings,
    workflow.exec_mode.name == "DEFAULT" and not IS_MODULE,
    lambda: requested.dry_run(GRID, RUNS.pending, planned_jobs()),
    lambda: watch().look(),
)


# Whether a name is a rule, or a file that a rule makes now. Rules match only what is missing.
def is_made(name):
    if workflow.is_rule(name):
        return True
    producers = (rule for rule in workflow.rules if rule.is_producer(name))
    return any(producers) and not lms.is_foreign(
        name, RUNS, EVALUATIONS, CALIBRATIONS, CHECKS, SAMPLES
    )


# Snakemake knows the targets once it has read the rules, so they are looked at when it begins.
TARGETS = requested.Targets(
    is_made,
    lambda: [*(rule.name for rule in workflow.rules), RECORDS.report, *RECORDS.names],
    lambda target: RUNS.represented(target),
)
EXECUTE = workflow.execute


def execute_targets(*arguments, **options):
    asked = workflow.dag_settings.targets
    try:
        targets = TARGETS.resolve_all(asked)
    except UserError as error:
        sys.exit(f"error: {error}")
    if targets or not asked:
        workflow.dag_settings.targets = targets
        EXECUTE(*arguments, **options)


if IS_ASKED:
    workflow.execute = execute_targets

# The command that makes this study again names the study files that were given. A job's file is the
# whole study, and so are what a module is given and the files of --replace-workflow-config.
CONFIGFILES = [Path(os.path.relpath(path)) for path in workflow.overwrite_configfiles]
CHANGES = dict(workflow.config_settings.config)
OVERRIDES = study_file.passed(CHANGES.pop(study_file.SET, None))
IS_WHOLE = workflow.config_settings.replace_workflow_config and CONFIGFILES
FILES = [] if IS_WHOLE else [Path(STUDY_FILE)]
FILES = [] if IS_MODULE or (IN_JOB and frozen.here()) else [*FILES, *CONFIGFILES]

# `snakemake figures` without --cores takes all cores. The default profile cannot say so: its
# `cores:` would also cut the threads of Slurm jobs down to the cores of the login node.
SETTINGS = workflow.resource_settings
if not IS_MODULE and SETTINGS.cores is None and SETTINGS.nodes is None:
    SETTINGS.cores = workflow.global_resources["_cores"] = available_cpu_count()
CORES = SETTINGS.cores or 4

# On a workstation, which submits no jobs, as many jobs run as there are GPUs, and they share its
# cores. The profile cannot say so, for machines differ.
GPUS = [] if IN_JOB or IS_MODULE or SETTINGS.nodes is not None else gpus.available()
if GPUS and "gpu" not in workflow.global_resources:
    workflow.global_resources["gpu"] = len(GPUS)
GPU_CORES = max(1, min(4, CORES // len(GPUS))) if GPUS else 4


# A finished file stays. Snakemake deletes the outputs of a job before it starts and after it has
# failed, and another job may have finished them since this one was planned. It spares outputs with
# the flag update(...) before a job. After a failure, though, it overwrites them with a copy that it
# made when the job began, or deletes them if there was none. Our jobs write each file under another
# name and rename it, so there is nothing to restore. Outputs elsewhere are left to Snakemake.
def is_kept(path):
    return Path(path).absolute().is_relative_to(Path(STUDIES).absolute())


def keeping(method):
    return lambda self, path: False if is_kept(path) else method(self, path)


async def clean_up_others(self, skipped, clean_up=Job.cleanup):
    kept = {file for file in self.output if is_flagged(file, "update") and is_kept(file)}
    await clean_up(self, {*skipped, *kept})


Job.cleanup = clean_up_others
FileBackupMixin.backup_output = keeping(FileBackupMixin.backup_output)
FileBackupMixin.restore_output = keeping(FileBackupMixin.restore_output)


# A job on Slurm would start two further Snakemakes, one in the other, and the second one the command
# of the rule. Starting the command itself saves 4 CPU seconds and 250 MB in every job. Groups of
# jobs, arrays, and environments that Snakemake activates need the others.
def started_directly(job, by_snakemake):
    others = workflow.deployment_settings.deployment_method or workflow.executor_settings.array_jobs
    if job.is_group() or not job.is_shell or others:
        return by_snakemake(job)
    job._params = None  # asked again, for an attempt has less left to do than the one before
    command = f"{shell._process_prefix} {job.shellcmd}"
    as_script = workflow.executor_settings.pass_command_as_script
    return slurm.batch_command(job, command, as_script)


# A function, for Snakemake chooses the executor after it has read the rules.
def is_on_slurm():
    return workflow.executor_plugin is not None and workflow.executor_plugin.name == "slurm"


# Jobs read a copy of the study and the program, made when the first is submitted. Of Snakemake they
# get the paths of the files that were given on the command line.
def freeze_study():
    ours = (RULES / "Snakefile", RULES.parent / "Snakefile")  # `new` copies the second
    is_ours = Path(str(workflow.main_snakefile)).read_text() in (file.read_text() for file in ours)
    if is_ours and SharedFSUsage.SOURCES in workflow.storage_settings.shared_fs_usage:
        copy = frozen.freeze(Path(RESULTS, "submitted"), RULES, config).absolute()
        frozen.use(copy)
        workflow.config_settings.configfiles = [copy / frozen.STUDY]
        RealExecutor.get_snakefile = lambda executor: str(copy / "workflow" / "Snakefile")


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
        freeze_study()
        for rule, n in RUNS.further_jobs().items():
            workflow.get_rule(rule_name(rule)).restart_times = (
                workflow.execution_settings.retries + n
            )
    if is_on_slurm():
        executor = workflow.scheduler._executor
        if not IS_MODULE:  # rules of another workflow may have directives that need Snakemake
            executor.format_job_exec = functools.partial(
                started_directly, by_snakemake=executor.format_job_exec
            )
        slurm_submission.Submission(executor, RUNS.queue, profile(), sys.argv)


# A rule that needs no GPU is a local rule, unless the profile gives it a place of its own under
# `set-resources:`, as on a cluster whose nodes for data transfer are a partition. Snakemake knows
# these resources only after the rule has said where it runs.
def runs_here(rule):
    places = SETTINGS.overwrite_resources.get(rule_name(rule), {})
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
