# From dataset rows to shards of tokens and their manifest.

TOKENS = f"<results>/tokens/{GRID.tokens}"
SOURCES = {
    split: {f"{i:05d}": name for i, name in enumerate(GRID.corpus.source.files(split))}
    for split in ("validation", "train")
}


def sidecars(split):
    return [f"{TOKENS}/{split}-{shard}.json" for shard in SOURCES[split]]


rule corpus:
    output:
        f"{TOKENS}/corpus.json",
    localrule: True
    params:
        json=GRID.corpus.to_json(),
    shell:
        "printf '%s\n' {params.json:q} > {output} && echo 'corpus: {output}'"


# A longer corpus has another corpus.json but the same text in each shard: hence `ancient`.
rule tokenize:
    input:
        corpus=ancient(f"{TOKENS}/corpus.json"),
        validation=ancient(sidecars("validation")),  # their documents are dropped from training
    output:
        bin=f"{TOKENS}/train-{{shard}}.bin",
        sidecar=f"{TOKENS}/train-{{shard}}.json",
    log:
        "<results>/logs/tokenize/train-{shard}.log",
    params:
        split="train",
        source=lookup("train/{shard}", within=SOURCES),  # another file makes another shard
    resources:
        mem="4GB",
        runtime="2h",
    shell:
        "python -m lmscaling tokenize {input.corpus} {params.split} {wildcards.shard} {output.bin}"
        " 2> {log}"


use rule tokenize as tokenize_validation with:
    input:
        corpus=ancient(f"{TOKENS}/corpus.json"),
    output:
        bin=f"{TOKENS}/validation-{{shard}}.bin",
        sidecar=f"{TOKENS}/validation-{{shard}}.json",
    log:
        "<results>/logs/tokenize/validation-{shard}.log",
    params:
        split="validation",
        source=lookup("validation/{shard}", within=SOURCES),


rule manifest:
    input:
        sidecars("validation"),
        sidecars("train"),
    output:
        f"{TOKENS}/manifest.json",
    localrule: True
    log:
        "<results>/logs/manifest.log",
    shell:
        "python -m lmscaling manifest {output} {input} 2> {log}"
