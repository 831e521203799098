# All that this workflow asks of the objects inside Snakemake and Python, with the reason: no
# directive and no option offers it.

import gc

from snakemake.settings.enums import Quietness
from snakemake.utils import available_cpu_count

from lmscaling import requested
from lmscaling.runtime import console, slurm

# The graph of a large study is thousands of objects that all stay. Collecting garbage among them
# took an eighth of the planning time.
gc.set_threshold(200_000, 50, 100)

# Inside a Slurm job Snakemake runs once more, to make one file. It must not ask Slurm for anything.
IN_JOB = workflow.remote_exec
if not IN_JOB:
    slurm.patch_status_query()


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


# The terminal shows a few lines instead of Snakemake's ten for each job, unless an option asks for
# more or for less. The filter comes before Snakemake's own at the handler of the terminal.
CONSOLE = console.install(
    workflow.output_settings,
    workflow.exec_mode.name == "DEFAULT",
    lambda: requested.dry_run(GRID, RUNS.pending, planned_jobs()),
)


# Whether a name is a rule, or a file that a rule makes now. Rules match only what is missing.
def is_made(name):
    return workflow.is_rule(name) or any(rule.is_producer(name) for rule in workflow.rules)


# Snakemake knows the targets once it has read the rules, so they are looked at when it begins.
TARGETS = requested.Targets(
    is_made, lambda: [*(rule.name for rule in workflow.rules), *map(str, rules.all.input)]
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


if not IN_JOB:
    workflow.execute = execute_targets

# The command that makes this study again names the study files that were given.
CONFIGFILES = workflow.overwrite_configfiles
if mistake := requested.configfile_mistake(CONFIGFILES):
    sys.exit(f"error: {mistake}")

# `snakemake figures` without --cores takes all cores. The default profile cannot say so: its
# `cores:` would also cut the threads of Slurm jobs down to the cores of the login node.
SETTINGS = workflow.resource_settings
if SETTINGS.cores is None and SETTINGS.nodes is None:
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
            workflow.get_rule(rule).restart_times = workflow.execution_settings.retries + n
