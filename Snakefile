# The workflow of this folder.
include: "workflow/Snakefile"


rule everything:
    default_target: True
    input:
        FIGURES.targets(RECORDS),
