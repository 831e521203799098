"""The optimizer: what decays."""

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
