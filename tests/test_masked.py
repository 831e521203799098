"""Masked documents: a row of several gives what each gives alone, forward and backward."""

from dataclasses import replace

import pytest
import torch

from lmscaling import registry
from lmscaling.config.attention_row import Layer
from lmscaling.config.cell import Model
from lmscaling.model.gpt import GPT

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
