# From the study file to its record, the cells, and what they will cost.


# It also writes cells/<run>.json: a job for each of them would cost more than it writes.
rule study:
    output:
        "<results>/study.json",
    log:
        "<results>/logs/study.log",
    localrule: True
    params:
        json=json.dumps({"command": COMMAND, "study": config}),
    shell:
        "printf '%s\n' {params.json:q} | python -m lmscaling study {output} 2> {log}"


# With the calibrations that are there when it is made.
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
