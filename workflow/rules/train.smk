# From the grid to the record of every run.

CALIBRATED = GRID.calibrated


def gpus_of(wildcards):
    return RUNS[wildcards.run].gpus


def threads_of(wildcards):
    return 4 * gpus_of(wildcards) or 1


def mem_of(wildcards):
    return f"{32 * gpus_of(wildcards) or 4}GB"


def minutes_of(wildcards):
    return forecast.job_minutes(RUNS[wildcards.run])


def cell_json(wildcards):
    return RUNS[wildcards.run].to_json()


rule cell:
    output:
        "<results>/cells/{run}.json",
    localrule: True
    params:
        json=cell_json,
    shell:
        "printf '%s\n' {params.json:q} > {output} && echo 'cell: {wildcards.run}'"


def calibrated_cell(wildcards):
    return f"{RESULTS}/cells/{CALIBRATED[wildcards.calibration].run}.json"


def calibration_gpus(wildcards):
    return min(1, CALIBRATED[wildcards.calibration].gpus)


rule calibrate:
    input:
        ancient(calibrated_cell),
    output:
        "<results>/calibrations/{calibration}.json",
    log:
        "<results>/logs/calibrate/{calibration}.log",
    threads: workflow.resource_settings.cores or 4  # alone on the machine: others would disturb
    resources:
        gpu=calibration_gpus,
        mem="32GB",
        runtime="1h",
    shell:
        "python -m lmscaling calibrate {input} {output} 2> {log}"


def calibration_of(wildcards):
    name = RUNS[wildcards.run].calibration
    return [f"{RESULTS}/calibrations/{name}.json"] if name in CALIBRATED else []


def calibration_option(wildcards, input):
    return f"--calibration {input.calibration}" if input.calibration else ""


rule train:
    input:
        cell=ancient("<results>/cells/{run}.json"),  # the run's name holds a hash of its values
        manifest=f"{TOKENS}/manifest.json",
        calibration=ancient(calibration_of),
    output:
        record="<results>/runs/{run}/run.json",  # written last; the log appears beside it
    log:
        "<results>/logs/train/{run}.log",
    wildcard_constraints:
        run=any_of(run for run in PENDING if run in CELLS),
    threads: threads_of
    resources:
        gpu=gpus_of,
        mem=mem_of,
        runtime=minutes_of,
        slurm_extra="--signal=TERM@600",  # ten minutes to end an attempt in order
    params:
        scratch=f"{RESULTS}/scratch/{{run}}",  # outlives a failed attempt
        calibration=calibration_option,
    shell:
        "python -m lmscaling train {input.cell} --manifest {input.manifest} {params.calibration}"
        " --scratch {params.scratch} --record {output.record} 2> {log}"


def trunk_record(wildcards):
    return f"{RESULTS}/runs/{RUNS[wildcards.run].trunk}/run.json"


# A trunk that is over is a source file like any other: a branch cannot train it again.
use rule train as branch with:
    input:
        cell=ancient("<results>/cells/{run}.json"),
        manifest=f"{TOKENS}/manifest.json",
        calibration=ancient(calibration_of),
        trunk=ancient(trunk_record),
    log:
        "<results>/logs/branch/{run}.log",
    wildcard_constraints:
        run=any_of(run for run in PENDING if run in GRID.branches),
