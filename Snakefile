# The workflow of the package: of this checkout, or of the one that is installed.
from lmscaling import registry

# `include:` would forget the default target of what it includes.
workflow.include(str(registry.PROJECT / "workflow" / "Snakefile"), overwrite_default_target=True)
