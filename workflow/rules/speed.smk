# From the section `speed:` of the study to times and memory: a folder for each sweep, a record for
# each point. The rules time_step, time_decode and so on differ in the sweeps that they match.

for kind in SWEEPS.kinds:

    rule:
        name:
            kind
        input:
            settled(SWEEPS.inputs, "speed/{wildcards.sweep}/sweep.json", SWEEPS.are_settled),
        output:
            update("<results>/speed/{sweep}/sweep.json"),  # written last, beside the points
        log:
            "<results>/logs/speed/{sweep}.log",
        wildcard_constraints:
            sweep=f"{kind}/[^/]+",
        conda:
            "../envs/train.yml"
        # On a CPU it takes all cores, for other jobs would disturb the times.
        threads: GPU_CORES if STUDY.gpus else CORES
        resources:
            nodes=1,
            gpu=SWEEPS.gpus,
            mem="64GB" if STUDY.gpus else "4GB",
            runtime="12h",
        params:
            results=subpath(output[0], ancestor=4),
            out=subpath(output[0], parent=True),  # the points outlive a failed job
            options=SWEEPS.options,
        shell:
            "python -m lmscaling measure {params.results:q}/sweeps/{wildcards.sweep}.json"
            " {params.out:q} {params.options} > {log:q} 2>&1"


# A kernel that gives wrong numbers is not timed. Its name has a hash of all that are checked.
use rule check as check_kernels with:
    input:
        settled(recorded, "speed/kernels-{wildcards.kernels}.json"),
    output:
        update("<results>/speed/kernels-{kernels}.json"),
    log:
        "<results>/logs/check_kernels/{kernels}.log",
    wildcard_constraints:
        kernels="[^/]+",
    resources:
        gpu=1,
        mem="64GB",
        runtime="2h",
    params:
        verb="check kernels",
        path=f"{RESULTS}/study.json",
