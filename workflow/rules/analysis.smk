# From the records of all runs to figures and the report. Nothing here needs a GPU.


rule collect:
    input:
        FIGURES.published,
        local(FIGURES.store_sources),
        local(FIGURES.attention_sources),
        "<results>/study.json",
        RECORDS.every,
    output:
        FIGURES.tables,
    log:
        "<results>/logs/collect.log",
    localrule: True
    conda:
        "../envs/analysis.yml"
    params:
        results=subpath(output[0], ancestor=2),
    shell:
        "python -m lmscaling build-store {params.results:q} > {log:q} 2>&1"


rule figure:
    input:
        FIGURES.tables,
        code=local(FIGURES.sources),
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
    conda:
        "../envs/analysis.yml"
    params:
        results=subpath(output[0], ancestor=2),
    shell:
        "python -m lmscaling figure {wildcards.figure} {params.results:q}/store"
        " {params.results:q}/figures > {log:q} 2>&1"


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
    conda:
        "../envs/analysis.yml"
    params:
        results=subpath(output[0], parent=True),
    shell:
        "python -m lmscaling report {params.results:q} > {log:q} 2>&1"


# Draws what the records and logs that exist allow. It declares no file, so that nothing is trained
# for it and it can run beside a workflow that is at work.
rule figures:
    log:
        "<results>/logs/figures.log",
    localrule: True
    conda:
        "../envs/analysis.yml"
    params:
        json=RECORD,
        results=RESULTS,
    shell:
        "(printf '%s\n' {params.json:q} | python -m lmscaling study {params.results:q}/study.json"
        " && python -m lmscaling figures {params.results:q}) 2> {log:q}"
