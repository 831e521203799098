# From the cells to the record of every run.


# A kernel that a compiler breaks costs a minute here and a day later. Training looks at the record
# and checks by itself on a device, or with versions, that it does not list.
rule check:
    input:
        settled(recorded, "checks/{wildcards.check}.json"),
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
        verb="check cell",
        path=DEVICES.cell,
    shell:
        "python -m lmscaling {params.verb} {params.path:q} {output:q} > {log:q} 2>&1"


use rule check as calibrate with:
    input:
        settled(DEVICES.inputs, "calibrations/{wildcards.calibration}.json"),
    output:
        update("<results>/calibrations/{calibration}.json"),
    log:
        "<results>/logs/calibrate/{calibration}.log",
    wildcard_constraints:
        calibration="[^/]+",
    threads: CORES  # other jobs on the machine would disturb the times
    resources:
        gpu=DEVICES.gpus,
        mem="32GB" if STUDY.gpus else "4GB",
        runtime="1h",
    params:
        verb="calibrate",
        path=DEVICES.calibrated_cell,


# The output is a copy of runs/<run>/run.json, made at the end. Snakemake may delete it whenever it
# likes. The folder runs/<run>/ with record, log and weights belongs to the program, which alone
# decides whether to train, see runtime/planned.py. Delete the output, or force it, to train again.
# Branches are short: one job trains all those of a trunk, and `run` is then the name of that job.
rule train:
    input:
        settled(RUNS.inputs, "runs/{wildcards.run}.json", RUNS.has_ended),
    output:
        "<results>/runs/{run}.json",
    log:
        "<results>/logs/train/{run}.log",
    wildcard_constraints:
        run=TRUNK,
    conda:
        "../envs/train.yml"
    threads: RUNS.threads
    resources:
        nodes=1,
        gpu=RUNS.gpus,
        mem_mb=RUNS.mem_mb,
        runtime=RUNS.minutes,
    params:
        words=RUNS.words,
    # exec: a signal must reach Python; a shell in between would die of it alone. The scratch folder
    # outlives an attempt that failed.
    shell:
        "exec python -m lmscaling train {params.words} --out {output:q} > {log:q} 2>&1"


use rule train as branch with:
    input:
        settled(RUNS.branch_inputs, "runs/{wildcards.run}.json", RUNS.has_ended),
    log:
        "<results>/logs/branch/{run}.log",
    wildcard_constraints:
        run=BRANCHES,
