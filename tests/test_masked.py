"""Masked documents: a row of several gives what each gives alone, forward and backward."""

import json
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from conftest import calibration, refused, sentence, write_shard
from hypothesis import given
from hypothesis import strategies as st

from lmscaling import attention, registry
from lmscaling.attention import Documents
from lmscaling.bench.checks import variant
from lmscaling.config import grid
from lmscaling.config.attention_row import Layer
from lmscaling.config.cell import Model
from lmscaling.data import document_positions, shards
from lmscaling.errors import UserError
from lmscaling.kernels.rotary import Rotary, unrotated
from lmscaling.kernels.softmax import flash
from lmscaling.model import gpt as gpt_module
from lmscaling.model.gpt import GPT
from lmscaling.train import calibrate
from lmscaling.train.run import train

END = 256
"""The last token of the vocabulary, which begins a document."""
T = 40
"""Tokens of a row: two chunks of 16 tokens and a part of one."""
HYBRID = "linear.softmax"
STARTS = [[16, 32], [8, 24], [1, 17, 18, 31], [13, 39], [10, 11, 12], [], [20]]
"""Documents on the edges of chunks, off them, one after another, and a row that is one."""
ONE_EACH = [[], []]


@pytest.fixture
def masked(cell):
    """The model of an attention and a kind of position in float64, with weights that matter."""

    def build(attention="softmax", position="learned", documents="masked", **more):
        layers = [Layer(attention=name) for name in attention.split(".")]
        changed = replace(
            cell,
            attention=attention,
            layers=tuple(layers) if len(layers) > 1 else (),
            model=Model(n_layer=2, n_head=2, d_model=32, vocab_size=END + 1),
            context=T,
            position=position,
            documents=documents,
            **more,
        )
        gpt = GPT(changed).double()
        for layers in gpt.each_attention().values():
            for layer in layers:
                layer.chunk = 16
        with torch.no_grad():
            for p in gpt.parameters():
                p.mul_(3.0)  # far from the start, where everything is nearly linear
        return gpt

    return build


