# From final weights to loss by position, one file for each run and text, and to images.


rule evaluate:
    input:
        record=EVALUATIONS.record,
        manifest=EVALUATIONS.manifest,
    output:
        update("<results>/evaluations/{evaluation}.jsonl"),
    log:
        "<results>/logs/evaluate/{evaluation}.log",
    wildcard_constraints:
        evaluation=EVALUATIONS.pattern,
    conda:
        "../envs/train.yml"
    threads: GPU_CORES if STUDY.gpus else 1
    resources:
        gpu=EVALUATIONS.gpus,
        mem="32GB" if STUDY.gpus else "4GB",
        runtime="8h",
    params:
        run=subpath(input.record, parent=True),
    shell:
        "python -m lmscaling evaluate {params.run:q} --manifest {input.manifest:q}"
        " --out {output:q} > {log:q} 2>&1"


rule draw_images:
    input:
        record=SAMPLES.record,
        manifest=SAMPLES.manifest,
    output:
        update("<results>/samples/{sampled}.json"),
    log:
        "<results>/logs/draw_images/{sampled}.log",
    wildcard_constraints:
        sampled=SAMPLES.pattern,
    conda:
        "../envs/train.yml"
    threads: GPU_CORES if STUDY.gpus else 1
    resources:
        gpu=SAMPLES.gpus,
        mem="32GB" if STUDY.gpus else "4GB",
        runtime="1h",
    params:
        run=subpath(input.record, parent=True),
    shell:
        "python -m lmscaling draw-images {params.run:q} --manifest {input.manifest:q}"
        " --out {output:q} > {log:q} 2>&1"
