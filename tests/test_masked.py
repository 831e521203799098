"""Masked documents: a row of several gives what each gives alone, forward and backward."""

import json
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import strangers
import torch
import torch._dynamo.testing
from conftest import calibration, write_shard
from strangers import file
from test_fused import WITH_TRITON, run_cases
from test_workflow import product

from lmscaling import attention, registry
from lmscaling.attention import Documents, _documents
from lmscaling.bench.checks import variant
from lmscaling.config import grid
from lmscaling.config.attention_row import Layer
from lmscaling.config.cell import Model
from lmscaling.data import document_positions, shards
from lmscaling.errors import UserError
from lmscaling.kernels import segments
from lmscaling.kernels.rotary import Rotary, unrotated
from lmscaling.kernels.softmax import flash
from lmscaling.model import gpt as gpt_module
from lmscaling.model.gpt import GPT
from lmscaling.train import calibrate
from lmscaling.train.run import train

CASES = Path(__file__).with_name("masked_cases.py")
END = 256
"""The last token of the vocabulary, which begins a document."""
T = 140
"""Tokens of a row: two chunks and a part of one."""
HYBRID = "linear.softmax"
STARTS = {
    "on the edges of chunks": [[64, 128], [32, 96]],
    "off them": [[1, 65, 66, 127], [13, 139]],
    "one after another": [[40, 41, 42], [138, 139]],
    "a row that is one document": [[], [70]],
    "in no row": [[], []],
}


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
        with torch.no_grad():
            for p in gpt.parameters():
                p.mul_(3.0)  # far from the start, where everything is nearly linear
        return gpt

    return build


