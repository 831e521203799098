# From the records of all runs to figures and the report. Nothing here needs a GPU.


rule collect:
    input:
        FIGURES.published,
        FIGURES.store_sources,
        "<results>/study.json",
        collect("<results>/runs/{run}/run.json", run=RUNS.cells),
        collect("<results>/evaluations/{evaluation}.jsonl", evaluation=EVALUATIONS.names),
        collect("<results>/speed/{sweep}/sweep.json", sweep=SWEEPS.names),
    output:
        FIGURES.tables,
    log:
        "<results>/logs/collect.log",
    localrule: True
    shell:
        "python -m lmscaling build-store {RESULTS} > {log} 2>&1"


rule figure:
    input:
        FIGURES.tables,
        code=FIGURES.sources,
    output:
        report(
            "<results>/figures/{figure}.svg",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
        "<results>/figures/{figure}.png",
        "<results>/figures/{figure}.csv",
    log:
        "<results>/logs/figure/{figure}.log",
    wildcard_constraints:
        figure=lms.any_of(FIGURES.names),
    localrule: True
    shell:
        "python -m lmscaling figure {wildcards.figure} {RESULTS}/store {RESULTS}/figures > {log} 2>&1"


rule report:
    input:
        "<results>/study.json",
        "<results>/plan.json",
        FIGURES.tables,
        collect("<results>/figures/{figure}.{kind}", figure=FIGURES.names, kind=["svg", "csv"]),
    output:
        "<results>/report.html",
    log:
        "<results>/logs/report.log",
    localrule: True
    shell:
        "python -m lmscaling report {RESULTS} > {log} 2>&1"


# Draws what the records and logs that exist allow. It declares no file, so that nothing is trained
# for it and it can run beside a workflow that is at work.
rule figures:
    localrule: True
    params:
        json=RECORD,
    shell:
        "printf '%s\n' {params.json:q} | python -m lmscaling study {RESULTS}/study.json"
        " && python -m lmscaling figures {RESULTS}"
