# From final weights to loss by position, one file for each run and text, and to images.


rule evaluate:
    input:
        settled(EVALUATIONS.inputs, EVALUATIONS.exists),
    output:
        update("<results>/evaluations/{run}/{text}.jsonl"),
    log:
        "<results>/logs/evaluate/{run}/{text}.log",
    wildcard_constraints:
        run="[^/]+",
        text="[^/]+",
    conda:
        "../envs/train.yml"
    threads: GPU_CORES if STUDY.gpus else 1
    resources:
        gpu=RUNS.shared(EVALUATIONS.gpus),
        mem="32GB" if STUDY.gpus else "4GB",
        runtime="8h",
    params:
        words=EVALUATIONS.words,
    shell:
        "python -m lmscaling evaluate {params.words} --out {output:q} > {log:q} 2>&1"


rule draw_images:
    input:
        settled(SAMPLES.inputs, SAMPLES.exists),
    output:
        update("<results>/samples/{run}.json"),
    log:
        "<results>/logs/draw_images/{run}.log",
    wildcard_constraints:
        run="[^/]+",
    conda:
        "../envs/train.yml"
    threads: GPU_CORES if STUDY.gpus else 1
    resources:
        gpu=RUNS.shared(EVALUATIONS.gpus),
        mem="32GB" if STUDY.gpus else "4GB",
        runtime="1h",
    params:
        words=SAMPLES.words,
    shell:
        "python -m lmscaling draw-images {params.words} --out {output:q} > {log:q} 2>&1"
