"""The optimizer: what decays, and what it loads."""

import subprocess
import sys

import pytest
import torch

from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT


def test_only_matrices_decay(cell):
    gpt = GPT(cell)
    decayed, plain = optimizer.build(gpt, cell).param_groups
    names = {id(p): name for name, p in gpt.named_parameters()}
    block = "blocks.0"
    linears = [f"{block}.{x}" for x in ("attention.qkv", "attention.out", "up", "down")]
    norms = [f"{block}.norm_1", f"{block}.norm_2", "norm"]
    assert {names[id(p)] for p in decayed["params"]} == {
        "wte.weight", "wpe.weight", *(f"{x}.weight" for x in linears),
    }  # fmt: skip
    assert {names[id(p)] for p in plain["params"]} == {
        *(f"{x}.bias" for x in (*linears, *norms)), *(f"{x}.weight" for x in norms),
    }  # fmt: skip
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert len(names) == len(decayed["params"]) + len(plain["params"])


def updated(cell, build):
    """The weights after three updates."""
    torch.manual_seed(0)
    gpt = GPT(cell)
    adamw = build(gpt)
    x_BT, y_BT = torch.randint(cell.model.vocab_size, (2, 2, cell.context))
    for _ in range(3):
        gpt.loss(x_BT, y_BT).backward()
        adamw.step()
        adamw.zero_grad()
    return list(gpt.parameters())


def test_it_is_adamw_of_pytorch_in_every_bit(cell):
    def theirs(gpt):
        names = "params", "weight_decay", "lr", "betas", "eps"
        groups = optimizer.build(gpt, cell).param_groups
        return torch.optim.AdamW([{name: group[name] for name in names} for group in groups])

    ours = updated(cell, lambda gpt: optimizer.build(gpt, cell))
    assert all(map(torch.equal, ours, updated(cell, theirs)))


UPDATE = """
import sys
import torch
from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.files import parse_json
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT, shape
import lmscaling.train.run
cell = checked(Cell, parse_json(sys.stdin.buffer.read(), "cell"), "cell")
shape(cell)
gpt = GPT(cell)
adamw = optimizer.build(gpt, cell)
gpt.loss(*torch.zeros(2, 1, cell.context, dtype=torch.int64)).backward()
torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
adamw.step()
adamw.zero_grad()
assert "torch._dynamo" not in sys.modules
"""


@pytest.mark.ci
def test_a_run_on_the_cpu_loads_no_compiler(cell):
    subprocess.run([sys.executable, "-c", UPDATE], input=cell.to_json(), text=True, check=True)
