"""A study file that cannot be meant is refused in one sentence that begins with its place."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from conftest import refused

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
    train: "t-{00000..00099}.json.gz"
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
    - sizes: [s]
      contexts: [16, 64]
      implementations: [softmax, linear/chunked]
  time_layer:
    - {name: one, n_head: 2, d_head: 4, batch: 1, passes: [forward], contexts: [16], implementations: [linear/chunked], repeats: 5}
published: false
protocol: {all: 1}
"""  # noqa: E501


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
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
    return new_study.plan(study_file.read_study(paths, overrides=overrides))


def changed(old: str, new: str) -> str:
    assert STUDY.count(old) == 1, old
    return STUDY.replace(old, new)


NO_SUM = "0" * 64
# What is changed in the study, into what; the place, and the value that the sentence names.
MISTAKES = [
    ("study: small", "study: README.md", "2:8", "README.md"),
    ("study: small", "study: measured", "2:8", "measured"),
    ("study: small", "study: a b", "2:8", "'a b'", "'a_b'"),
    ("study: small", "study: ..", "2:8", "'..'"),
    ("study: small", f"study: {'x' * 300}", "2:8", 300, 64),
    ("kind: jsonl", "kind: jsonlines", "4:3", "datasets.lines.kind", "jsonlines", "'jsonl'"),
    ("kind: jsonl", "kind: null", "4:3", "datasets.lines.kind", "None", "stdlib"),
    ("    train: [a", "    trian: []\n    train: [a", "6:5", "datasets.lines", "trian", "'train'"),
    ("[a.jsonl]", "[b.jsonl]", "6:12", "datasets.lines.train", "b.jsonl"),
    ("[v.jsonl]", "[v*.gz]", "4:3", "v*.gz"),
    ("    revision: abc\n", "", "10:3", "datasets.web", "revision", "'a/b'"),
    ('holdout: 0.02', 'validation: "{v}"', "10:3", "datasets.web", "{v}"),
    ("t-{00000..00099}", "t-{shard:0999999999d}", "10:3", "shard:0999999999d", "{000..013}"),
    ("encoding: bytes", "encoding: byte", "19:21", "tokenizers.bytes.encoding", "'byte'"),
    ("vocab_size: 257", "vocab_size: 256", "19:3", "tokenizers.bytes", 257, 256),
    ("257}", "257, backend: tokenizers}", "19:45", "'backend'", "encoding"),
    ("257}", "257, file: a.json}", "19:3", "tokenizers.bytes", "encoding", "file"),
    ("257}", f"257, sha256: '{NO_SUM}'}}", "19:3", "tokenizers.bytes", NO_SUM),
    ("257}", "257}\n  x: {vocab_size: 9}", "20:3", "tokenizers.x", "file"),
    ("257}", "257}\n  x: {file: a b.json}", "20:3", "tokenizers.x", "--file 'a b.json'"),
    ("257}", f"257}}\n  x: {{file: a, sha256: '{NO_SUM}'}}", "20:3", "'a'", "vocab_size"),
    ("257}", "257}\n  x: {file: a, sha256: '0', vocab_size: 9}", "20:3", "sha256", "'0'"),
    ("  s: {n_l", "  s: {lr: 1, lr: 2, n_l", "21:14", "sizes.s.lr"),
    ("  s: {", "  s: &s {x: *s, ", "21:13", "*s", "&s"),
    ("tokenizers:\n  bytes: {encoding: bytes, vocab_size: 257}", "tokenizers: 3", "18:13", 3),
    ("lr: 1.0e-2", "lr: .inf", "21:46", ".inf"),
    ("lr: 1.0e-2", "lr: nan", "21:46", "sizes.s.lr", "'nan'"),
    ("lr: 1.0e-2", "lr: 1e309", "21:46", "sizes.s.lr", "'1e309'", "1e-12", 10),
    ("lr: 1.0e-2", "lr: true", "21:46", "sizes.s.lr", "true"),
    ("n_head: 2, d_model: 8", "n_head: 3, d_model: 8", "21:3", "sizes.s", "8", "3", "6", "9"),
    ("dataset: lines", "dataset: line", "23:10", "dataset", "'line'", "'lines'"),
    ("size: [s, m]", "size: [M]", "27:", "axes.size", "'M'", "'m'"),
    ("[softmax, linear]\n  size", "[sofmax]\n  size", "26:", "axes.attention", "'softmax'"),
    ("context: [16, 32]", "context: [16, 24]", "28:17", "axes.context", "24", "16"),
    ("context: [16, 32]", "context: [16, 63]", "28:17", "axes.context", "63", "64"),
    ("context: [16, 32]", "context: [16, 16]", "28:", "axes.context", "16"),
    ("seed: [0]", "seed: [true]", "29:10", "axes.seed.0", "true"),
    ("seed: [0]", "seed: [010]", "29:10", "010", "8"),
    ("seed: [0]", "seed: [1:30]", "29:10", "1:30", "90"),
    ("seed: [0]", "seed: [1e23]", "29:10", "axes.seed.0", "'1e23'"),
    ("seed: [0]", f"seed: {list(range(1300))}", "25:1", "10,400", "10,000"),
    ("{context: 32, size", "{context: 48, size", "32:15", "{size: m, context: 48}", "16, 32"),
    ("{context: 32, size: m, reason: too long}", "{reason: x}", "32:", "skip.0"),
    ("{context: 32, size: m, reason: too long}", "{context: [16, 32], reason: x}", "skip"),
    ("reason: too long", "reason: 2026-01-01", "32:36", "2026-01-01"),
    ("reason: too long", 'reason: "a\\0b"', "32:36", "'\\x00'"),
    ("reason: too long", "reason: !!set {a}", "32:36", "tag:yaml.org,2002:set"),
    ("position: rope", "position: rotary", "35:11", "position", "'rotary'", "rope"),
    ("budget: 200 updates", "budget: 1 token", "37:9", "1 tokens", "128"),
    ("budget: 200 updates", "budget: 24 h", "37:9", "budget", "'24 h'"),
    ("budget: 200 updates", "budget: 9e99 tokens", "37:9", "'9e99 tokens'", "1e+15"),
    ("budget: 200 updates", "budget: 0.0000001 hours", "37:9", "2.77778e-07", "88888.9"),
    ("gpus: 0", "gpus: 0\ngpus: 1", "39:1", "gpus", 38),
    ("gpus: 0", "gpus: 3", "28:", "axes.context 16", "gpus: 2"),
    ("gpus: 0", "1: 0", "38:1", 1),
    ("gpus: 0", "gpuss: 0", "38:1", "'gpuss'", "'gpus'"),
    ("gpus: 0", "gpus 0\nx: 1", "39:1", "YAML"),
    ("gpus: 0\n", "", "1:1", "gpus"),
    ("[0.9, 0.95]", "[0.95, 0.9]", "41:1", "optimizer", "[0.95, 0.9]"),
    ("weight_decay: 0.1", "weight_decay: false", "44:17", "optimizer.weight_decay", "false"),
    ("updates: 20", "updates: 300", "46:19", "optimizer.warmup_updates", 300, 200),
    ("schedule: constant", "schedule: cosin", "47:", "schedule.kind", "'cosin'", "'cosine'"),
    ("schedule: constant", "schedule: {kind: cosine, final: 0}", "47:", "'final'", "'final_share'"),
    ("schedule: constant", "schedule: {kind: cosine, final_share: 2}", "47:", "final_share", 2),
    ("schedule: constant", "schedule: {final_share: 0.2}", "47:", "schedule.kind"),
    ("schedule: constant", "schedule: {kind: warmup_stable_decay, decay_share: 0}", "47:", "0"),
    ("schedule: constant", "schedule: {kind: warmup_stable_decay, decay_share: 1.5}", "47:", "1.5"),
    ("schedule: constant", "schedule: cosine", "cosine", "branches"),
    ("  tokens: 128", "  tokens: 12800000", "49:11", "validation.tokens", "datasets.lines"),
    ("every_tokens: 1280", "every_tokens: 100", "50:17", "validation.every_tokens", "100", "128"),
    ("{size: s}", "autto", "51:", "calibrate", "'autto'", "'auto'"),
    ("[0.25, 1.0]", "[0.001, 1.0]", "52:21", "branches.shares", "0.001", "200", "0.005"),
    ("sizes: [s]", "sizes: [xl]", "59:", "speed.time_step.0.sizes", "'xl'"),
    ("[softmax, linear/chunked]", "[linear/chunkd]", "61:", "kernels/linear/", "'chunked'"),
    ("[softmax, linear/chunked]", "[sotfmax]", "61:", "attention/", "'softmax'"),
    ("linear/chunked]\n", "linear/chunked]\n      chunks: [48]\n", "62:", "48", "32"),
    ("  time_step:\n", "  time_decode: {batches: [1], attentions: [linear]}\n  time_stp:\n",
     "59:3", "'time_stp'", "'time_step'"),
    ("published: false", "published: 1", "64:12", "published"),
    ("protocol: {all: 1}", "protocol: {liner: 2}", "65:19", "protocol", "'liner'", "'linear'"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "named"), [(a, b, named) for a, b, *named in MISTAKES])
