# From the section `speed:` of the study to times and memory: a folder for each sweep, a record for
# each point. The rules time_step, tune_chunk and so on differ in the sweeps that they match.

for kind in SWEEPS.kinds:

    rule:
        name:
            kind
        input:
            study="<results>/study.json",  # it is written together with the sweeps
            chunks=SWEEPS.chunks,
        output:
            "<results>/speed/{sweep}/sweep.json",  # written last; the points are beside it
        log:
            "<results>/logs/speed/{sweep}.log",
        wildcard_constraints:
            sweep=SWEEPS.pattern(kind),
        # On a CPU it takes all cores, for other jobs would disturb the times.
        threads: GPU_CORES if STUDY.gpus else CORES
        resources:
            gpu=SWEEPS.gpus,
            mem="64GB" if STUDY.gpus else "4GB",
            runtime="12h",
        params:
            out=subpath(output[0], parent=True),  # the points outlive a failed job
            options=SWEEPS.options,
        shell:
            "python -m lmscaling {rule} {RESULTS}/sweeps/{wildcards.sweep}.json {params.out}"
            " {params.options} > {log} 2>&1"


# The complete speed study and the figures of it, with nothing trained. Like `figures` it declares
# no file.
rule speed:
    input:
        "<results>/study.json",
        collect("<results>/speed/{sweep}/sweep.json", sweep=SWEEPS.names),
    localrule: True
    shell:
        "python -m lmscaling figures {RESULTS}"
