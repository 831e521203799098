"""Masked documents: a row of several gives what each gives alone, forward and backward."""

import json
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, pairwise

import numpy as np
import pytest
import torch
from attention_definitions import OURS
from conftest import calibration, refused, sentence, write_shard
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

from lmscaling import attention
from lmscaling.attention import Documents
from lmscaling.bench.checks import variant
from lmscaling.config import grid
from lmscaling.config.attention_row import Layer
from lmscaling.config.cell import Model
from lmscaling.data import document_positions, shards
from lmscaling.errors import UserError
from lmscaling.kernels.rotary import Rotary, unrotated
from lmscaling.kernels.softmax import _pytorch, forms
from lmscaling.model import sizing
from lmscaling.model.gpt import GPT
from lmscaling.train import calibrate
from lmscaling.train.run import train

END = 256  # the last token of the vocabulary, which begins a document
T = 40  # tokens of a row: two chunks of 16 tokens and a part of one
MODELS = [*OURS, "linear.softmax"]
STARTS = [[16, 32], [8, 24], [1, 17, 18, 31], [13, 39], [10, 11, 12], [], [20]]
"""Documents on the edges of chunks, off them, one after another, and a row that is one."""


@pytest.fixture
def masked(cell):
    """The model of an attention and a kind of position in float64, with weights that matter."""

    def build(attention="softmax", position="learned", documents="masked"):
        layers = tuple(Layer(attention=name) for name in attention.split("."))
        shift = position == "none"
        model = Model(n_layer=2, n_head=2, d_model=32, vocab_size=END + 1, token_shift=shift)
        more = {"position": position, "documents": documents, "layers": layers[:-1] and layers}
        gpt = GPT(replace(cell, attention=attention, model=model, context=T, **more)).double()
        for layer in chain.from_iterable(gpt.each_attention().values()):
            layer.chunk = 16
        with torch.no_grad():
            for p in gpt.parameters():
                p.mul_(3.0)  # far from the start, where everything is nearly linear
        return gpt

    return build