def test_a_mistake_is_one_sentence_with_its_place_and_its_value(old, new, named):
    with refused(UserError, "study.yaml:", *named) as caught:
        plan(changed(old, new))
    assert "\n" not in str(caught.value)


LAUGHS = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefgh"))
"""Each line means ten times the line before it."""


NO_STUDIES = [
    (STUDY.encode().replace(b"too long", b"trop co\xfbteux"), "32:43", "0xfb"),
    (STUDY.encode("utf-16"), "1:1", "0xff"),
    ("a: " + "[" * 60 + "]" * 60, "1:53", 50),
    ("a: &a [1, 1]\n" + LAUGHS, "100,000"),
    ("a: *b\n", "1:4", "*b", "&b"),
    ("a: 1\n---\nb: 2\n", "2:1"),
    ("", "null"),
    ("- 1", "study.yaml", "[1]"),
    ("x" * 1_000_001, "1,000,001", "1,000,000"),
    ("a: 1\n<<: 2\n", "2:5", "<<", 2),
]


def test_a_file_that_is_no_study_says_why():
    for text, *named in NO_STUDIES:
        with refused(UserError, "study.yaml", *named):
            plan(text)


def test_aliases_and_merged_mappings_mean_what_yaml_says():
    small = changed("  s: {n_layer: 2, n_head: 2, d_model: 8, lr: 1.0e-2}",
                    "  s: &s {n_layer: 2, n_head: 2, d_model: 8, lr: 1.0e-2}\n"
                    "  t: {<<: *s, lr: 2.0e-2}\n  u: *s")  # fmt: skip
    Path("x.yaml").write_text(small)
    made = study_file.read_study([Path("x.yaml")])
    assert json.loads(json.dumps(made)) == yaml.safe_load(small)
    made["sizes"]["u"]["lr"] = 1
    assert made["sizes"]["s"]["lr"] == 1.0e-2


