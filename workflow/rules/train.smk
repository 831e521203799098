# From the cells to the record of every run. No input is ancient here: these rules match only what
# does not exist yet, and Snakemake forgets a target whose ancient input is about to be made again.


rule calibrate:
    input:
        study="<results>/study.json",  # it is written together with the cells
    output:
        "<results>/calibrations/{calibration}.json",
    log:
        "<results>/logs/calibrate/{calibration}.log",
    wildcard_constraints:
        calibration=CALIBRATIONS.pattern,
    threads: CORES  # other jobs on the machine would disturb the times
    resources:
        gpu=CALIBRATIONS.gpus,
        mem="32GB" if STUDY.gpus else "4GB",
        runtime="1h",
    params:
        cell=CALIBRATIONS.cell,
    shell:
        "python -m lmscaling calibrate {params.cell} {output} > {log} 2>&1"


rule train:
    input:
        study="<results>/study.json",
        manifest=f"<results>/tokens/{SHARDS.trained}/manifest.json",
        calibration=RUNS.calibration,
    output:
        record="<results>/runs/{run}/run.json",  # written last; the log appears beside it
    log:
        "<results>/logs/train/{run}.log",
    wildcard_constraints:
        run=RUNS.pattern(RUNS.trunks),
    threads: RUNS.threads
    resources:
        nodes=1,
        gpu=RUNS.gpus,
        mem=RUNS.mem,
        runtime=RUNS.minutes,
        slurm_extra=RUNS.sbatch_options,
    params:
        options=RUNS.options,
    # exec: a signal must reach Python; a shell in between would die of it alone. The scratch folder
    # outlives an attempt that failed.
    shell:
        "exec python -m lmscaling train {RESULTS}/cells/{wildcards.run}.json"
        " --manifest {input.manifest} --scratch {RESULTS}/scratch/{wildcards.run}"
        " --record {output.record} {params.options} > {log} 2>&1"


# A trunk that has ended is a source file like any other: a branch cannot train it again.
use rule train as branch with:
    input:
        study="<results>/study.json",
        manifest=f"<results>/tokens/{SHARDS.trained}/manifest.json",
        calibration=RUNS.calibration,
        trunk=RUNS.trunk,
    log:
        "<results>/logs/branch/{run}.log",
    wildcard_constraints:
        run=RUNS.pattern(RUNS.branches),