def batch(starts):
    """Inputs and targets with documents at these tokens; all rows but one begin in another."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, END, (2, len(starts), T), generator=generator)
    for b, row in enumerate(starts):
        x[b, row] = END
    x[1, 0] = END
    return x, y


def gradients(gpt, *batch):
    return [*torch.autograd.grad(gpt.loss(*batch), list(gpt.parameters()))]


@pytest.mark.parametrize(
    ("attention", "position"),
    [*zip(MODELS, ["learned", "rope", "none"] * 9, strict=False),
     ("linear", "rope"), ("softmax", "rope"), ("linear", "none")],
)  # fmt: skip
def test_documents_of_a_row_are_computed_as_each_alone(masked, attention, position):
    gpt, alone = masked(attention, position), masked(attention, position, "mixed")
    x, y = batch(STARTS)
    expected, sums = torch.empty(*x.shape, gpt.wte.num_embeddings).double(), []
    for b, row in enumerate(x):
        for start, stop in pairwise(sorted({0, *(row == END).nonzero().flatten().tolist(), T})):
            part, target = x[None, b, start:stop], y[None, b, start:stop]
            expected[b, start:stop] = alone(part)[0].detach()
            share = part.numel() / x.numel()
            sums.append([share * g for g in gradients(alone, part, target)])
    expected = [expected, *map(sum, zip(*sums, strict=True))]
    for a, b in zip([gpt(x).detach(), *gradients(gpt, x, y)], expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10 * b.abs().max().item())


@pytest.mark.parametrize("name", OURS)
def test_one_document_in_each_row_gives_the_bits_of_mixed_documents(masked, name):
    (x, y), both = batch([[], []]), (masked(name, documents=d) for d in ("masked", "mixed"))
    found = ([gpt(x), *gradients(gpt, x, y)] for gpt in both)
    assert all(map(torch.equal, *found))


def test_blocks_are_computed_again_and_sampling_reads_its_prompt_as_one_document(masked):
    gpt, found = masked("linear"), []
    for gpt.recompute in (False, True):
        found.append(gradients(gpt, *batch(STARTS)))
    assert all(map(torch.equal, *found))
    x, _ = batch([[], []])
    states, found = gpt.init_states(2, T), []
    for t in range(T):
        logits, states = gpt.decode_step(x[:, t], states)
        found.append(logits)
    torch.testing.assert_close(torch.stack(found, 1), gpt(x))


@given(rows=st.integers(1, 5), tokens=st.integers(1, 97), data=st.data())
def test_batches_have_less_than_two_places_for_each_token(rows, tokens, data):
    share, seed = data.draw(st.sampled_from([0.0, 0.01, 0.2, 1.0])), data.draw(st.integers(0, 99))
    drawn = torch.Generator().manual_seed(seed)
    documents = Documents(torch.rand(rows, tokens, generator=drawn) < share)
    sizes = []

    def attend(x):
        sizes.append(x.shape[:2])
        return 2 * x

    x = torch.randn(rows, tokens, 3)
    assert torch.equal(documents.each(attend, x), 2 * x)
    assert sum(n * length for n, length in sizes) < 2 * rows * tokens
    assert sum(n for n, _ in sizes) == len(documents.lengths)
    assert len(sizes) <= 1 + (tokens - 1).bit_length()  # powers of two
    assert documents.bounds_P.tolist() == [0, *accumulate(documents.lengths)]
    expected = [t for n in documents.lengths for t in range(n)]
    assert documents.positions_BT.flatten().tolist() == expected


@pytest.mark.ci
def test_a_compiler_does_not_see_the_documents(masked, monkeypatch):
    """Four batches with other documents share one graph, of what follows the attention."""
    torch.compiler.reset()
    compiler = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler))
    gpt, plain = masked("linear"), masked("linear")
    gpt.compile_blocks()
    for i in range(4):
        found, expected = (gradients(each, *batch(STARTS[i : i + 2])) for each in (gpt, plain))
        torch.testing.assert_close(found, expected)
    assert compiler.frame_count == 1


@pytest.mark.parametrize("rotate", [unrotated, Rotary(16)], ids=["unrotated", "rope"])
def test_flash_attention_gets_the_bounds_of_the_documents(rotate, monkeypatch):
    """Its call is written out in plain PyTorch, as it needs a device."""
    softmax, x = attention.build("softmax", 32, 2, rotate), torch.randn(3, 70, 32)
    documents, calls = Documents(torch.rand(3, 70) < 0.05), []

    def varlen(q, k, v, bounds, bounds_k, longest, longest_k, window_size):
        calls.append(bounds)
        assert bounds is bounds_k
        assert bounds.dtype == torch.int32
        assert longest == longest_k == bounds.diff().max()
        assert window_size == (-1, 0)  # causal
        lengths = bounds.diff().tolist()
        parts = zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
        return torch.cat([forms.flash(*(x[None] for x in part))[0] for part in parts])

    expected = softmax.forward_documents(x, documents)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
    monkeypatch.setattr(_pytorch, "is_forced", lambda x: True)
    torch.testing.assert_close(softmax.forward_documents(x, documents), expected)
    assert len(calls) == 1


def test_masked_cells_have_names_and_checks_of_their_own(values, cell, tmp_path):
    cells = grid.expand({**values, "documents": "masked"}).cells.values()
    masked = next(each for each in cells if each.attention == "linear")
    assert masked == replace(cell, documents="masked")
    for name in ("run", "calibration", "check"):
        assert getattr(masked, name) != getattr(cell, name)
        assert getattr(replace(masked, documents="mixed"), name) == getattr(cell, name)
    for each in (cell, masked):
        variant.require(each, torch.device("cpu"), tmp_path / "checks.json")
    first, second = json.loads((tmp_path / "checks.json").read_text())["findings"]
    assert second["key"] == first["key"] | {"masked": True}  # mixed: as earlier versions wrote it
    with refused(UserError, "documents", "'maskd'", "'masked'"):
        grid.expand({**values, "documents": "maskd"})
    # A sequence lies in one block of shuffled text.
    lines = values["datasets"]["lines"]
    lines |= {"shuffle": "blocks", "block_tokens": 64}
    grid.expand({**values, "documents": "masked"})
    lines["block_tokens"] = 40
    with refused(UserError, "axes.context", 16, "block_tokens", 40, "datasets.lines", 32):
        grid.expand({**values, "documents": "masked"})
    grid.expand({**values, "documents": "mixed"})


@pytest.mark.parametrize(("mean", "context"), [(480, 1024), (480, 8192), (4000, 1024)])
def test_lengths_of_documents_in_windows_are_near_to_those_that_are_counted(mean, context):
    """Within 5 % of the mean over tokens, and 1 % where windows are the shorter."""
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, rng.lognormal(np.log(mean) - 0.5, 1.0, 2_000_000 // mean)).astype(int)
    n = lengths.sum() // context * context
    starts = np.union1d(np.cumsum([0, *lengths[:-1]]), np.arange(0, n, context))
    counted = np.diff(starts[starts < n], append=n)
    pieces = document_positions.lengths_in_windows(document_positions.own_context(lengths), context)
    assert sum(pieces.values()) == pytest.approx(1)
    for most in (64, context):  # FLOPs of a chunk, and of softmax
        found = sum(share * min(most, n) for n, share in pieces.items())
        expected = (counted * np.minimum(most, counted)).sum() / counted.sum()
        assert found == pytest.approx(expected, rel=0.05 if mean < context else 0.01)


def test_flops_are_counted_at_the_lengths_of_the_documents_which_remarks_say(cell):
    masked = replace(cell, attention="softmax", documents="masked", context=100)
    whole, bound = (sizing.shape(replace(masked, documents=d)) for d in ("mixed", "masked"))
    known = sizing.shape(masked, {10: 0.25, 100: 0.75})
    assert whole.flops_per_token == bound.flops_per_token
    shorter = 3 * masked.model.n_layer * 2 * masked.model.d_model * (100 - (0.25 * 10 + 0.75 * 100))
    assert bound.flops_per_token - known.flops_per_token == pytest.approx(shorter)
    remarks = (*sizing.remarks(masked),)
    more = (*remarks, sizing.UPPER_BOUND)
    assert (whole.remarks, known.remarks, bound.remarks) == ((), remarks, more)
    for remark in bound.remarks:
        sentence("remark", remark)


def test_a_masked_cell_trains_where_its_token_begins_documents_and_counts_their_flops(
    cell, tmp_path
):
    masked, folder = replace(cell, documents="masked"), tmp_path / "tokens"
    (tmp_path / "cell.json").write_text(masked.to_json())
    record = tmp_path / "runs" / "run" / "run.json"
    rng, given = np.random.default_rng(0), {}
    for name, n in (("train-00000", 60), ("validation-00000", 20)):
        lengths = rng.integers(1, 41, n)
        tokens = rng.integers(0, END, lengths.sum()).astype(np.uint16)
        tokens[np.cumsum([0, *lengths[:-1]])] = END
        given[folder / f"{name}.bin"] = tokens, document_positions.own_context(lengths)

    def trained(end):
        for path, (tokens, counts) in given.items():
            write_shard(path, tokens, own_context=counts, end_of_text=end)
        shards.write_manifest(folder / "manifest.json", {"train": 1, "validation": 1})
        places = folder / "manifest.json", tmp_path / "scratch" / "run", record
        return train(tmp_path / "cell.json", *places, calibration(tmp_path, masked))

    with refused(UserError, "token 7", "masked: 256"):
        trained(7)
    assert not record.exists()
    made = trained(END)
    assert made
    assert made.status == "done"
    assert made.remarks == "; ".join(sizing.remarks(masked))
    _, counts = given[folder / "train-00000.bin"]
    pieces = document_positions.lengths_in_windows(counts, cell.context)
    assert made.flops_per_token == GPT(masked).flops_per_token(pieces)
    assert made.flops_per_token < GPT(masked).flops_per_token()


def test_a_calibration_has_documents_as_long_as_those_of_c4(cell, tmp_path):
    class Enough(BaseException):
        """No error that a trial would report."""

    def read(module, given):
        if isinstance(module, torch.nn.Embedding) and given[0].dim() == 2:
            batches.append(given[0])
            if len(batches) == 8:
                raise Enough

    for documents in ("masked", "mixed"):
        changed, batches = replace(cell, context=4096, position="rope", documents=documents), []
        hook = torch.nn.modules.module.register_module_forward_pre_hook(read)
        with pytest.raises(Enough):
            calibrate.measured(changed, torch.device("cpu"), tmp_path / "checks.json")
        hook.remove()
        ends = torch.cat(batches) == END
        if documents == "masked":
            assert 350 < np.mean(Documents(ends).lengths) < 650  # 512, cut by rows
        else:
            assert ends.float().mean() > 0.003