def test_a_folder_and_a_missing_file_are_named_with_what_is_near():
    Path("folder").mkdir()
    Path("study.yaml").touch()
    for name, near in (("folder", "folder"), ("stdy.yaml", "study.yaml")):
        with refused(UserError, name, near):
            study_file.read_study([Path(name)])


OVER = [
    ("axes:\n  context: [16, 24]\n", "over.yaml:2:17", "axes.context", "24"),
    ("update_tokens: 80\n", "study.yaml:28:17", "axes.context", "32"),
    ("sizes:\n  s: {n_head: 3}\n", "over.yaml:2:3", "sizes.s", "3"),
    ("sizes:\n  l: {n_head: 3}\n", "over.yaml:2:3", "sizes.l.n_layer"),
    ("axes:\n  sed: [1]\n", "over.yaml:2:3", "'sed'"),
    ("axes:\n  size: [m]\n", "study.yaml:51:19", "calibrate", "size s", "calibrate=null"),
    ("study: own\ndataset: lines\nbranches: {shares: [2]}\n", "over.yaml:3:21", "shares.0", "2"),
]


def test_a_mistake_is_in_the_file_that_holds_the_value():
    for over, *named in OVER:
        with refused(UserError, *named):
            plan(STUDY, over=over)


def test_a_study_without_a_mistake_is_planned_and_needs_its_files_until_they_are_tokenized():
    made = plan(STUDY)
    assert (len(made.cells), len(plan(STUDY, over="skip: []\n").cells)) == (6, 8)
    write_json(Path(made.results) / "tokens" / made.tokens / "manifest.json", {})
    Path("a.jsonl").unlink()
    assert plan(b"\xef\xbb\xbf" + STUDY.encode()).cells == made.cells  # with a byte order mark
