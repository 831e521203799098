# `include:` would forget the default target of what it includes.
workflow.include("workflow/Snakefile", overwrite_default_target=True)
