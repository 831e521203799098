"""Options, patterns of layers, equal parameters, and variants that offer forward alone."""

import pytest
import strangers
import torch
from conftest import refused

from lmscaling import attention
from lmscaling.config import grid, sweeps
from lmscaling.errors import UserError
from lmscaling.figures.shared import speed, style
from lmscaling.model.gpt import GPT

PATTERN = {"pattern": ["linear", "linear", "softmax"]}


def cells(values, *attentions, size="m", **changes):
    values["axes"] |= {"attention": list(attentions), "size": [size]}
    values |= changes
    return list(grid.expand(values).cells.values())


def test_a_row_is_a_file_a_file_with_options_or_a_pattern(values):
    made = cells(values, "softmax", {"local": {"window": 4}}, PATTERN, {"pattern": ["linear"]})
    names = " ".join(c.attention for c in made)
    assert names == "softmax local.window4 linear_x2.softmax linear"
    variants = [["softmax"], ["local"], ["linear", "softmax"], ["linear"]]
    assert [c.variants for c in made] == variants
    assert made[0].layers == made[3].layers == ()
    runs = [c.run for c in cells(values, "softmax", "linear", size="s")]
    assert runs == ["softmax-s-ctx16-s0-7cd2de05", "linear-s-ctx16-s0-0b1a29e8"]


@pytest.mark.parametrize(
    ("row", "told"),
    [("sofmax", ["axes.attention", "'sofmax'", "'softmax'"]), ({"local": 4}, ["local", "4"]),
     ({"local": {"windw": 4}}, ["local", "'windw'", "'window'"]),
     ({"local": {"window": "x"}}, ["local", "window", "'x'"]),
     ({"local": {"window": -4}}, ["local", "window", "-4"]), ({"pattern": []}, ["pattern", "[]"]),
     ({"pattern": ["linear", "sofmax"]}, ["'sofmax'"]),
     ({"local": {}, "linear": {}}, ["local", "linear"])],
)  # fmt: skip
def test_a_mistake_in_a_row_is_one_sentence(values, row, told):
    with refused(UserError, *told):
        cells(values, "softmax", row)


def test_parts_and_speed_name_a_row_by_its_label(values):
    values["skip"] = [{"attention": "linear_x2.softmax", "reason": "x"}]
    values["speed"] = {
        "timeout_seconds": 1, "repeats": 3, "target_seconds": 1,
        "time_decode": {
            "sizes": ["m"], "contexts": [16], "attentions": ["linear_x2.softmax"], "batches": [1]
        },
    }  # fmt: skip
    assert [c.attention for c in cells(values, "softmax", PATTERN)] == ["softmax"]
    (sweep,) = sweeps.expand(grid.expand(values).study).values()
    (point,) = sweep.points
    assert sweep.cell_of(point).variants == ["linear", "softmax"]
    values["axes"]["attention"] = ["softmax"]
    values["skip"] = []
    with refused(UserError, "'linear_x2.softmax'"):
        sweeps.expand(grid.expand(values).study)


def test_layers_repeat_the_pattern_and_their_states_and_flops_add_up(values):
    values["sizes"]["m"]["n_layer"] = 5
    mixed, *others = map(GPT, cells(values, PATTERN, "linear", "softmax"))
    kinds = [type(block.attention).__module__.rpartition(".")[2] for block in mixed.blocks]
    assert kinds == ["linear", "linear", "softmax", "linear", "linear"]
    for size in (lambda gpt: gpt.state_bytes(0), GPT.flops_per_token):
        assert 5 * size(mixed) == 4 * size(others[0]) + size(others[1])
    x = torch.randint(257, (2, 16))
    logits, states = mixed.prefill(x[:, :9], mixed.init_states(2, 16))
    for t in range(9, 16):
        logits, states = mixed.decode_step(x[:, t], states)
    torch.testing.assert_close(logits, mixed(x)[:, -1])
    # An option of a kind of layer is tuned in its layers only.
    assert mixed.tunable("cpu") == {"linear.chunk": (64, 32, 128, 256)}
    mixed.tune({"linear.chunk": 32})
    chunks = [getattr(block.attention, "chunk", None) for block in mixed.blocks]
    assert chunks == [32, 32, None, 32, 32]
    with refused(UserError, "softmax.chunk"):
        mixed.tune({"softmax.chunk": 32})


def test_models_match_the_parameters_of_the_baseline_by_their_mlps(values):
    """It is softmax, or what the study says, or the first."""
    for rows, said in ((["linear", "softmax"], "softmax"), (["linear", "elu"], "linear")):
        values["axes"]["attention"] = rows
        assert grid.expand(values).study.compared_with == said
        assert grid.expand(values | {"baseline": rows[1]}).study.compared_with == rows[1]
    size = {"n_layer": 3, "n_head": 2, "d_model": 64, "lr": 1e-3}
    rows = ["softmax", "taylor2", "gated"]
    made = cells(values, *rows, size="m", sizes={"m": size}, match="params")
    unmatched = [GPT(c).params for c in cells(values, *rows, match=None)]
    base, *others = (GPT(c).params for c in made)
    assert unmatched[0] == base
    assert base not in unmatched[1:]
    # Widths are multiples of 8: half of that is the most that is missing, in three layers.
    assert all(abs(n - base) <= 3 * 4 * (2 * 64 + 1) for n in others)


def test_a_variant_with_forward_alone_samples_by_recomputation_and_is_counted(tmp_path):
    with strangers.copied(tmp_path) as copy:
        copy.write("mine", strangers.file())
        assert [attention.recomputes(name) for name in ("mine", "softmax")] == [True, False]
        mine, softmax = (attention.build(name, 32, 2, context=64) for name in ("mine", "softmax"))
        x = torch.randn(2, 20, 32)
        y, state = mine.prefill(x[:, :13], mine.init_state(2, 20))
        outs = [y]
        for t in range(13, 20):
            y, state = mine.decode_step(x[:, t], state)
            outs.append(y.unsqueeze(1))
        torch.testing.assert_close(torch.cat(outs, 1), mine(x))
        with refused(ValueError, 21, 20):
            mine.decode_step(x[:, 0], state)
        for T in (64, 65536):  # of the pairs that are not masked, as softmax counts them
            assert mine.flops_per_token(T) == softmax.flops_per_token(T)
        mask = ("torch.ones_like(scores[0, 0])", "torch.ones(scores.shape[-2:])")
        copy.write("cpu", strangers.file().replace(*mask))
        with refused(UserError, "attention cpu", "device=x.device"):
            attention.build("cpu", 32, 2).flops_per_token(64)
        text = strangers.file(init="self.longest = context")
        copy.write("asks", text.replace("rotate):", "rotate, *, context, rank=4):", 1))
        assert attention.build("asks", 32, 2, context=77, rank=2).longest == 77


def test_looks_depend_on_the_name_alone():
    names = ["softmax", "linear", "gated", "mine", "yours", "theirs"]
    for name in names:
        assert (
            name not in style.COLOURS or style.palette([name])[name] == style.palette(names)[name]
        )
        assert speed.methods([name])[name] == speed.methods(names)[name]
        assert style.dashes(name) == style.dashes(name)
    looks = [(style.palette(names)[name], style.marker(name), style.dashes(name)) for name in names]
    assert len(set(looks)) == len(names)
