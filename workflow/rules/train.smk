# From the cells to the record of every run.


# A kernel that a compiler breaks costs a minute here and a day later. Training looks at the record
# and checks by itself on a device, or with versions, that it does not list.
rule check:
    input:
        settled(lambda wildcards: f"{RESULTS}/study.json", CHECKS.exists),  # it writes the cells
    output:
        update("<results>/checks/{check}.json"),
    log:
        "<results>/logs/check/{check}.log",
    wildcard_constraints:
        check="[^/]+",
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
        settled(CALIBRATIONS.before, CALIBRATIONS.exists),
    output:
        update("<results>/calibrations/{calibration}.json"),
    log:
        "<results>/logs/calibrate/{calibration}.log",
    wildcard_constraints:
        calibration="[^/]+",
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


# The output is a copy of runs/<run>/run.json, made at the end. Snakemake may delete it whenever it
# likes. The folder runs/<run>/ with record, log and weights belongs to the program, which alone
# decides whether to train, see runtime/planned.py. Delete the output, or force it, to train again.
rule train:
    input:
        settled(RUNS.inputs, RUNS.has_ended),
    output:
        "<results>/runs/{run}.json",
    log:
        "<results>/logs/train/{run}.log",
    wildcard_constraints:
        run=lms.TRUNK,
    conda:
        "../envs/train.yml"
    threads: RUNS.shared(RUNS.threads)
    resources:
        nodes=1,
        gpu=RUNS.shared(RUNS.gpus),
        mem_mb=RUNS.shared(RUNS.mem_mb),
        runtime=RUNS.minutes,
    params:
        words=RUNS.words,
    # exec: a signal must reach Python; a shell in between would die of it alone. The scratch folder
    # outlives an attempt that failed.
    shell:
        "exec python -m lmscaling train {params.words} --out {output:q} > {log:q} 2>&1"


use rule train as branch with:
    input:
        settled(RUNS.branch_inputs, RUNS.has_ended),
    log:
        "<results>/logs/branch/{run}.log",
    wildcard_constraints:
        run=lms.BRANCH,
