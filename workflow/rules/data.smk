# From dataset rows to shards of tokens and their manifests: a folder for each text.
#
# Only fetch and vocabulary need a network. They run where snakemake runs, unless the profile names a
# partition for them.


rule vocabulary:
    output:
        "<results>/vocabulary/gpt2.tiktoken",
    log:
        "<results>/logs/vocabulary.log",
    localrule: runs_here("vocabulary")
    shell:
        "python -m lmscaling vocabulary {output} 2> {log}"


# Shards are fetched and tokenized in chunks of `shards_per_job:`, named <text>/<split>-<first>-<last>.
# No text and no shard is an output here, for Snakemake would delete it before a job that comes late
# and after one that fails. The outputs are marks that a chunk is complete, and stay, for a job that
# comes late waits for them. The verbs see which shards are missing, and keep what exists, the first
# part of a download too. `tokenize` deletes what was fetched for a shard that is complete.
rule fetch:
    output:
        touch("<results>/sources/{chunk}.fetched"),
    log:
        "<results>/logs/fetch/{chunk}.log",
    wildcard_constraints:
        chunk=SHARDS.pattern(IN_JOB),
    localrule: runs_here("fetch")
    resources:
        downloads=SHARDS.downloads,  # profiles/default says how many at one time
        runtime=SHARDS.minutes,
    params:
        json=SHARDS.json,
        words=SHARDS.fetch_words,
    shell:
        "printf '%s\n' {params.json:q} | python -m lmscaling fetch {params.words}"
        " --at-once {resources.downloads} 2> {log}"


rule tokenize:
    input:
        unpack(SHARDS.inputs),
    output:
        touch("<results>/tokens/{chunk}.tokenized"),
    log:
        "<results>/logs/tokenize/{chunk}.log",
    wildcard_constraints:
        chunk=SHARDS.pattern(IN_JOB),
    resources:
        mem="4GB",
        runtime=SHARDS.minutes,
    params:
        json=SHARDS.json,
        words=SHARDS.tokenize_words,
    shell:
        "printf '%s\n' {params.json:q} | python -m lmscaling tokenize {params.words} 2> {log}"


rule manifest:
    input:
        forcing(SHARDS.marks),
    output:
        "<results>/tokens/{tokens}/manifest.json",
    log:
        "<results>/logs/manifest/{tokens}.log",
    wildcard_constraints:
        tokens=lms.any_of(SHARDS.corpora),
    localrule: True
    params:
        train=SHARDS.n_train,
        validation=SHARDS.n_validation,
    shell:
        "python -m lmscaling manifest {output} {params.train} {params.validation} 2> {log}"