def batch(starts, seed=0):
    """Inputs and targets ``[2, T]`` with documents at these tokens; the first row begins in one."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randint(0, END, (2, 2, T), generator=generator)
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


def one_by_one(gpt, x, y):
    """Logits, and the gradients of the mean loss, of documents that never meet."""
    logits = torch.empty(*x.shape, gpt.wte.num_embeddings, dtype=torch.float64)
    for b, here in pieces(x):
        part, target = x[None, b, here], y[None, b, here]
        logits[b, here] = gpt(part)[0].detach()
        (gpt.loss(part, target) * part.numel() / x.numel()).backward()
    return logits, gradients(gpt)


def assert_separate(gpt, alone, x, y):
    """Within 1e-10 of the largest logit, and of the largest gradient of each parameter."""
    expected, sums = one_by_one(alone, x, y)
    found = gpt(x).detach()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * expected.abs().max().item())
    gpt.loss(x, y).backward()
    for (name, _), a, b in zip(gpt.named_parameters(), gradients(gpt), sums, strict=True):
        torch.testing.assert_close(
            a, b, rtol=0, atol=1e-10 * b.abs().max().item(), msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("position", ["learned", "rope", "none"])
@pytest.mark.parametrize("attention", [*registry.attentions(), HYBRID])
def test_documents_of_a_row_are_computed_as_each_alone(masked, attention, position):
    gpt, alone = masked(attention, position), masked(attention, position, "mixed")
    for starts in STARTS.values():
        assert_separate(gpt, alone, *batch(starts))


def positions_of_the_row(monkeypatch):
    row = property(lambda self: torch.arange(T).expand(self.shape))
    monkeypatch.setattr(Documents, "positions_BT", row)


def a_boundary_one_token_late(monkeypatch):
    begin = Documents.__init__
    monkeypatch.setattr(Documents, "__init__", lambda self, x: begin(self, x.roll(1, 1)))


def a_state_of_the_whole_row(monkeypatch):
    monkeypatch.setattr(Documents, "each", lambda self, attend, x: attend(x))


def a_gradient_at_the_next_place(monkeypatch):
    copy = _documents._Copy
    backward = copy.backward
    monkeypatch.setattr(
        copy, "backward", staticmethod(lambda ctx, dx: backward(ctx, dx.roll(1, 0)))
    )


@pytest.mark.parametrize("name", ["softmax", "linear", "gated_delta"])
@pytest.mark.parametrize(
    "fault",
    [
        positions_of_the_row,
        a_boundary_one_token_late,
        a_state_of_the_whole_row,
        a_gradient_at_the_next_place,
    ],
)
def test_a_fault_in_the_documents_is_seen(masked, monkeypatch, name, fault):
    gpt, alone = masked(name), masked(name, documents="mixed")
    fault(monkeypatch)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        assert_separate(gpt, alone, *batch(STARTS["off them"]))


@pytest.mark.parametrize("name", registry.attentions())
def test_one_document_in_each_row_gives_the_bits_of_mixed_documents(masked, name):
    x, y = batch(STARTS["in no row"])
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
        gpt.loss(*batch(STARTS["off them"])).backward()
        found.append(gradients(gpt))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("position", ["learned", "rope"])
def test_sampling_reads_its_prompt_as_one_document(masked, position):
    gpt, (x, _) = masked("linear", position), batch(STARTS["in no row"])
    states, found = gpt.init_states(2, T), []
    for t in range(T):
        logits, states = gpt.decode_step(x[:, t], states)
        found.append(logits)
    torch.testing.assert_close(torch.stack(found, 1), gpt(x))


def cut_at_random(rows, tokens, share, seed):
    """Documents that begin at this share of the tokens."""
    drawn = torch.Generator().manual_seed(seed)
    return torch.rand(rows, tokens, generator=drawn) < share


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 1.0])
def test_batches_have_less_than_two_places_for_each_token(share):
    starts = cut_at_random(5, 97, share, seed=1)
    documents, sizes = Documents(starts), []

    def attend(x):
        sizes.append(x.shape[:2])
        return 2 * x

    x = torch.randn(5, 97, 3)
    assert torch.equal(documents.each(attend, x), 2 * x)
    assert sum(rows * length for rows, length in sizes) < 2 * 5 * 97
    assert sum(rows for rows, _ in sizes) == len(documents.lengths)
    assert len(sizes) <= 7  # powers of two up to 97
    here = [0, *accumulate(documents.lengths)]
    assert documents.bounds_P.tolist() == here
    expected = [t for n in documents.lengths for t in range(n)]
    assert documents.positions_BT.flatten().tolist() == expected


def test_a_compiler_does_not_see_the_documents(masked, monkeypatch):
    """Four batches with other documents share one graph, of what follows the attention."""
    torch._dynamo.reset()
    compiler = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler))
    gpt, plain = masked("linear"), masked("linear")
    gpt.compile_blocks()
    for starts in list(STARTS.values())[:4]:
        x, y = batch(starts)
        loss, expected = gpt.loss(x, y), plain.loss(x, y)
        torch.testing.assert_close(loss, expected)
        loss.backward()
        expected.backward()
        for a, b in zip(gradients(gpt), gradients(plain), strict=True):
            torch.testing.assert_close(a, b)
    assert compiler.frame_count == 1


@pytest.mark.ci
@WITH_TRITON
def test_the_kernels_start_a_new_state_at_each_document():
    run_cases("documents", interpret=True, cases=CASES)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_kernels_start_a_new_state_at_each_document_on_a_device():
    run_cases("documents", interpret=False, cases=CASES)


@pytest.mark.parametrize("rotate", [unrotated, Rotary(16)], ids=["unrotated", "rope"])
def test_flash_attention_gets_the_bounds_of_the_documents(rotate, monkeypatch):
    """Its call is written out in plain PyTorch, as it needs a device."""
    softmax = attention.build("softmax", 32, 2, rotate)
    x = torch.randn(3, 70, 32)
    documents = Documents(cut_at_random(3, 70, 0.05, seed=2))

    def varlen(q, k, v, bounds, bounds_k, longest, longest_k, window_size):
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
    monkeypatch.setattr(Documents, "each", None)
    torch.testing.assert_close(softmax.forward_documents(x, documents), expected)


@pytest.mark.parametrize("tokens", [16, 64])
@pytest.mark.parametrize("share", [0.01, 0.2])
def test_segments_are_those_of_plain_loops(tokens, share):
    B, N, chunk = 3, 150, 16
    lengths = tuple(Documents(cut_at_random(B, N, share, seed=3)).lengths)
    made = segments.cut(B, N, lengths, tokens, chunk, torch.device("cpu"))
    table, ranges, chunks, at = [], [], [], 0
    for length in lengths:
        ranges.append([len(table), -(-length // tokens)])
        for first in range(at, at + length, tokens):
            n = min(tokens, at + length - first)
            table.append([first // N, first % N, n, len(chunks)])
            for part in range(first, first + n, chunk):
                chunks.append([part // N, part % N, min(chunk, first + n - part)])
        at += length
    assert made.table.tolist() == table
    assert made.ranges.tolist() == ranges
    assert made.chunks.tolist() == chunks


WRONG = {
    "a document that reads the one before": (
        "    def forward_documents(self, x_BTD, documents):\n        return self(x_BTD)\n",
        r"mixes the documents of a row: the output of one alone is another, first at position 0 of "
        r"its 1; correct forward_documents, or leave it out; mend attention/mine.py, then type",
    ),
    "a gradient that is lost": (
        "    def forward_documents(self, x_BTD, documents):\n"
        "        y_BTD = documents.each(self, x_BTD)\n"
        "        return torch.cat([y_BTD[:, :66], y_BTD[:, 66:].detach()], 1)\n",
        "mixes the documents of a row: the gradient by its input of one alone is another, first at",
    ),
    "a later document": (
        "    def forward_documents(self, x_BTD, documents):\n"
        "        y_BTD = documents.each(self, x_BTD)\n"
        "        return y_BTD + 1e-4 * y_BTD[:, -1:]\n",
        r"looks ahead: its output at position 0 changes with the token at position \d+; let no",
    ),
    "another shape": (
        "    def forward_documents(self, x_BTD, documents):\n"
        "        return documents.each(self, x_BTD).flatten(0, 1)\n",
        r"returns the shape \[140, 64\] for an input of \[2, 70, 64\]; mend",
    ),
    "an error": (
        "    def forward_documents(self, x_BTD, documents):\n        return documents.nothing\n",
        r"raises AttributeError in line \d+: 'Documents' object has no attribute 'nothing'; mend",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_variant_that_computes_documents_wrongly_is_refused_in_one_sentence(package, fault):
    more, sentence = WRONG[fault]
    package.write("mine", file(more=f"\n{more}"))
    variant.check(variant.Variant(name="mine"), torch.device("cpu"))
    with pytest.raises(UserError, match=f"^attention mine {sentence}") as refusal:
        variant.check(variant.Variant(name="mine", masked=True), torch.device("cpu"))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", strangers.RIGHT)
def test_a_variant_of_a_stranger_needs_nothing_for_documents(package, masked, name):
    package.write("mine", strangers.RIGHT[name])
    variant.check(variant.Variant(name="mine", rotated=True, masked=True), torch.device("cpu"))
    gpt, alone = masked("mine"), masked("mine", documents="mixed")
    assert_separate(gpt, alone, *batch(STARTS["off them"]))


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


def test_another_word_for_documents_is_refused_in_one_sentence(values):
    with pytest.raises(UserError, match="documents") as refusal:
        grid.expand({**values, "documents": "maskd"})
    assert str(refusal.value).endswith("'maskd'; nearest is 'masked'; allowed: mixed, masked")


def test_a_sequence_of_masked_documents_lies_in_one_block_of_shuffled_text(values):
    values["documents"] = "masked"
    values["datasets"]["lines"] |= {"shuffle": "blocks", "block_tokens": 64}
    grid.expand(values)
    values["datasets"]["lines"]["block_tokens"] = 40
    with pytest.raises(UserError) as refusal:
        grid.expand(values)
    assert str(refusal.value) == (
        "study file: axes.context 16 does not divide block_tokens 40 of datasets.lines, and a "
        "masked document must not go on in another block; write block_tokens: 32 or documents: "
        "mixed"
    )
    grid.expand({**values, "documents": "mixed"})


def counted_in_windows(lengths, context):
    """Lengths of the parts of documents in the complete windows of a text."""
    starts = np.zeros(sum(lengths), bool)
    starts[np.cumsum([0, *lengths[:-1]])] = True
    n = len(starts) // context * context
    starts[:n:context] = True
    return np.diff(np.flatnonzero(starts[:n]), append=n)


@pytest.mark.parametrize(("mean", "context"), [(480, 1024), (480, 128), (480, 8192), (4000, 1024)])
def test_lengths_of_documents_in_windows_are_near_to_those_that_are_counted(mean, context):
    """Within 5 % of the mean over tokens, and 1 % where windows are the shorter."""
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, rng.lognormal(np.log(mean) - 0.5, 1.0, 2_000_000 // mean)).astype(int)
    counted = counted_in_windows(lengths, context)
    pieces = document_positions.lengths_in_windows(document_positions.own_context(lengths), context)
    assert sum(pieces.values()) == pytest.approx(1)
    for most in (64, context):  # FLOPs of a chunk, and of softmax
        found = sum(share * min(most, n) for n, share in pieces.items())
        expected = (counted * np.minimum(most, counted)).sum() / counted.sum()
        assert found == pytest.approx(expected, rel=0.05 if mean < context else 0.01)


def test_a_text_that_is_one_document_fills_every_window():
    counts = document_positions.own_context([2**30])
    assert document_positions.lengths_in_windows(counts, 1024)[1024] == pytest.approx(1, abs=1e-4)
    assert document_positions.lengths_in_windows(document_positions.own_context([1] * 9), 1024) == {
        1: 1.0
    }


def test_flops_are_counted_at_the_lengths_of_the_documents(masked):
    gpt = masked("softmax")
    D, L = 32, 2
    whole, pieces = gpt.flops_per_token(), gpt.flops_per_token({10: 0.25, 100: 0.75})
    assert whole == masked("softmax", documents="mixed").flops_per_token()
    assert whole - pieces == pytest.approx(3 * L * 2 * D * (T - (0.25 * 10 + 0.75 * 100)))


def test_remarks_say_what_is_counted(cell):
    masked = replace(cell, documents="masked")
    assert gpt_module.shape(cell).remarks == ()
    bound = gpt_module.shape(masked)
    assert bound.remarks == ("attention does not cross documents", gpt_module.UPPER_BOUND)
    known = gpt_module.shape(masked, {4: 1.0})
    assert known.remarks == ("attention does not cross documents",)
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


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_a_masked_cell_trains_and_counts_the_flops_of_its_text(cell, text, tmp_path, name):
    manifest, lengths = text
    masked = replace(cell, attention=name, documents="masked")
    (tmp_path / "cell.json").write_text(masked.to_json())
    made = train(
        tmp_path / "cell.json", manifest, tmp_path / "scratch" / "run",
        tmp_path / "runs" / "run" / "run.json", calibration(tmp_path, masked),
    )  # fmt: skip
    assert made
    assert made.status == "done"
    assert made.remarks == "attention does not cross documents"
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
    with pytest.raises(UserError, match=r"token 7 begins the documents of .*masked: 256, the last"):
        train(tmp_path / "cell.json", manifest, *places, calibration(tmp_path, masked))
    assert not places[1].exists()


def test_a_calibration_has_documents_as_long_as_those_of_c4(cell):
    bench: Any = SimpleNamespace(cell=replace(cell, context=4096, documents="masked"), device="cpu")
    x_BT, _ = calibrate._Bench._tokens(bench, 32)
    lengths = Documents(x_BT == END).lengths
    assert 350 < np.mean(lengths) < 650  # 512, and fewer at the ends of rows
    bench.cell = replace(bench.cell, documents="mixed")
    assert (calibrate._Bench._tokens(bench, 32)[0] == END).float().mean() > 0.003


@pytest.mark.ci
def test_a_masked_study_runs_from_text_to_report(tmp_path):
    place = product(tmp_path / "product")
    place.study(documents="masked", calibrate="all")
    study = ("config/study.yaml", "tiny.yaml")
    assert gpt_module.UPPER_BOUND in " ".join(place.lmscaling("plan", *study).stdout.split())
    place.snakemake("--cores", "2")
    runs = [json.loads(path.read_text()) for path in place.results.glob("runs/*/run.json")]
    assert {(r["cell"]["documents"], r["status"]) for r in runs} == {("masked", "done")}
    assert gpt_module.UPPER_BOUND not in " ".join(place.lmscaling("plan", *study).stdout.split())
    report = (place.results / "report.html").read_text()
    assert "Attention does not cross documents and positions restart in each" in report
    figure = (place.results / "figures" / "context_scaling.svg").read_text()
    assert "attention does not cross documents" in figure
