# From the grid to the record of every run.


def cell_json(wildcards):
    return CELLS[wildcards.run].to_json()


rule cell:
    output:
        "<results>/cells/{run}.json",
    localrule: True
    params:
        json=cell_json,
    shell:
        "printf '%s\n' {params.json:q} > {output} && echo 'cell: {wildcards.run}'"


rule train:
    input:
        cell=ancient("<results>/cells/{run}.json"),  # the run's name holds a hash of its values
        manifest=f"{TOKENS}/manifest.json",
    output:
        record="<results>/runs/{run}/run.json",  # written last; the log appears beside it
    log:
        "<results>/logs/train/{run}.log",
    wildcard_constraints:
        run=any_of(PENDING),
    threads: 4 * STUDY.gpus or 1
    resources:
        gpu=STUDY.gpus,
        mem=f"{32 * STUDY.gpus or 4}GB",
        runtime=plan.job_minutes(STUDY),
        slurm_extra="--signal=TERM@600",  # ten minutes to end an attempt in order
    params:
        scratch=f"{RESULTS}/scratch/{{run}}",  # outlives a failed attempt
    shell:
        "python -m lmscaling train {input.cell} --manifest {input.manifest}"
        " --scratch {params.scratch} --record {output.record} 2> {log}"
