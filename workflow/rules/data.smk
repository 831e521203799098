# From dataset rows to shards of tokens and their manifest.

TOKENS = f"<results>/tokens/{GRID.tokens}"
N_SHARDS = {split: len(files) for split, files in GRID.sources.items()}


def sidecars(split):
    return [f"{TOKENS}/{split}-{i:05d}.json" for i in range(N_SHARDS[split])]


def corpus_json(wildcards):
    return GRID.corpus.to_json(int(wildcards.shard) + 1)


rule tokenize:
    input:
        validation=ancient(sidecars("validation")),  # their documents are dropped from training
    output:
        bin=f"{TOKENS}/train-{{shard}}.bin",
        sidecar=f"{TOKENS}/train-{{shard}}.json",
    log:
        "<results>/logs/tokenize/train-{shard}.log",
    resources:
        mem="4GB",
        runtime="2h",
    params:
        split="train",
        json=corpus_json,
    shell:
        "printf '%s\n' {params.json:q}"
        " | python -m lmscaling tokenize {params.split} {wildcards.shard} {output.bin} 2> {log}"


use rule tokenize as tokenize_validation with:
    input:
        [],
    output:
        bin=f"{TOKENS}/validation-{{shard}}.bin",
        sidecar=f"{TOKENS}/validation-{{shard}}.json",
    log:
        "<results>/logs/tokenize/validation-{shard}.log",
    params:
        split="validation",
        json=GRID.corpus.to_json(1),


rule manifest:
    input:
        sidecars("validation"),
        sidecars("train"),
    output:
        f"{TOKENS}/manifest.json",
    log:
        "<results>/logs/manifest.log",
    localrule: True
    params:
        train=N_SHARDS["train"],
        validation=N_SHARDS["validation"],
    shell:
        "python -m lmscaling manifest {output} {params.train} {params.validation} 2> {log}"
