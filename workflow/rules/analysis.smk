# From the records of all runs to figures and the report. Nothing here needs a GPU.


rule collect:
    input:
        FIGURES.published,
        local(FIGURES.store_sources),
        local(FIGURES.attention_sources),
        "<results>/study.json",
        lambda wildcards: RECORDS,  # of names in a rule, Snakemake would hold a second copy
    output:
        FIGURES.tables,
    log:
        "<results>/logs/collect.log",
    localrule: True
    conda:
        "../envs/analysis.yml"
    params:
        verb="build-store",
        results=subpath(output[0], ancestor=2),
    shell:
        "python -m lmscaling {params.verb} {params.results:q} > {log:q} 2>&1"


# One job, for Python and its packages take most of the time of a figure. It draws those whose code,
# data or files have changed, goes on when one fails, and names these at the end of its log.
use rule collect as draw with:
    input:
        FIGURES.tables,
        local(FIGURES.sources),
    output:
        [
            update(
                report(
                    f"{RESULTS}/figures/{name}.svg",
                    caption="../report/figure.rst",
                    category="Figures",
                    labels={"figure": name},
                )
            )
            for name in FIGURES.names
        ],
        update(
            collect("<results>/figures/{figure}.{kind}", figure=FIGURES.names, kind=["png", "csv"])
        ),
    log:
        "<results>/logs/draw.log",
    localrule: True
    params:
        verb="figure",
        results=subpath(output[0], ancestor=2),


use rule collect as report with:
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
    params:
        verb="report",
        results=subpath(output[0], parent=True),


# Draws what the records and logs that exist allow. It declares no file, so that nothing is trained
# for it and it can run beside a workflow that is at work.
rule figures:
    log:
        "<results>/logs/figures.log",
    localrule: True
    conda:
        "../envs/analysis.yml"
    params:
        results=RESULTS,
    shell:
        "(python -m lmscaling record {params.results:q}/study.json < {params.results:q}/asked.json"
        " && python -m lmscaling figures {params.results:q}) 2> {log:q}"


# The complete speed study, with nothing trained, and what is drawn of it.
use rule figures as speed with:
    input:
        "<results>/study.json",
        SWEEPS.paths,
    log:
        "<results>/logs/speed.log",
    localrule: True
    params:
        results=subpath(input[0], parent=True),
