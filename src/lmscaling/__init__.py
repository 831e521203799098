"""Scaling-law studies of language models as one Snakemake workflow.

``Study`` reads the results of a study. ``Training`` and ``Text`` are a ``LightningModule`` and a
``LightningDataModule`` of a cell, for a ``lightning.Trainer`` of one's own. ``attention`` serves
models of one's own. A mistake in a name or a file is a ``UserError``. Each is loaded when it is
first used: ``Study`` without PyTorch, the others without what figures need.
"""

TYPE_CHECKING = False  # that of typing would load a tenth of the standard library
if TYPE_CHECKING:
    from typing import Any

    from lmscaling import attention
    from lmscaling.errors import UserError
    from lmscaling.study import Study
    from lmscaling.train.data import Text
    from lmscaling.train.module import Training

__version__ = "0.1.0"

__all__ = ["Study", "Text", "Training", "UserError", "__version__", "attention"]

LAZY = {
    "Study": "study",
    "Text": "train.data",
    "Training": "train.module",
    "UserError": "errors",
    "attention": "",
}
"""Public names by the module that defines them; modules themselves are without one."""


def __getattr__(name: str) -> "Any":
    """Load a public name."""
    from importlib import import_module

    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{LAZY[name] or name}")
    return getattr(module, name) if LAZY[name] else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
