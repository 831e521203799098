# From dataset rows to shards of tokens and their manifests: one folder a text.

CORPORA = GRID.corpora
N_SHARDS = {
    (tokens, split): GRID.n_shards(tokens, split)
    for tokens in CORPORA
    for split in ("train", "validation")
}
TOKENS = f"<results>/tokens/{GRID.tokens}"


def sidecars(tokens, split):
    folder = f"{RESULTS}/tokens/{tokens}"
    return [f"{folder}/{split}-{i:05d}.json" for i in range(N_SHARDS[tokens, split])]


def validation_sidecars(wildcards):
    return sidecars(wildcards.tokens, "validation")


def all_sidecars(wildcards):
    return [*sidecars(wildcards.tokens, "validation"), *sidecars(wildcards.tokens, "train")]


def train_json(wildcards):
    return CORPORA[wildcards.tokens].to_json(int(wildcards.shard) + 1)


def validation_json(wildcards):
    return CORPORA[wildcards.tokens].to_json(1)


def n_train(wildcards):
    return N_SHARDS[wildcards.tokens, "train"]


def n_validation(wildcards):
    return N_SHARDS[wildcards.tokens, "validation"]


rule tokenize:
    input:
        validation=ancient(validation_sidecars),  # their documents are dropped from training
    output:
        bin="<results>/tokens/{tokens}/train-{shard}.bin",
        sidecar="<results>/tokens/{tokens}/train-{shard}.json",
    log:
        "<results>/logs/tokenize/{tokens}/train-{shard}.log",
    resources:
        mem="4GB",
        runtime="2h",
    params:
        split="train",
        json=train_json,
    shell:
        "printf '%s\n' {params.json:q}"
        " | python -m lmscaling tokenize {params.split} {wildcards.shard} {output.bin} 2> {log}"


use rule tokenize as tokenize_validation with:
    input:
        [],
    output:
        bin="<results>/tokens/{tokens}/validation-{shard}.bin",
        sidecar="<results>/tokens/{tokens}/validation-{shard}.json",
    log:
        "<results>/logs/tokenize/{tokens}/validation-{shard}.log",
    params:
        split="validation",
        json=validation_json,


rule manifest:
    input:
        all_sidecars,
    output:
        "<results>/tokens/{tokens}/manifest.json",
    log:
        "<results>/logs/manifest/{tokens}.log",
    localrule: True
    params:
        train=n_train,
        validation=n_validation,
    shell:
        "python -m lmscaling manifest {output} {params.train} {params.validation} 2> {log}"
