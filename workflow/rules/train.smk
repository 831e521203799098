# From the grid to the record of every run. No input is ancient here: these rules match only what is
# not there yet, and Snakemake forgets a target whose ancient input is about to be made anew.

CALIBRATED = GRID.calibrated

# Like a record, a calibration that is there is a source file.
UNCALIBRATED = [
    name for name in CALIBRATED if not Path(f"{RESULTS}/calibrations/{name}.json").is_file()
]


def gpus_of(wildcards):
    return RUNS[wildcards.run].gpus


def threads_of(wildcards):
    return 4 * gpus_of(wildcards) or 1


def mem_of(wildcards):
    return f"{32 * gpus_of(wildcards) or 4}GB"


def minutes_of(wildcards):
    return jobs.job_minutes(RUNS[wildcards.run], STUDY.job_hours)


@functools.cache
def behind():
    by_slurm = workflow.executor_plugin and workflow.executor_plugin.name == "slurm"
    return slurm.behind(["train", "branch"]) if by_slurm else {}


# SIGTERM and no other: USR1 kills the Snakemake inside the job, and with it the training.
def sbatch_options(wildcards):
    spare = round(jobs.spare_seconds(STUDY.job_hours))
    return f"--signal=TERM@{spare}{behind().get(wildcards.run, '')}"


def stop_option(wildcards):
    seconds = jobs.stop_seconds(RUNS[wildcards.run], STUDY.job_hours)
    return f"--stop-after {seconds:g}" if IN_JOB else ""


# A job that has queued behind another may find the record that it was to make: it writes it again.
OPEN = RUNS if IN_JOB else PENDING


def calibrated_cell(wildcards):
    return f"{RESULTS}/cells/{CALIBRATED[wildcards.calibration].run}.json"


def calibration_gpus(wildcards):
    return min(1, CALIBRATED[wildcards.calibration].gpus)


rule calibrate:
    input:
        study="<results>/study.json",
    output:
        "<results>/calibrations/{calibration}.json",
    log:
        "<results>/logs/calibrate/{calibration}.log",
    wildcard_constraints:
        calibration=any_of(UNCALIBRATED),
    threads: workflow.resource_settings.cores or 4  # alone on the machine: others would disturb
    resources:
        gpu=calibration_gpus,
        mem="32GB" if STUDY.gpus else "4GB",
        runtime="1h",
    params:
        cell=calibrated_cell,
    shell:
        "python -m lmscaling calibrate {params.cell} {output} 2> {log}"


def calibration_of(wildcards):
    name = RUNS[wildcards.run].calibration
    return [f"{RESULTS}/calibrations/{name}.json"] if name in CALIBRATED else []


def calibration_option(wildcards, input):
    return f"--calibration {input.calibration}" if input.calibration else ""


rule train:
    input:
        study="<results>/study.json",  # the cells lie beside it
        manifest=f"{TOKENS}/manifest.json",
        calibration=calibration_of,
    output:
        record="<results>/runs/{run}/run.json",  # written last; the log appears beside it
    log:
        "<results>/logs/train/{run}.log",
    wildcard_constraints:
        run=any_of(run for run in OPEN if run in CELLS),
    threads: threads_of
    resources:
        nodes=1,
        gpu=gpus_of,
        mem=mem_of,
        runtime=minutes_of,
        slurm_extra=sbatch_options,
    params:
        cell=f"{RESULTS}/cells/{{run}}.json",
        scratch=f"{RESULTS}/scratch/{{run}}",  # outlives a failed attempt
        calibration=calibration_option,
        stop=stop_option,
    shell:  # exec: a signal must reach Python, and a shell in between would die of it alone
        "exec python -m lmscaling train {params.cell} --manifest {input.manifest}"
        " {params.calibration} --scratch {params.scratch} --record {output.record} {params.stop}"
        " 2> {log}"


def trunk_record(wildcards):
    return f"{RESULTS}/runs/{RUNS[wildcards.run].trunk}/run.json"


# A trunk that is over is a source file like any other: a branch cannot train it again.
use rule train as branch with:
    input:
        study="<results>/study.json",
        manifest=f"{TOKENS}/manifest.json",
        calibration=calibration_of,
        trunk=trunk_record,
    log:
        "<results>/logs/branch/{run}.log",
    wildcard_constraints:
        run=any_of(run for run in OPEN if run in GRID.branches),


# The profile's retries are for what goes wrong; a budget that is longer than a job needs more. Not
# as `retries:` of the rules: jobs would read it too, and train all attempts in the time of one.
onstart:
    for rule, runs in (("train", CELLS), ("branch", GRID.branches)):
        jobs = [jobs.job_count(run, STUDY.job_hours) for run in runs.values()]
        if workflow.non_local_exec and jobs:
            workflow.get_rule(rule).restart_times = (
                workflow.execution_settings.retries + max(jobs) - 1
            )
