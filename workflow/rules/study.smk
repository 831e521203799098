# From the study file to its record, the cells, and what they will cost.


# To Snakemake a run that ended as oom or diverged is a success. A user wants to hear of it, too.
onsuccess:
    requested.last_words(GRID, CONSOLE.failures.values())


onerror:
    requested.last_words(GRID, CONSOLE.failures.values())


# It also writes cells/<run>.json: a job for each of them would take longer than writing it.
rule study:
    output:
        "<results>/study.json",
    log:
        "<results>/logs/study.log",
    localrule: True
    params:
        json=RECORD,
    shell:
        "printf '%s\n' {params.json:q} | python -m lmscaling study {output} > {log} 2>&1"


# It reads the calibrations that exist when it runs.
rule plan:
    input:
        "<results>/study.json",
    output:
        "<results>/plan.json",
    log:
        "<results>/logs/plan.log",
    localrule: True
    params:
        json=json.dumps(config),
    shell:
        "printf '%s\n' {params.json:q} | python -m lmscaling plan - --out {output} > {log} 2>&1"
        " && echo 'plan: {output}'"
