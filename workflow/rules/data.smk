# From dataset rows to shards of tokens and their manifests: one folder a text.
#
# Only fetch and vocabulary need a network; they run where snakemake does.

CORPORA = GRID.corpora
N_SHARDS = {
    (tokens, split): GRID.n_shards(tokens, split)
    for tokens in CORPORA
    for split in ("train", "validation")
}
TOKENS = f"<results>/tokens/{GRID.tokens}"

# Downloads at the same time, unless the command line says otherwise: --resources downloads=4.
workflow.global_resources.setdefault("downloads", 8)


def shard_names(tokens, split):
    return [f"{tokens}/{split}-{i:05d}" for i in range(N_SHARDS[tokens, split])]


def sidecars(tokens, split):
    return [f"{RESULTS}/tokens/{name}.json" for name in shard_names(tokens, split)]


UNTOKENIZED = {
    (tokens, split): numbers
    for (tokens, split), n in N_SHARDS.items()
    if (
        numbers := text_needs.missing(
            CORPORA[tokens].source, Path(f"{RESULTS}/tokens/{tokens}"), split, n
        )
    )
}


def any_untokenized():
    """A pattern of all their names; shorter than the names, for it is compiled."""
    groups = [
        f"{re.escape(tokens)}/{split}-({any_of(f'{n:05d}' for n in numbers)})"
        for (tokens, split), numbers in UNTOKENIZED.items()
    ]
    return "|".join(groups) or "(?!)"


HUB_FILES = {
    (tokens, split): corpus.source.files(split)
    for tokens, corpus in CORPORA.items()
    for split in ("train", "validation")
    if corpus.source.is_fetched
}


def place(wildcards):
    tokens, shard = os.path.split(wildcards.shard)
    split, number = shard.split("-")
    return tokens, split, int(number)


def shard_inputs(wildcards):
    """What is fetched for a shard; and validation, whose documents are dropped from training."""
    tokens, split, number = place(wildcards)
    inputs = {}
    if split == "train":
        inputs["validation"] = sidecars(tokens, "validation")
    if files := HUB_FILES.get((tokens, split)):
        inputs["source"] = f"{RESULTS}/sources/{tokens}/{files[number]}"
    if (encoding := CORPORA[tokens].encoding.encoding) != "bytes":
        inputs["vocabulary"] = f"{RESULTS}/vocabulary/{encoding}.tiktoken"
    return inputs


def shard_json(wildcards):
    tokens, split, number = place(wildcards)
    return CORPORA[tokens].to_json(number + 1 if split == "train" else 1)


def tokenize_arguments(wildcards, input, output):
    """All but the corpus: which shard, where to, and what was fetched for it."""
    _, split, number = place(wildcards)
    words = [split, str(number), output.bin]
    for option in ("source", "vocabulary"):
        if found := input.get(option):
            words += [f"--{option}", str(found)]
    return shlex.join(words)


def all_sidecars(wildcards):
    return [*sidecars(wildcards.tokens, "validation"), *sidecars(wildcards.tokens, "train")]


def corpus_json(wildcards):
    return CORPORA[wildcards.tokens].to_json(1)


def n_train(wildcards):
    return N_SHARDS[wildcards.tokens, "train"]


def n_validation(wildcards):
    return N_SHARDS[wildcards.tokens, "validation"]


rule vocabulary:
    output:
        "<results>/vocabulary/gpt2.tiktoken",
    log:
        "<results>/logs/vocabulary.log",
    localrule: True
    shell:
        "python -m lmscaling vocabulary {output} 2> {log}"


# A download that breaks off or is killed leaves what has come beside the output, hidden.
rule fetch:
    output:
        file=temp("<results>/sources/{tokens}/{file}"),
        described="<results>/sources/{tokens}/{file}.fetched.json",
    log:
        "<results>/logs/fetch/{tokens}/{file}.log",
    localrule: True
    resources:
        downloads=1,
    params:
        json=corpus_json,
    shell:
        "printf '%s\n' {params.json:q}"
        " | python -m lmscaling fetch {wildcards.file:q} {output.file:q} 2> {log:q}"


rule tokenize:
    input:
        unpack(shard_inputs),
    output:
        bin="<results>/tokens/{shard}.bin",
        sidecar="<results>/tokens/{shard}.json",
    log:
        "<results>/logs/tokenize/{shard}.log",
    wildcard_constraints:
        shard=any_untokenized(),
    resources:
        mem="4GB",
        runtime="2h",
    params:
        json=shard_json,
        arguments=tokenize_arguments,
    shell:
        "printf '%s\n' {params.json:q} | python -m lmscaling tokenize {params.arguments} 2> {log}"


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