def batch(starts, seed=0):
    """Inputs and targets with documents at these tokens; all rows but one begin in another."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randint(0, END, (2, len(starts), T), generator=generator)
    for b, row in enumerate(starts):
        x[b, row] = END
    x[1, 0] = END
    return x, y


def pieces(x):
    """The documents of each row, as slices of it."""
    for b, row in enumerate(x):
        starts = sorted({0, *(row == END).nonzero().flatten().tolist()})
        for start, stop in zip(starts, [*starts[1:], T], strict=True):
            yield b, slice(start, stop)


def gradients(gpt):
    found = [p.grad.clone() for p in gpt.parameters()]
    gpt.zero_grad()
    return found


def assert_separate(gpt, alone, x, y):
    """Within 1e-10 of the largest logit, and of the largest gradient of each parameter."""
    expected = torch.empty(*x.shape, gpt.wte.num_embeddings, dtype=torch.float64)
    for b, here in pieces(x):  # documents that never meet
        part, target = x[None, b, here], y[None, b, here]
        expected[b, here] = alone(part)[0].detach()
        (alone.loss(part, target) * part.numel() / x.numel()).backward()
    gpt.loss(x, y).backward()
    found, sums = [gpt(x).detach(), *gradients(gpt)], [expected, *gradients(alone)]
    for a, b in zip(found, sums, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10 * b.abs().max().item())


@pytest.mark.parametrize(
    ("attention", "position"),
    [
        *zip([*registry.attentions(), HYBRID], ["learned", "rope", "none"] * 9, strict=False),
        *[("linear", "rope"), ("softmax", "rope"), ("linear", "none")],
    ],
)
def test_documents_of_a_row_are_computed_as_each_alone(masked, attention, position):
    gpt, alone = masked(attention, position), masked(attention, position, "mixed")
    assert_separate(gpt, alone, *batch(STARTS))


@pytest.mark.parametrize("name", registry.attentions())
def test_one_document_in_each_row_gives_the_bits_of_mixed_documents(masked, name):
    x, y = batch(ONE_EACH)
    found = []
    for documents in ("masked", "mixed"):
        gpt = masked(name, documents=documents)
        loss = gpt.loss(x, y)
        loss.backward()
        found.append([gpt(x), loss, *gradients(gpt)])
    assert all(map(torch.equal, *found))


def test_blocks_computed_again_give_the_same_bits(masked):
    gpt, found = masked("linear"), []
    for gpt.recompute in (False, True):
        gpt.loss(*batch(STARTS)).backward()
        found.append(gradients(gpt))
    assert all(map(torch.equal, *found))


def test_sampling_reads_its_prompt_as_one_document(masked):
    gpt, (x, _) = masked("linear"), batch(ONE_EACH)
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
    torch._dynamo.reset()
    compiler = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler))
    gpt, plain = masked("linear"), masked("linear")
    gpt.compile_blocks()
    for i in range(4):
        x, y = batch(STARTS[i : i + 2])
        loss, expected = gpt.loss(x, y), plain.loss(x, y)
        torch.testing.assert_close(loss, expected)
        loss.backward()
        expected.backward()
        for a, b in zip(gradients(gpt), gradients(plain), strict=True):
            torch.testing.assert_close(a, b)
    assert compiler.frame_count == 1


@pytest.mark.parametrize("rotate", [unrotated, Rotary(16)], ids=["unrotated", "rope"])
def test_flash_attention_gets_the_bounds_of_the_documents(rotate, monkeypatch):
    """Its call is written out in plain PyTorch, as it needs a device."""
    softmax = attention.build("softmax", 32, 2, rotate)
    x = torch.randn(3, 70, 32)
    documents = Documents(torch.rand(3, 70) < 0.05)

    calls = []

    def varlen(q, k, v, bounds, bounds_k, longest, longest_k, window_size):
        calls.append(bounds)
        assert bounds is bounds_k
        assert bounds.dtype == torch.int32
        assert longest == longest_k == bounds.diff().max()
        assert window_size == (-1, 0)  # causal
        lengths = bounds.diff().tolist()
        parts = zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
        return torch.cat([flash.attend(*(x[None] for x in part))[0] for part in parts])

    expected = softmax.forward_documents(x, documents)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
    monkeypatch.setattr(flash, "is_forced", lambda x: True)
    torch.testing.assert_close(softmax.forward_documents(x, documents), expected)
    assert len(calls) == 1


def test_a_check_of_mixed_documents_is_known_by_what_earlier_versions_wrote(cell, tmp_path):
    variant.require(cell, torch.device("cpu"), tmp_path / "checks.json")
    variant.require(
        replace(cell, documents="masked"), torch.device("cpu"), tmp_path / "checks.json"
    )
    first, second = json.loads((tmp_path / "checks.json").read_text())["findings"]
    assert second["key"] == first["key"] | {"masked": True}


def test_masked_cells_have_names_of_their_own(values):
    (cell, *_), (masked, *_) = (
        list(grid.expand({**values, **more}).cells.values())
        for more in ({}, {"documents": "masked"})
    )
    assert masked == replace(cell, documents="masked")
    for name in ("run", "calibration", "check"):
        assert getattr(masked, name) != getattr(cell, name)
        assert getattr(replace(masked, documents="mixed"), name) == getattr(cell, name)


def test_another_word_for_documents_is_refused(values):
    with refused(UserError, "documents", "'maskd'", "'masked'"):
        grid.expand({**values, "documents": "maskd"})


def test_a_sequence_of_masked_documents_lies_in_one_block_of_shuffled_text(values):
    values["documents"] = "masked"
    values["datasets"]["lines"] |= {"shuffle": "blocks", "block_tokens": 64}
    grid.expand(values)
    values["datasets"]["lines"]["block_tokens"] = 40
    with refused(UserError, "axes.context", 16, "block_tokens", 40, "datasets.lines", 32):
        grid.expand(values)
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


def test_flops_are_counted_at_the_lengths_of_the_documents(masked):
    gpt = masked("softmax")
    D, L = 32, 2
    whole, pieces = gpt.flops_per_token(), gpt.flops_per_token({10: 0.25, 100: 0.75})
    assert whole == masked("softmax", documents="mixed").flops_per_token()
    assert whole - pieces == pytest.approx(3 * L * 2 * D * (T - (0.25 * 10 + 0.75 * 100)))


def test_remarks_say_what_is_counted(cell):
    masked = replace(cell, documents="masked")
    assert gpt_module.shape(cell).remarks == ()
    bound, known = gpt_module.shape(masked), gpt_module.shape(masked, {4: 1.0})
    assert bound.remarks == (*known.remarks, gpt_module.UPPER_BOUND)
    assert known.remarks == (*gpt_module.remarks(masked),)
    for remark in bound.remarks:
        sentence("remark", remark)
    assert known.flops_per_token < bound.flops_per_token == gpt_module.shape(cell).flops_per_token


@pytest.fixture
def text(tmp_path):
    """A stream of documents of 1 to 40 tokens, and the lengths of those for training."""
    rng, made = np.random.default_rng(0), []
    for name, n in (("train-00000", 60), ("validation-00000", 20)):
        lengths = rng.integers(1, 41, n)
        tokens = rng.integers(0, END, lengths.sum()).astype(np.uint16)
        tokens[np.cumsum([0, *lengths[:-1]])] = END
        counts = document_positions.own_context(lengths)
        write_shard(tmp_path / "tokens" / f"{name}.bin", tokens, own_context=counts)
        made.append(lengths)
    shards.write_manifest(tmp_path / "tokens" / "manifest.json", {"train": 1, "validation": 1})
    return tmp_path / "tokens" / "manifest.json", made[0]


def test_a_masked_cell_trains_and_counts_the_flops_of_its_text(cell, text, tmp_path):
    manifest, lengths = text
    masked = replace(cell, documents="masked")
    (tmp_path / "cell.json").write_text(masked.to_json())
    made = train(
        tmp_path / "cell.json", manifest, tmp_path / "scratch" / "run",
        tmp_path / "runs" / "run" / "run.json", calibration(tmp_path, masked),
    )  # fmt: skip
    assert made
    assert made.status == "done"
    assert made.remarks == "; ".join(gpt_module.remarks(masked))
    counts = document_positions.own_context(lengths)
    pieces = document_positions.lengths_in_windows(counts, cell.context)
    assert made.flops_per_token == GPT(masked).flops_per_token(pieces)
    assert made.flops_per_token < GPT(masked).flops_per_token()


def test_text_whose_documents_begin_with_another_token_is_not_trained_on(cell, text, tmp_path):
    manifest, _ = text
    for path in manifest.parent.glob("*-00000.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"end_of_text": 7}))
    masked = replace(cell, documents="masked")
    (tmp_path / "cell.json").write_text(masked.to_json())
    places = tmp_path / "scratch" / "run", tmp_path / "runs" / "run" / "run.json"
    with refused(UserError, "token 7", "masked: 256"):
        train(tmp_path / "cell.json", manifest, *places, calibration(tmp_path, masked))
    assert not places[1].exists()


def test_a_calibration_has_documents_as_long_as_those_of_c4(cell, tmp_path):
    class Enough(BaseException):
        """No error that a trial would report."""

    def read(module, given):
        if isinstance(module, torch.nn.Embedding) and given[0].dim() == 2:
            batches.append(given[0])
            if len(batches) == 8:
                raise Enough

    for documents, check in (
        ("masked", lambda x: 350 < np.mean(Documents(x == END).lengths) < 650),  # 512, cut by rows
        ("mixed", lambda x: (x == END).float().mean() > 0.003),
    ):
        changed, batches = replace(cell, context=4096, position="rope", documents=documents), []
        hook = torch.nn.modules.module.register_module_forward_pre_hook(read)
        with pytest.raises(Enough):
            calibrate.measured(changed, torch.device("cpu"), tmp_path / "checks.json")
        hook.remove()
        assert check(torch.cat(batches)), torch.cat(batches).shape
