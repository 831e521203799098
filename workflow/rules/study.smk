# From the study to its record, the cells, and what they will cost.


# It also writes cells/<run>.json and sweeps/<sweep>.json: a job for each of them would take longer
# than writing it. common.smk writes its input when the study has changed.
rule study:
    input:
        "<results>/asked.json",
    output:
        "<results>/study.json",
    log:
        "<results>/logs/study.log",
    localrule: True
    conda:
        "../envs/train.yml"
    shell:
        "python -m lmscaling record {output:q} < {input:q} > {log:q} 2>&1"


# It reads the calibrations that exist when it runs.
rule plan:
    input:
        "<results>/study.json",
    output:
        "<results>/plan.json",
    log:
        "<results>/logs/plan.log",
    localrule: True
    conda:
        "../envs/train.yml"
    params:
        json=lambda wildcards: json.dumps(config),  # in a string Snakemake replaces {names}
        results=subpath(output[0], ancestor=2),
    shell:
        "printf '%s\n' {params.json:q}"
        " | python -m lmscaling plan - --results {params.results:q} --out {output:q} > {log:q} 2>&1"
        " && echo plan: {output:q} >> {log:q}"
