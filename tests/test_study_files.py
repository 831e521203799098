"""A study file that cannot be meant is refused in one sentence that begins with its place."""

import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from decimal import Decimal
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

from lmscaling.config import grid, new_study, study_file
from lmscaling.errors import UserError
from lmscaling.files import write_json

STUDY = """
study: small
datasets:
  lines:
    kind: jsonl
    train: [a.jsonl]
    validation: [v.jsonl]
    block_tokens: 4096
    shards_per_job: 4
  web:
    kind: hub
    repository: a/b
    revision: abc
    train: "t-{shard:05d}.json.gz"
    holdout: 0.02
    shards: 4
    expected_tokens: 2.5e9
tokenizers:
  bytes: {encoding: bytes, vocab_size: 257}
sizes:
  s: {n_layer: 2, n_head: 2, d_model: 8, lr: 1.0e-2}
  m: {n_layer: 2, n_head: 2, d_model: 16, lr: {softmax: 5.0e-3, linear: 4e-3}}
dataset: lines
tokenizer: bytes
axes:
  attention: [softmax, linear]
  size: [s, m]
  context: [16, 32]
  seed: [0]
  lr_scale: [1.0]
skip:
  - {context: 32, size: m, reason: too long}
exceptions:
  - {context: 16, update_tokens: 128, reason: shorter}
position: rope
update_tokens: 64
budget: 200 updates
gpus: 0
job_hours: 12
epochs: 2
optimizer:
  betas: [0.9, 0.95]
  eps: 1.0e-8
  weight_decay: 0.1
  clip_norm: 1.0
  warmup_updates: 20
schedule: constant
validation:
  tokens: 128
  every_tokens: 1280
calibrate: {size: s}
branches: {shares: [0.25, 1.0], size: s}
evaluate: {datasets: [lines], size: s}
speed:
  timeout_seconds: 60
  repeats: 3
  target_seconds: 0.1
  time_step:
    sizes: [s]
    contexts: [16, 64]
    implementations: [softmax, linear/chunked]
  time_layer:
    - {name: one, n_head: 2, d_head: 4, batch: 1, passes: [forward], contexts: [16], implementations: [linear/chunked], repeats: 5}
published: false
protocol: {all: 1}
"""  # noqa: E501


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with the local files of the study."""
    for name in ("a.jsonl", "v.jsonl"):
        (tmp_path / name).write_text('{"text": "a text of some length"}\n' * 100)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(text: str | bytes, *overrides: str, over: str = "") -> grid.Grid:
    """The cells of a study file with this text, under another one if that is given."""
    path = Path("study.yaml")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    paths = [path]
    if over:
        paths.append(Path("over.yaml"))
        paths[1].write_text(over)
    return new_study.plan(study_file.read_study(paths, overrides=overrides), paths[1:])


def changed(old: str, new: str) -> str:
    assert STUDY.count(old) == 1, old
    return STUDY.replace(old, new)


def mistake(text: str | bytes, *overrides: str, over: str = "") -> str:
    with pytest.raises(UserError) as caught:
        plan(text, *overrides, over=over)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What is changed in the study, into what, and what is said of it.
NONSENSE = [
    ("gpus: 0", "gpus: 0\ngpus: 1", "study.yaml:39:1: gpus is given twice, first in line 38; keep"),
    ("  s: {n_l", "  s: {lr: 1, lr: 2, n_l", "21:14: sizes.s.lr is given twice, first in line 21"),
    ("lr: 1.0e-2", "lr: .inf", "21:46: .inf is no finite number; write a number"),
    ("lr: 1.0e-2", "lr: -.inf", "21:46: -.inf is no finite number"),
    ("lr: 1.0e-2", "lr: .nan", ".nan is no finite number"),
    ("lr: 1.0e-2", "lr: nan", "21:46: sizes.s.lr is 'nan'"),
    ("lr: 1.0e-2", "lr: 1e309", "sizes.s.lr is '1e309'; allowed: a number from 1e-12 to 10"),
    ("lr: 1.0e-2", "lr: 100", "sizes.s.lr is 100; allowed: a number from 1e-12 to 10; nearest is"),
    ("lr: 1.0e-2", "lr: 1.0e+15", "sizes.s.lr is 1000000000000000.0; allowed: a number from 1e-12"),
    ("lr: 1.0e-2", "lr: true", "sizes.s.lr is true"),
    ("seed: [0]", "seed: [true]", "29:10: axes.seed.0 is true; allowed: a whole number from 0 to"),
    ("seed: [0]", "seed: [010]", "29:10: 010 means 8 in YAML; write it with decimal digits"),
    ("seed: [0]", "seed: [1:30]", "1:30 means 90 in YAML"),
    ("seed: [0]", "seed: [0x10]", "0x10 means 16 in YAML"),
    ("seed: [0]", "seed: [1e23]", "axes.seed.0 is '1e23'; allowed: a whole number from 0 to 4,"),
    ("n_layer: 2, n_head: 2, d_model: 8", "n_layer: true, n_head: 2, d_model: 8", "n_layer is tru"),
    ("n_layer: 2, n_head: 2, d_model: 8", "n_layer: 1.0e+12, n_head: 2, d_model: 8", "to 1,000; n"),
    ("d_model: 8", "d_model: 1000000000000000", "allowed: a whole number from 1 to 131,072; neare"),
    ("gpus: 0", "gpus: true", "38:7: gpus is true; allowed: a whole number from 0 to 1,000"),
    ("clip_norm: 1.0", "clip_norm: 1.0e-30", "45:14: optimizer.clip_norm is 1e-30; allowed: a num"),
    ("eps: 1.0e-8", "eps: 1e9", "optimizer.eps is '1e9'; allowed: a number from 1e-20 to 1"),
    ("weight_decay: 0.1", "weight_decay: 1000", "optimizer.weight_decay is 1000; allowed: a numbe"),
    ("weight_decay: 0.1", "weight_decay: false", "optimizer.weight_decay is false; allowed: a num"),
    ("[0.9, 0.95]", "[0.95, 0.9]", "41:1: optimizer: betas are [0.95, 0.9], and the first moment"),
    ("updates: 20", "updates: 300", "warmup_updates 300 is more than the 200 updates of the budge"),
    ("budget: 200 updates", "budget: 1 token", "37:9: budget 1 tokens is less than one update of"),
    ("budget: 200 updates", "budget: 9e99 tokens", "37:9: budget: '9e99 tokens' is out of bounds;"),
    ("budget: 200 updates", "budget: 0.0000001 hours", "allowed: 2.77778e-07 to 88888.9 hours"),
    ("epochs: 2", "epochs: 1000000000", "epochs is 1000000000; allowed: a whole number from 1 to"),
    ("job_hours: 12", "job_hours: .inf", "39:12: .inf is no finite number"),
    ("job_hours: 12", "job_hours: 1e309", "job_hours is '1e309'; allowed: a number from 0.001 to"),
    ("  tokens: 128", "  tokens: 12800000", "validation.tokens 12800000 is more than the validati"),
    ("shards: 4", "shards: 1000000000000", "datasets.web.hub.shards is 1000000000000; allowed: a"),
    ("[0.25, 1.0]", "[1.0e-300, 1.0]", "branches.shares.0 is 1e-300; allowed: a number from 0.000"),
    ("[0.25, 1.0]", "[0.001, 1.0]", "branches.shares 0.001 is less than one of the 200 updates"),
    ("contexts: [16, 64]", "contexts: [16, 1.0e+30]", "speed.time_step.contexts.1 is 1e+30; allow"),
    ("[a.jsonl]", "[b.jsonl]", "6:12: datasets.lines.train: b.jsonl does not exist; correct the r"),
    ("[v.jsonl]", "[v*.gz]", "4:3: no file matches 'v*.gz'; correct the dataset's row, or put the"),
    ("study: small", "study: README.md", "2:8: study 'README.md' is the name of a folder of resul"),
    ("study: small", f"study: {'x' * 300}", "2:8: study is a name of 300 characters; allowed: up"),
    ("  s: {", "  s: &s {x: *s, ", "21:13: *s stands inside &s, so the value would contain itself"),
    ("published: false", "published: 1", "published is 1; allowed: true or false"),
    ("reason: too long", "reason: 2026-01-01", "2026-01-01 has a meaning of its own in YAML; quot"),
    ("reason: too long", 'reason: "a\\0b"', "has the control character '\\x00'; leave it out"),
    ("reason: too long", "reason: !!set {a}", "the tag 'tag:yaml.org,2002:set' is unknown"),
    ("gpus: 0", "1: 0", "38:1: the key 1 is no word; allowed: names, in quotes if need be"),
    ("gpus: 0", "gpuss: 0", "study.yaml:38:1: unknown key 'gpuss'; nearest is 'gpus'; allowed: st"),
    ("gpus: 0", "gpus 0\nx: 1", "study.yaml:39:1 is not valid YAML: while scanning a simple key c"),
    ("gpus: 0\n", "", "study.yaml:1:1: gpus is missing"),
    ("n_layer: 2, n_head: 2, d_model: 8, ", "n_layer: 2, n_head: 2, ", "21:3: sizes.s.d_model is"),
    ("n_head: 2, d_model: 8", "n_head: 3, d_model: 8", "21:3: sizes.s: d_model 8 is not a multipl"),
    ("context: [16, 32]", "context: [16, 24]", "28:17: axes.context 24 does not divide update_tok"),
    ("{context: 32, size", "{context: 48, size", "32:15: skip {size: m, context: 48} matches no c"),
    ("t-{shard:05d}", "t-{shard:0999999999d}", "10:3: datasets.web.hub: train 't-{shard:09999999"),
    ("seed: [0]", f"seed: {list(range(1300))}", "25:1: the axes have 10,400 combinations; allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "sentence"), NONSENSE)
def test_nonsense_is_one_sentence_with_its_place(old, new, sentence):
    assert sentence in mistake(changed(old, new))


def test_the_study_without_a_mistake_is_planned():
    assert len(plan(STUDY).cells) == 6
    assert len(plan(STUDY, over="skip: []\n").cells) == 8


def test_bytes_that_are_no_utf_8_are_named_with_their_place():
    assert mistake(STUDY.encode().replace(b"too long", b"trop co\xfbteux")) == (
        "study.yaml:32:43: byte 0xfb is not UTF-8; save the study file as UTF-8"
    )
    assert "1:1: byte 0xff" in mistake(STUDY.encode("utf-16"))
    plan(b"\xef\xbb\xbf" + STUDY.encode())


LAUGHS = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefgh"))
"""Each line means ten times the line before it."""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: " + "[" * 60 + "]" * 60, "1:53: values are nested more than 50 levels deep"),
        ("a: &a [1, 1]\n" + LAUGHS, "the study has more than 100,000 values"),
        ("a: *b\n", "1:4: *b has no &b before it"),
        ("a: 1\n---\nb: 2\n", "2:1: a second document begins"),
        ("", "study file study.yaml contains null; allowed: keys with values"),
        ("x" * 1_000_001, "has 1,000,001 bytes; allowed: up to 1,000,000"),
        ("a: 1\n<<: 2\n", "2:5: << is 2; allowed: an alias of a mapping"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_study_says_so_at_once(text, sentence):
    began = time.process_time()
    assert sentence in mistake(text)
    assert time.process_time() - began < 1


def test_aliases_and_merged_mappings_mean_what_yaml_says(place):
    small = changed("  s: {n_layer: 2, n_head: 2, d_model: 8, lr: 1.0e-2}",
                    "  s: &s {n_layer: 2, n_head: 2, d_model: 8, lr: 1.0e-2}\n"
                    "  t: {<<: *s, lr: 2.0e-2}\n  u: *s")  # fmt: skip
    (place / "x.yaml").write_text(small)
    made = study_file.read_study([place / "x.yaml"])
    assert json.loads(json.dumps(made)) == yaml.safe_load(small) | {"skip": made["skip"]}
    made["sizes"]["u"]["lr"] = 1
    assert made["sizes"]["s"]["lr"] == 1.0e-2


def test_a_folder_and_a_missing_file_are_named_with_what_is_near(place):
    (place / "folder").mkdir()
    with pytest.raises(UserError, match="study file folder is a folder; name a file, such as"):
        study_file.read_study([Path("folder")])
    (place / "study.yaml").write_text(STUDY)
    with pytest.raises(UserError, match=r"stdy.yaml does not exist; nearest is '.*study.yaml'"):
        study_file.read_study([Path("stdy.yaml")])


def test_a_mistake_is_in_the_file_that_holds_the_value():
    assert mistake(STUDY, over="axes:\n  context: [16, 24]\n").startswith("over.yaml:2:17: axes.c")
    assert mistake(STUDY, over="update_tokens: 80\n").startswith("study.yaml:28:17: axes.context 3")
    assert mistake(STUDY, over="sizes:\n  s: {n_head: 3}\n").startswith(
        "over.yaml:2:3: sizes.s: d_"
    )
    assert mistake(STUDY, over="sizes:\n  l: {n_head: 3}\n").startswith(
        "over.yaml:2:3: sizes.l.n_l"
    )
    assert mistake(STUDY, over="axes:\n  sed: [1]\n").startswith("over.yaml:2:3: unknown key 'sed'")
    own = "study: own\ndataset: lines\nbranches: {shares: [2]}\n"
    assert mistake(STUDY, over=own).startswith("over.yaml:3:21: branches.shares.0 is 2; allowed: ")


def test_two_study_files_cannot_have_one_name(place):
    repeated = "study: small\nskip: []\n"
    assert mistake(STUDY, over=repeated) == (
        "over.yaml:1:8: study 'small' is the name of the study in study.yaml, whose results this "
        "one would share; choose another name, or leave the line out to change that study"
    )
    (place / "first.yaml").write_text("study: own\n")
    write_json(
        place / "results" / "own" / "study.json",
        {"command": "snakemake --cores all --configfile first.yaml", "study": {}},
    )
    assert "over.yaml:1:8: study 'own' is also the name of the study in first.yaml, whose " in (
        mistake(STUDY, over="study: own\ndataset: lines\n")
    )
    (place / "first.yaml").unlink()  # it was renamed
    plan(STUDY, over="study: own\ndataset: lines\n")


def test_files_are_needed_only_until_they_are_tokenized(place):
    made = plan(STUDY)
    write_json(place / made.results / "tokens" / made.tokens / "manifest.json", {})
    (place / "a.jsonl").unlink()
    assert plan(STUDY).cells == made.cells


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("axes.context=[24]", "--set axes.context=[24]: axes.context 24 does not divide update_t"),
        ("axes.contxt=[16]", "--set axes.contxt=[16]: unknown key 'contxt' in axes; nearest is 'c"),
        ("axs.context=[16]", "--set axs.context=[16]: unknown key 'axs'; nearest is 'axes'"),
        ("budget.hours=1", "--set budget.hours=1: budget"),
        ("axes.seed=[010]", "--set axes.seed=[010]: 010 means 8 in YAML; write it with decimal di"),
        ("axes.seed=[0", "--set axes.seed=[0 is not valid YAML: while parsing a flow sequence"),
        ("gpus", "--set gpus: allowed: a key and a value, such as axes.context=[1024]"),
        ("axes..seed=1", "--set axes..seed=1: allowed: a key and a value"),
        ("optimizer={eps: 1, eps: 2}", "--set optimizer={eps: 1, eps: 2}: eps is given twice; kee"),
    ],
)  # fmt: skip
def test_a_mistake_on_the_command_line_says_where(override, sentence):
    assert sentence in mistake(STUDY, override)


def test_values_of_the_command_line_lie_over_all_files():
    made = plan(STUDY, "axes.context=[64]", "optimizer.eps=1e-9")
    assert {cell.context for cell in made.cells.values()} == {64}
    assert {cell.optimizer.eps for cell in made.cells.values()} == {1e-9}
    assert {cell.optimizer.clip_norm for cell in made.cells.values()} == {1.0}
    assert plan(STUDY, "gpus=4", "gpus=2", over="gpus: 1\n").study.gpus == 2
    assert plan(STUDY, "speed={}").study.speed is None
    dotted = changed("  s: {", "  s.1: {n_layer: 1, n_head: 1, d_model: 8, lr: 1.0e-2}\n  s: {")
    assert plan(dotted, "sizes.s.1.lr=0.02").study.sizes["s.1"].lr == 0.02


@pytest.mark.parametrize(
    ("files", "override", "skipped"),
    [
        (["study"], "axes.context=[1024]", []),
        (["study"], "axes.context=[131072, 1024]", [{"context": 131072}]),
        (["study", "demo"], "axes.size=[2k, 6k, 100k]", [
            {"size": "100k", "context": 1024}, {"seed": 1, "size": "6k"},
            {"seed": 1, "context": 256},
        ]),
        (["study", "demo"], "axes.context=[64]", [
            {"seed": 1, "size": "6k"}, {"seed": 1, "size": "25k", "context": 64},
        ]),
    ],
)  # fmt: skip
def test_an_axis_of_the_command_line_needs_no_other_parts(files, override, skipped):
    paths = [ROOT / "config" / f"{name}.yaml" for name in files]
    values = study_file.read_study(paths, overrides=[override])
    kept = [{k: v for k, v in entry.items() if k != "reason"} for entry in values["skip"]]
    assert kept == skipped
    assert values == study_file.overridden(study_file.read_study(paths), [override])
    made = grid.expand(values)
    assert made.cells
    assert bool(made.branches) == ("[64]" not in override)


def test_an_axis_of_the_command_line_needs_no_parts_of_tasks_that_inherit_it():
    paths = [ROOT / "config" / f"{name}.yaml" for name in ("study", "tasks")]

    def made(*overrides):
        return grid.expand(study_file.read_study(paths, overrides=overrides))

    every = made().tasks
    for labels, rows in (
        ({"softmax", "linear"}, "[softmax, linear]"),
        (
            {"local.window16", "softmax.linear"},
            "[{local: {window: 16}}, {pattern: [softmax, linear]}]",
        ),
    ):
        left = made(f"axes.attention={rows}").tasks
        own = {run for run, cell in every.items() if cell.attention in labels}
        assert own <= left.keys()
        assert {left[run].task for run in left.keys() - own} <= {"copying_long"}  # has its own axis
    assert {cell.seed for cell in made("axes.seed=[1]").tasks.values()} == {1}


def test_a_skip_that_never_matched_is_a_mistake_with_its_place_all_the_same():
    skips = "skip: [{context: 16, reason: a}, {context: 32, reason: b}, {context: 99, reason: c}]\n"
    said = mistake(STUDY, "axes.context=[32]", "exceptions=[]", over=skips)
    assert "over.yaml:1:70: skip {context: 99} matches no cell; context allowed: 32" in said
    wrong = mistake(STUDY, "axes.context=[64]", "skip=[{context: 32, reason: a}]", "exceptions=[]")
    assert "skip {context: 32} matches no cell" in wrong


def test_a_study_that_snakemake_has_read_gets_the_values_too():
    config = {"set": ["gpus=2"], "gpus": 1, "axes": {"seed": [0]}}
    made = study_file.overridden(config, ["gpus=2", "axes.context=[64]"])
    assert made == {"gpus": 2, "axes": {"seed": [0], "context": [64]}}


def test_the_command_of_a_record_reads_the_same_study():
    text = study_file.command(
        "snakemake", [Path("a b.yaml"), Path("c.yaml")], {"gpus": 1}, ["axes.context=[64]"]
    )
    assert text == (
        "snakemake --configfile 'a b.yaml' c.yaml --config gpus=1 --set 'axes.context=[64]'"
    )


# The rules of docs/study.md, read by other code than that which checks them.


def stated() -> list[tuple[str, Decimal, Decimal, bool]]:
    """Patterns of keys with the least and the largest value, and whether these are excluded."""
    rows = []
    page = (ROOT / "docs" / "study.md").read_text()
    for line in page.partition("\n## Legal values\n")[2].splitlines():
        if line.startswith("| `"):
            keys, low, high, _ = (part.strip() for part in line.strip("|").split("|"))
            is_open = low.startswith(">")
            bounds = (Decimal(each.lstrip("<> ").replace(",", "")) for each in (low, high))
            low, high = bounds
            rows += [(key, low, high, is_open) for key in re.findall("`([^`]+)`", keys)]
    return rows


NO_NUMBERS = re.compile(
    r"study|datasets\.\w+\.(kind|train\.\d+|train|validation\.\d+|repository|revision|text|layout|on_bad|"
    r"mirror|pattern|shuffle|packages|validation)|tokenizers\.\w+\.(encoding|backend|file|sha256)|dataset|"
    r"tokenizer|.*\.(attention|size|datasets|reason)(\.\d+)?|position|documents|schedule(\.kind)?|"
    r"calibrate(\.size)?|speed\.\w+\.(\d\.)?(sizes|implementations|attentions|passes)\.\d+|"
    r"speed\.\w+\.\d+\.name|published|baseline|match|lr_law|node_scratch|budget"
)
NUMBER = re.compile(r"[-+]?(0|[1-9][0-9_]*)?(\.[0-9_]*)?([eE][-+]?[0-9]+)?")


class Independent(yaml.BaseLoader):
    """Reads every value as text, and refuses a key that is given twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"{keys} has a key twice"
        return super().construct_mapping(node, deep)


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [x for key, each in value.items() for x in leaves(each, f"{path}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [x for i, each in enumerate(value) for x in leaves(each, f"{path}.{i}")]
    return [(path, value)]


def illegal(data: bytes, rules: Any) -> list[str]:
    """What of an accepted study file breaks a stated rule."""
    values = yaml.load(data.decode("utf-8-sig"), Loader=Independent)
    found = []
    for path, text in leaves(values):
        rule = [each for each in rules if fnmatchcase(path, each[0])]
        if text in ("", "null", "~", "Null", "NULL") or NO_NUMBERS.fullmatch(path):
            continue
        if not rule:
            found.append(f"{path}: {text} has no rule")
        elif not (text and NUMBER.fullmatch(text)):
            found += [] if path.endswith(".lr") and text == "fitted" else [f"{path}: {text}"]
        else:
            number, (_, low, high, is_open) = Decimal(text.replace("_", "")), rule[0]
            if not low <= number <= high or (is_open and number in (low, high)):
                found.append(f"{path}: {text} is not from {low} to {high}")
    budget, unit = values["budget"].split()
    updates = Decimal(budget) / (int(values["update_tokens"]) if unit.startswith("tok") else 1)
    optimizer = values["optimizer"] or {}
    warm_up = Decimal(optimizer.get("warmup_updates") or 700)
    if unit[:3] in ("upd", "tok") and (updates < 1 or warm_up > updates):
        found.append(f"budget {values['budget']} and warm-up {warm_up}")
    first, second = optimizer.get("betas") or (0, 1)
    if Decimal(first) > Decimal(second):
        found.append("betas")
    return found


NUMBERS = (
    "0 -1 1 2 3 7 16 010 0o10 0x1F 0b1 1:30 1:30.5 1_000 1e3 1E-3 1.0e+3 1e309 -1e309 1e-300 "
    ".inf -.inf .nan nan inf Infinity 1e12 1000000000000 9999999999999999999999999 1.0e+15 1e30 "
    "0.5 1.5 -0.0 .5 5. 2026-01-01 2026-13-45"
)
TEXTS = (
    'true false yes no on off null ~ - ? : = << {} [] [[]] {a:1} !x *a &a | > % \'x\' "1" "1e3" '
    '\'ü\' \'😀\' "a\\0b" "\\ud800" "\\x07" {shard} {shard:09999999999d} {0..99999999999} all '
    "inherit fitted softmax linear c4 README.md published a/b ../.. /dev/null /etc/passwd a*.x"
)
PHRASES = (
    "{a: 1}",
    "[1, 1]",
    "[0.1, true]",
    "!!set {a}",
    "!!int x",
    "!!binary AAA=",
    "&a [*a]",
    "{all: 1}",
    "1 token",
    "1 updates",
    "9e99 tokens",
    "1e9 hours",
    "1e-9 seconds",
    "24 hours",
    "0 updates",
    "x" * 300,
    "9" * 5000,
    "[" * 100,
    "[" * 100 + "]" * 100,
    "{a: {b: {c: 1}}}",
    "[16, 16]",
    "a b",
    "a, b",
    "{x: y",
    "",
)
VALUES = (*NUMBERS.split(), *TEXTS.split(), *PHRASES)
SCALAR = re.compile(rb"(?<=: )[^\s,{}\[\]][^,{}\[\]\n]*|(?<=[\[ ])[\w./+-]+(?=[,\]])")


def mutated(chance: random.Random) -> bytes:
    """The study with one to three changes."""
    data = STUDY.encode()
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        lines = data.split(b"\n")
        i, j = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(12):
            case 0:
                lines.insert(j, lines[i])
            case 1:
                del lines[i]
            case 2:
                lines[i], lines[j] = lines[j], lines[i]
            case 3:
                lines[i] = b" " * chance.randrange(4) + lines[i].lstrip()
            case 4:
                lines = lines[: max(1, i)]
            case 5:
                k = chance.randrange(len(data) or 1)
                lines = (data[:k] + bytes([chance.randrange(256)]) + data[k + 1 :]).split(b"\n")
            case 6:
                lines[i] += chance.choice((b" x", b" #", b":", b"\t", b" ,", b"}", b"\r"))
            case _:
                found = list(SCALAR.finditer(data))
                if found:
                    at = chance.choice(found)
                    value = chance.choice(VALUES).encode()
                    lines = (data[: at.start()] + value + data[at.end() :]).split(b"\n")
        data = b"\n".join(lines)
    return data


@pytest.mark.parametrize("value", ["1e9", "true", "010", "[1]", "-1", "x"])
def test_the_stated_rules_are_read(value):
    assert illegal(changed("eps: 1.0e-8", f"eps: {value}").encode(), stated())
    assert not illegal(STUDY.encode(), stated())


def refusal(data: bytes) -> str:
    """Why a study file is refused; empty if it is accepted."""
    try:
        plan(data)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.ci
def test_2000_mutated_files_are_refused_in_a_sentence_or_legal_by_the_stated_rules():
    chance, rules = random.Random(22), stated()
    accepted, slowest = [], 0.0
    for _ in range(2000):
        data = mutated(chance)
        began = time.process_time()
        sentence = refusal(data)
        slowest = max(slowest, time.process_time() - began)
        if sentence:
            assert re.match(r"(study file )?study\.yaml(:\d+:\d+)?[: ]", sentence), sentence
            assert "\n" not in sentence
            assert len(sentence) < 1000
        else:
            accepted.append(data)
    assert len(accepted) > 100
    assert slowest < 1
    wrong = [(found, data.decode()) for data in accepted if (found := illegal(data, rules))]
    assert not wrong, wrong[0]


@pytest.fixture
def product(place):
    """The product in the folder of the study, for a Snakemake of its own."""
    for name in ("Snakefile", "workflow", "config", "profiles"):
        (place / name).symlink_to(ROOT / name)
    return place


def snakemake(*words: str) -> str:
    """What Snakemake says to the user."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.ci
@pytest.mark.parametrize(
    "text",
    [
        b"study: caf\xe9\n",
        b"study: x\naxes: &a [*a]\n",
        b"study: x\nstudy: y\n",
        b"study: x\ndataset: c4\ngpus: 010\n",
    ],
)
def test_snakemake_and_the_command_line_say_the_same_of_a_wrong_file(product, text):
    (product / "over.yaml").write_bytes(text)
    with pytest.raises(UserError) as caught:
        study_file.read_study([Path("config/study.yaml"), Path("over.yaml")])
    assert f"error: {caught.value}\n" in snakemake("-n", "--configfile", "over.yaml")


@pytest.mark.ci
def test_the_record_of_a_study_has_the_values_of_the_command_line_and_the_command(product):
    over, override = "config/my_attention.yaml", ["--set", "axes.context=[128]"]
    record = Path("results/my_attention/study.json")
    snakemake(str(record), "--configfile", over, *override, "--config", "epochs=2")
    found = json.loads(record.read_text())
    assert found["study"]["axes"]["context"] == [128]
    assert found["command"] == (
        f"snakemake --cores all --configfile {over} --config epochs=2 --set 'axes.context=[128]'"
    )
    words = shlex.split(found["command"])[3:]
    assert "has changed" not in snakemake("-n", *words)
    assert "--set axes.contxt=[1]: unknown key 'contxt' in axes; nearest is 'context'" in (
        snakemake("-n", "--configfile", over, "--set", "axes.contxt=[1]")
    )
