# From the records of all runs to figures and the report. Nothing here needs a GPU.

EXPORTS = [f"<results>/store/{table}.parquet" for table in records.EXPORTS]


# Numbers of others that the store holds beside the study's own.
PUBLISHED = [f"results/published/{stem}.csv" for stem in records.PUBLISHED if STUDY.published]


rule collect:
    input:
        PUBLISHED,
        "<results>/study.json",
        collect("<results>/runs/{run}/run.json", run=RUNS),
        collect("<results>/evaluations/{evaluation}.jsonl", evaluation=EVALUATIONS),
        collect("<results>/speed/{sweep}/sweep.json", sweep=SWEEPS),
    output:
        EXPORTS,
    log:
        "<results>/logs/collect.log",
    localrule: True
    shell:
        "python -m lmscaling collect {RESULTS} 2> {log}"


def figure_source(wildcards):
    return FIGURES[wildcards.figure]


rule figure:
    input:
        EXPORTS,
        code=figure_source,
        look=[
            os.path.relpath(registry.PACKAGE / "figures" / "shared" / f"{shared}.py")
            for shared in ("style", "speed", "curves", "heatmap", "law_panels")
        ],
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
    localrule: True
    shell:
        "python -m lmscaling figure {wildcards.figure} {RESULTS}/store {RESULTS}/figures 2> {log}"


rule report:
    input:
        "<results>/study.json",
        "<results>/plan.json",
        EXPORTS,
        collect("<results>/figures/{figure}.{kind}", figure=FIGURES, kind=["svg", "csv"]),
    output:
        "<results>/report.html",
    log:
        "<results>/logs/report.log",
    localrule: True
    shell:
        "python -m lmscaling report {RESULTS} 2> {log}"


# What the records and logs that exist allow, now. It declares no file, so that nothing is trained
# for it and it can run beside a workflow that is at work.
rule figures:
    localrule: True
    params:
        json=json.dumps({"command": COMMAND, "study": config}),
    shell:
        "printf '%s\n' {params.json:q} | python -m lmscaling study {RESULTS}/study.json"
        " && python -m lmscaling figures {RESULTS}"
