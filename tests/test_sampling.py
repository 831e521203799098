"""Text that a trained model writes is what its parallel forward pass predicts, token by token."""

import re
from dataclasses import replace

import pytest
import torch
from attention_definitions import OURS
from conftest import refused
from test_evaluate import finish
from test_main import lmscaling
from test_tokenizer_file import small

from lmscaling import cli
from lmscaling.config.attention_row import Layer
from lmscaling.config.cell import Data, Model
from lmscaling.errors import UserError
from lmscaling.evaluate import sampling
from lmscaling.model import finished_run
from lmscaling.model.gpt import GPT

SHAPE = Model(n_layer=2, n_head=2, d_model=32, vocab_size=257)
HYBRID = (Layer(attention="linear"), Layer(attention="softmax"))


@pytest.fixture
def run(cell, tmp_path):
    """A finished run of 64 tokens of context."""
    return finish(tmp_path, replace(cell, model=SHAPE, context=64, position="none"))


def written(run, prompt="", n=20, temperature=1.0, seed=0):
    pieces = []
    said = sampling.sample(run, prompt, n, temperature, seed, pieces.append)
    return "".join(pieces), said


@pytest.mark.parametrize("attention", [*OURS, "hybrid"])
@pytest.mark.parametrize("token_shift", [False, True])
def test_the_likeliest_tokens_are_those_of_the_parallel_forward_pass(cell, attention, token_shift):
    layers = {"attention": attention, "layers": HYBRID if attention == "hybrid" else ()}
    shape = replace(SHAPE, token_shift=token_shift, init_std=0.2)
    model = GPT(replace(cell, **layers, model=shape, context=32)).double().eval()
    prompt = torch.randint(0, 257, (2, 7), generator=torch.Generator().manual_seed(1))
    drawn = torch.stack(list(sampling.generate(model, prompt, 25, temperature=0)), 1)
    tokens = torch.cat((prompt, drawn), 1)
    with torch.no_grad():
        expected = model(tokens)[:, 6:-1, :257].argmax(-1)
    assert torch.equal(drawn, expected)
    assert len(set(drawn.flatten().tolist())) > 2  # the models do not repeat one token


def test_the_shares_of_drawn_tokens_are_the_softmax_of_the_logits_of_what_is_allowed(cell):
    model = GPT(replace(cell, model=SHAPE, context=16)).eval()
    prompt = torch.full((20_000, 3), 65)
    (drawn,) = sampling.generate(model, prompt, 1, temperature=0.5)
    with torch.no_grad():
        expected = (model(prompt[:1])[0, -1, :257] / 0.5).softmax(-1)
    found = torch.bincount(drawn, minlength=257) / 20_000
    assert (found - expected).abs().max() < 5 * (expected.max() / 20_000) ** 0.5
    with torch.no_grad():
        model.wte.weight[257:] *= 100  # of the padding: nothing is as likely
    prompt = prompt[:500]
    assert max(int(x.max()) for x in sampling.generate(model, prompt, 4)) <= 256
    allowed = torch.zeros(257, dtype=torch.bool)
    allowed[[3, 9]] = True
    drawn = torch.stack(list(sampling.generate(model, prompt, 4, allowed_V=allowed)))
    assert set(drawn.flatten().tolist()) == {3, 9}


def test_a_seed_repeats_its_text_and_another_one_draws_another(run):
    one, again, other = (written(run, "a", seed=seed)[0] for seed in (1, 1, 2))
    assert one == again != other


def test_a_character_of_several_tokens_is_shown_once_it_is_complete(run):
    text = sampling.text_of(run, finished_run.cell(run))
    decode = text.decoder()
    assert [decode(token) for token in text.encode("aé🙂")] == ["a", "", "é", "", "", "", "🙂"]
    cut = [decode(token) for token in (*text.encode("é")[:1], None)]
    assert cut == ["", "\N{REPLACEMENT CHARACTER}"]


def test_text_of_a_tokenizer_file_comes_back_from_its_tokens(run, cell, tmp_path):
    data = Data(
        dataset="x", source={}, tokenizer="own", encoding="file", vocabulary={"sha256": "x"}
    )
    (tmp_path / "vocabulary").mkdir()
    small().save(str(tmp_path / "vocabulary" / data.vocabulary_file))
    text = sampling.text_of(run, replace(cell, data=data))
    decode = text.decoder()
    assert "".join(map(decode, text.encode("def é🙂(x):\n"))) == "def é🙂(x):\n"


def test_the_summary_has_the_speed_and_the_state(run):
    text, said = written(run, "abc", n=5, temperature=0.01)
    assert text.startswith("abc")
    assert re.match(r"5 tokens, [\d,]+ tokens/s", said)
    assert re.search(r"[\d,]+ bytes at 8 tokens$", said)


def test_learned_positions_end_the_text_and_refuse_a_longer_prompt(cell, tmp_path):
    run = finish(tmp_path, replace(cell, model=SHAPE, context=16, position="learned"))
    _, said = written(run, "abc", n=100, seed=3)
    assert said.startswith("13 tokens")
    with refused(UserError, 16, 15):
        written(run, "a" * 16)


@pytest.mark.ci
def test_the_command_writes_the_text(run):
    done = lmscaling("sample", str(run), "--prompt", "abc", "--tokens", "4")
    assert done.returncode == 0
    assert done.stdout.startswith("abc")
    assert "tokens" not in done.stdout
    assert done.stderr.startswith("sample: ")
    where = ("--results", str(run.parents[2]), "--study", run.parents[1].name)
    by_name = lmscaling("sample", run.name, *where, "--prompt", "abc", "--tokens", "4")
    assert by_name.stdout == done.stdout, by_name.stderr


@pytest.mark.parametrize(("flag", "value", "allowed"), [
    ("--temperature", "-1", "0.001"),
    ("--temperature", "nan", "0.001"),
    ("--temperature", "1e-320", "0.001"),
    ("--seed", str(2**70), "4,294,967,295"),
    ("--tokens", "0", "1,000,000,000"),
])  # fmt: skip
def test_the_command_refuses_what_cannot_be(run, capsys, monkeypatch, flag, value, allowed):
    monkeypatch.setattr("sys.argv", ["lmscaling", "sample", str(run), flag, value])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = str(ended.value.code) + capsys.readouterr().err
    assert flag.strip("-") in said
    assert allowed in said
