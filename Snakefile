# The workflow of this folder, if it is a checkout, and otherwise that of the installed package.
from lmscaling import registry

# `include:` would forget the default target of what it includes.
workflow.include(str(registry.project_file("workflow/Snakefile")), overwrite_default_target=True)
