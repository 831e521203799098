# From dataset rows to shards of tokens and their manifest.

TOKENS = f"<results>/tokens/{GRID.tokens}"
CORPUS = {
    split: {f"{i:05d}": GRID.corpus.to_json(i + 1) for i in range(len(files))}
    for split, files in GRID.sources.items()
}


def sidecars(split):
    return [f"{TOKENS}/{split}-{shard}.json" for shard in CORPUS[split]]


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
        json=lookup("train/{shard}", within=CORPUS),
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
        json=lookup("validation/{shard}", within=CORPUS),


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
        train=len(CORPUS["train"]),
        validation=len(CORPUS["validation"]),
    shell:
        "python -m lmscaling manifest {output} {params.train} {params.validation} 2> {log}"
