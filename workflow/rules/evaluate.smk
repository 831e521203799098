# From final weights to loss by position: one file for each run and text.

EVALUATIONS = [
    f"{run}/{tokens}"
    for run in GRID.evaluated
    for tokens, corpus in CORPORA.items()
    if corpus.dataset in STUDY.evaluate.datasets
]

# Like a record, an evaluation that is there is a source file, unless its run is trained anew: both
# names hold a hash of all that it depends on.
UNEVALUATED = [
    name
    for name in EVALUATIONS
    if os.path.dirname(name) in PENDING or not Path(f"{RESULTS}/evaluations/{name}.jsonl").is_file()
]


def evaluated_record(wildcards):
    return f"{RESULTS}/runs/{os.path.dirname(wildcards.evaluation)}/run.json"


def evaluated_tokens(wildcards):
    return f"{RESULTS}/tokens/{os.path.basename(wildcards.evaluation)}/manifest.json"


def one_gpu(wildcards):
    return min(1, CELLS[os.path.dirname(wildcards.evaluation)].gpus)


rule evaluate:
    input:
        record=evaluated_record,
        manifest=evaluated_tokens,
    output:
        "<results>/evaluations/{evaluation}.jsonl",
    log:
        "<results>/logs/evaluate/{evaluation}.log",
    wildcard_constraints:
        evaluation=any_of(UNEVALUATED),
    threads: 4 if STUDY.gpus else 1
    resources:
        gpu=one_gpu,
        mem="32GB" if STUDY.gpus else "4GB",
        runtime="8h",
    params:
        run=subpath(input.record, parent=True),
    shell:
        "python -m lmscaling evaluate {params.run} --manifest {input.manifest}"
        " --out {output} 2> {log}"
