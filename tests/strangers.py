"""Attention files that somebody else might bring, and a copy of the package to put them into."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import lmscaling
from lmscaling import attention, registry
from lmscaling.config import code

MAPPED = '''
"""{what}"""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, n_head, rotate):
        super().__init__()
        self.n_head, self.rotate = n_head, rotate
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        {init}

    def heads(self, x_BTD):
        q, k, v = self.qkv(x_BTD).unflatten(-1, (3, self.n_head, -1)).transpose(1, 3).unbind(2)
        return q, k, v

    def weights(self, q, k):
        q, k = self.rotate(q, 0), self.rotate(k, 0)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        ahead = torch.ones_like(scores[0, 0]).triu(1).bool()
        return scores.masked_fill(ahead, -torch.inf).softmax(-1)

    def forward(self, x_BTD):
        q, k, v = self.heads(x_BTD)
        y = self.weights(q, k) @ v
        {then}
        return self.out(y.transpose(1, 2).flatten(2))
    {more}
'''
"""A softmax attention in plain PyTorch with ``forward`` alone, and places to change it."""

COUNTED = """
    def tunable(self, device_type):
        return {}

    def flops_per_token(self, context):
        return 8.0 * self.out.in_features**2
"""
"""What a model asks of an attention to train it."""


def file(what: str = "Softmax.", init: str = "", then: str = "", more: str = "") -> str:
    """The text of an attention file; ``what`` is its docstring, the others are statements."""
    return MAPPED.lstrip().format(what=what, init=init or "pass", then=then or "pass", more=more)


WINDOW = file("A window of 16 tokens.").replace(
    "ahead = ", "past = torch.ones_like(scores[0, 0]).tril(-16).bool()\n        ahead = past | "
)
GATE = file("A gate of the output.", "self.gate = nn.Linear(d_model, d_model)").replace(
    "self.out(y.transpose(1, 2).flatten(2))",
    "self.out(y.transpose(1, 2).flatten(2) * self.gate(x_BTD).sigmoid())",
)
MAP = file("A feature map of its own, without a position.").replace(
    "q, k = self.rotate(q, 0), self.rotate(k, 0)",
    "q, k = q.square() + 0.1, k.square() + 0.1\n        "
    "return (w := (q @ k.transpose(-1, -2)).tril()) / w.sum(-1, keepdim=True)",
)
RIGHT = {"window": WINDOW, "gate": GATE, "feature_map": MAP}
"""Correct attentions by name."""


class Copy:
    """A copy of this package, for files that only a test has."""

    def __init__(self, folder: Path) -> None:
        self.src = folder / "src"
        self.package = self.src / "lmscaling"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(lmscaling.__file__).parent, self.package, ignore=ignored)

    def write(self, name: str, text: str) -> Path:
        """Bring an attention, or edit a file of ``<folder>/<name>``, for this process as well."""
        folder, _, stem = name.rpartition("/")
        path = self.package / (folder or "attention") / f"{stem}.py"
        path.write_text(text)
        forget()
        return path


def forget() -> dict[str, ModuleType]:
    """Let the next import of an attention, and the next fingerprint, read its file."""
    code._fingerprint.cache_clear()
    loaded = [name for name in sys.modules if name.startswith("lmscaling.attention.")]
    return {name: sys.modules.pop(name) for name in loaded}


@contextmanager
def copied(folder: Path) -> Iterator[Copy]:
    """A copy of the package whose attentions this process finds; other processes need its path."""
    made = Copy(folder)
    path = [str(made.package / "attention"), *attention.__path__]
    with patch.object(registry, "PACKAGE", made.package), patch.object(attention, "__path__", path):
        before = forget()
        try:
            yield made
        finally:
            forget()
            sys.modules.update(before)
            for name, module in before.items():  # importing the copy set these too
                setattr(attention, name.rpartition(".")[2], module)
