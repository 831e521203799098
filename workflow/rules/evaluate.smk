# From final weights to loss by position, one file for each run and text, and to images.


rule evaluate:
    input:
        settled(
            EVALUATIONS.inputs,
            "evaluations/{wildcards.run}/{wildcards.text}.jsonl",
            RUNS.has_ended,
        ),
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
        gpu=EVALUATIONS.gpus,
        mem="32GB" if STUDY.gpus else "4GB",
        runtime="8h",
    params:
        verb="evaluate",
        words=EVALUATIONS.words,
    shell:
        "python -m lmscaling {params.verb} {params.words} --out {output:q} > {log:q} 2>&1"


use rule evaluate as draw_images with:
    input:
        settled(EVALUATIONS.inputs, "samples/{wildcards.run}.json", RUNS.has_ended),
    output:
        update("<results>/samples/{run}.json"),
    log:
        "<results>/logs/draw_images/{run}.log",
    params:
        verb="draw-images",
        words=EVALUATIONS.words,
