# From the section `speed:` of the study to times and memory: a folder a sweep, a record a point.

SWEEPS = sweeps.expand(STUDY)

# A point with a record is a source file, and so is a sweep all of whose points are settled.
UNMEASURED = [
    folder
    for folder, sweep in SWEEPS.items()
    if sweeps.is_pending(Path(f"{RESULTS}/speed/{folder}"), sweep)
]


def unmeasured(kind):
    return any_of(folder for folder in UNMEASURED if SWEEPS[folder].kind == kind)


def sweep_gpus(wildcards):
    return SWEEPS[wildcards.sweep].gpus


def kind_of(wildcards):
    return SWEEPS[wildcards.sweep].kind


def tuned(wildcards):
    """The fastest chunks of this size, for its steps."""
    folder = wildcards.sweep.replace("time_step/", "tune_chunk/")
    is_step = kind_of(wildcards) == "time_step"
    return [f"{RESULTS}/speed/{folder}/sweep.json"] if is_step and folder in SWEEPS else []


def chunks_option(wildcards, input):
    return f"--chunks {input.chunks}" if input.chunks else ""


rule time_step:
    input:
        study="<results>/study.json",  # the sweeps lie beside it
        chunks=tuned,
    output:
        "<results>/speed/{sweep}/sweep.json",  # written last; the points lie beside it
    log:
        "<results>/logs/speed/{sweep}.log",
    wildcard_constraints:
        sweep=unmeasured("time_step"),
    # On a CPU alone on the machine: others would disturb.
    threads: 4 if STUDY.gpus else workflow.resource_settings.cores or 4
    resources:
        gpu=sweep_gpus,
        mem="64GB" if STUDY.gpus else "4GB",
        runtime="12h",
    params:
        kind=kind_of,
        sweep=f"{RESULTS}/sweeps/{{sweep}}.json",
        out=f"{RESULTS}/speed/{{sweep}}",  # points outlive a failed job
        chunks=chunks_option,
    shell:
        "python -m lmscaling {params.kind} {params.sweep} {params.out} {params.chunks} > {log} 2>&1"


use rule time_step as tune_chunk with:
    wildcard_constraints:
        sweep=unmeasured("tune_chunk"),


use rule time_step as time_throughput with:
    wildcard_constraints:
        sweep=unmeasured("time_throughput"),


use rule time_step as time_decode with:
    wildcard_constraints:
        sweep=unmeasured("time_decode"),


use rule time_step as time_layer with:
    wildcard_constraints:
        sweep=unmeasured("time_layer"),


use rule time_step as time_ceiling with:
    wildcard_constraints:
        sweep=unmeasured("time_ceiling"),


use rule time_step as copy_task with:
    wildcard_constraints:
        sweep=unmeasured("copy_task"),


# All of it and what can be drawn of it, nothing trained. It declares no file, like `figures`.
rule speed:
    input:
        "<results>/study.json",
        collect("<results>/speed/{sweep}/sweep.json", sweep=SWEEPS),
    localrule: True
    shell:
        "python -m lmscaling figures {RESULTS}"
