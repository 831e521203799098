# From dataset rows to shards of tokens and their manifests: a folder for each text.


# It needs a network, so it runs where snakemake runs.
rule vocabulary:
    output:
        "<results>/vocabulary/{vocabulary}",
    log:
        "<results>/logs/vocabulary/{vocabulary}.log",
    localrule: True
    conda:
        "../envs/train.yml"
    params:
        words=SHARDS.vocabulary_words,
    shell:
        "python -m lmscaling vocabulary {output:q} {params.words} > {log:q} 2>&1"


# Shards are tokenized in chunks of `shards_per_job:`, named <text>/<split>-<first>-<last>. No shard is
# an output here, for Snakemake would delete it before a job that comes late and after one that fails.
# The outputs are marks that a chunk is complete. The verb sees which shards are missing, and keeps
# what exists. Text of the hub is read while it arrives, so these jobs need a network, or a row with
# `mirror:`.
rule tokenize:
    input:
        unpack(SHARDS.inputs),
    output:
        touch("<results>/tokens/{chunk}.tokenized"),
    log:
        "<results>/logs/tokenize/{chunk}.log",
    wildcard_constraints:
        chunk=CHUNK,
    conda:
        "../envs/train.yml"
    resources:
        mem_mb=4000,
        runtime=SHARDS.minutes,
    params:
        json=SHARDS.json,
        words=SHARDS.tokenize_words,
    shell:
        "printf '%s\n' {params.json:q} | python -m lmscaling tokenize {params.words} > {log:q} 2>&1"


rule manifest:
    input:
        SHARDS.before,
    output:
        "<results>/tokens/{tokens}/manifest.json",
    log:
        "<results>/logs/manifest/{tokens}.log",
    localrule: True
    conda:
        "../envs/train.yml"
    params:
        shards=SHARDS.n,
    shell:
        "python -m lmscaling manifest {output:q} {params.shards} > {log:q} 2>&1"


# A shard that is damaged would end a run when it gets there, hours later. The mark is kept: a text
# that grows costs only its new shards.
rule verify:
    input:
        manifest="<results>/tokens/{tokens}/manifest.json",
    output:
        update("<results>/tokens/{tokens}/verified.json"),
    log:
        "<results>/logs/verify/{tokens}.log",
    conda:
        "../envs/train.yml"
    threads: 4
    resources:
        mem_mb=2000,
        runtime=SHARDS.verify_minutes,
    params:
        folder=subpath(input.manifest, parent=True),
    shell:
        "python -m lmscaling verify {params.folder:q} --mark {output:q} --threads {threads}"
        " > {log:q} 2>&1"
