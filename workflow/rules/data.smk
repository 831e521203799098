# From dataset rows to shards of tokens and their manifests: a folder for each text.
#
# Only fetch and vocabulary need a network. They run where snakemake runs.


rule vocabulary:
    output:
        "<results>/vocabulary/gpt2.tiktoken",
    log:
        "<results>/logs/vocabulary.log",
    localrule: True
    conda:
        "../envs/train.yml"
    shell:
        "python -m lmscaling vocabulary {output:q} > {log:q} 2>&1"


# A download that was interrupted keeps its first part in a hidden file beside the output.
rule fetch:
    output:
        file=temp("<results>/sources/{tokens}/{file}"),
        described="<results>/sources/{tokens}/{file}.fetched.json",
    log:
        "<results>/logs/fetch/{tokens}/{file}.log",
    wildcard_constraints:
        tokens=lms.any_of(SHARDS.corpora),
    localrule: True
    conda:
        "../envs/train.yml"
    resources:
        downloads=1,  # profiles/default says how many at one time
    params:
        json=SHARDS.corpus_json,
    shell:
        "printf '%s\n' {params.json:q}"
        " | python -m lmscaling fetch {wildcards.file:q} {output.file:q} > {log:q} 2>&1"


rule tokenize:
    input:
        unpack(SHARDS.inputs),
    output:
        bin="<results>/tokens/{shard}.bin",
        sidecar="<results>/tokens/{shard}.json",
    log:
        "<results>/logs/tokenize/{shard}.log",
    wildcard_constraints:
        shard=SHARDS.pattern,
    conda:
        "../envs/train.yml"
    resources:
        mem="4GB",
        runtime="2h",
    params:
        json=SHARDS.json,
        arguments=SHARDS.arguments,
    shell:
        "printf '%s\n' {params.json:q} | python -m lmscaling tokenize {params.arguments} > {log:q} 2>&1"


rule manifest:
    input:
        SHARDS.sidecars,
    output:
        "<results>/tokens/{tokens}/manifest.json",
    log:
        "<results>/logs/manifest/{tokens}.log",
    wildcard_constraints:
        tokens=lms.any_of(SHARDS.corpora),
    localrule: True
    conda:
        "../envs/train.yml"
    params:
        train=SHARDS.n_train,
        validation=SHARDS.n_validation,
    shell:
        "python -m lmscaling manifest {output:q} {params.train} {params.validation} > {log:q} 2>&1"
