# From the cells to the record of every run. No input is ancient here: these rules match only what
# does not exist yet, and Snakemake forgets a target whose ancient input is about to be made again.


# A kernel that a compiler breaks costs a minute here and a day later. Training looks at the record
# and checks by itself on a device, or with versions, that it does not list.
rule check:
    input:
        study="<results>/study.json",  # it is written together with the cells
    output:
        update("<results>/checks/{check}.json"),
    log:
        "<results>/logs/check/{check}.log",
    wildcard_constraints:
        check=CHECKS.pattern,
    conda:
        "../envs/train.yml"
    threads: GPU_CORES
    resources:
        gpu=1,
        mem="32GB",
        runtime="1h",
    params:
        cell=CHECKS.cell,
    shell:
        "python -m lmscaling check cell {params.cell:q} {output:q} > {log:q} 2>&1"


rule calibrate:
    input:
        CALIBRATIONS.check,
        study="<results>/study.json",
    output:
        update("<results>/calibrations/{calibration}.json"),
    log:
        "<results>/logs/calibrate/{calibration}.log",
    wildcard_constraints:
        calibration=CALIBRATIONS.pattern,
    conda:
        "../envs/train.yml"
    threads: CORES  # other jobs on the machine would disturb the times
    resources:
        gpu=CALIBRATIONS.gpus,
        mem="32GB" if STUDY.gpus else "4GB",
        runtime="1h",
    params:
        cell=CALIBRATIONS.cell,
    shell:
        "python -m lmscaling calibrate {params.cell:q} {output:q} > {log:q} 2>&1"


rule train:
    input:
        RUNS.before,
        verified=SHARDS.verified,
        calibration=RUNS.calibration,
    output:
        record=update("<results>/runs/{run}/run.json"),  # written last, beside the log
    log:
        "<results>/logs/train/{run}.log",
    wildcard_constraints:
        run=RUNS.trunk_pattern,
    conda:
        "../envs/train.yml"
    threads: RUNS.threads
    resources:
        nodes=1,
        gpu=RUNS.gpus,
        mem_mb=RUNS.mem_mb,
        runtime=RUNS.minutes,
        slurm_extra=RUNS.sbatch_options,
    params:
        cells=RUNS.cell_files,
        results=subpath(output.record, ancestor=3),
        tokens=SHARDS.trained_on,
        options=RUNS.options,
    # exec: a signal must reach Python; a shell in between would die of it alone. The scratch folder
    # outlives an attempt that failed.
    shell:
        "exec python -m lmscaling train {params.cells:q}"
        " --manifest {params.tokens:q}/manifest.json"
        " --scratch {params.results:q}/scratch/{wildcards.run}"
        " --record {output.record:q} {params.options} > {log:q} 2>&1"


# A job for all branches of a trunk. A trunk that has ended is a source file like any other: a branch
# cannot train it again.
use rule train as branch with:
    input:
        RUNS.before,
        verified=SHARDS.verified,
        calibration=RUNS.calibration,
        trunk=RUNS.trunk,
    log:
        "<results>/logs/branch/{run}.log",
    wildcard_constraints:
        run=RUNS.branch_pattern,
