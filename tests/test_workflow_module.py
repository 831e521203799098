"""What the rules ask, without Snakemake: names, patterns, inputs, resources and options."""

import json
import os
import re
import shlex
from types import SimpleNamespace

import pytest
from conftest import ROOT, STUDY, refused
from product import OVERLAY, leave

from lmscaling import registry
from lmscaling.config import grid
from lmscaling.errors import UserError
from lmscaling.records import ledger
from lmscaling.workflow import study as of_study
from lmscaling.workflow.runs import BRANCHES, TRUNK, Runs
from lmscaling.workflow.text import Shards

PATTERNS = TRUNK, BRANCHES


@pytest.fixture(autouse=True)
def results(monkeypatch, tmp_path):
    """Those of the study in the working directory, with nothing done."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results" / "tiny"


@pytest.fixture
def study(values):
    """A study that has everything the rules can ask about."""
    parts = {part: OVERLAY[part] for part in ("calibrate", "branches", "evaluate", "speed")}
    return values | parts | {"budget": "60 minutes", "job_hours": 0.5, "gpus": 2}


of = SimpleNamespace  # the wildcards of a job


def runs(study, in_job=False):
    return Runs(grid.expand(study), in_job=in_job)


def name_in(names, part):
    (name,) = (name for name in names if part in name)
    return name


def test_the_record_says_what_repeats_the_study(tmp_path, monkeypatch):
    def command(*files):
        record = json.loads(of_study.record({"a": 1}, list(files)))
        assert record["study"] == {"a": 1}
        return record["command"].split()

    given = ["--configfile", "x.yaml", "y.yaml"]
    assert command(tmp_path / "x.yaml", tmp_path / "y.yaml")[3:] == given
    demo = ROOT / "config" / "demo.yaml"
    assert command(demo) == ["lmscaling", "demo"]
    monkeypatch.chdir(ROOT)
    first, *_, option, file = command(demo)
    assert (first, option, file) == ("snakemake", "--configfile", "config/demo.yaml")


def test_a_trunk_and_a_branch_have_patterns_that_exclude_each_other(study):
    jobs = runs(study)
    for name, (run, *_) in jobs.groups.items():
        matched = [bool(re.fullmatch(rf"{p}\.json", f"{name}.json")) for p in PATTERNS]
        assert matched == [not jobs.cells[run].branch, bool(jobs.cells[run].branch)]
    with refused(UserError, "softmax-s-ctx61-s0", "nearest"):
        jobs.group("softmax-s-ctx61-s0")
    branch = next(run for run, cell in jobs.cells.items() if cell.branch)
    with refused(UserError, branch, jobs.output(branch)):
        jobs.group(branch)


def test_a_training_job_asks_for_what_its_gpus_need_and_has_the_options_of_its_job(study):
    jobs = runs(study)
    run = name_in(jobs.trunks, "linear")
    cell = jobs.cells[run]
    assert shlex.split(jobs.words(of(run=run))) == [
        f"results/tiny/cells/{run}.json",
        "--manifest", f"results/tiny/tokens/{cell.data.folder}/manifest.json",
        "--scratch", "results/tiny/scratch",
        "--calibration", f"results/tiny/calibrations/{cell.calibration}.json",
    ]  # fmt: skip
    assert runs(study, in_job=True).words(of(run=run)).endswith(" --stop-after 1620")
    for gpus, *needed in ((0, 1, 4000, 30), (2, 8, 64_000, 30)):
        jobs = runs(study | {"gpus": gpus})
        job = of(run=name_in(jobs.trunks, "linear"))
        asked = [jobs.gpus(job), jobs.threads(job), jobs.mem_mb(job), jobs.minutes(job)]
        assert asked == [gpus, *needed]


def begun(results, run, kind: ledger.Kind = "checkpoint", seconds=1.0, **entry):
    scratch = results / "scratch" / run
    scratch.mkdir(parents=True)
    spent = {"train_seconds": seconds, "attempt_seconds": seconds}
    made = ledger.Entry(kind=kind, attempt=1, update=5, **spent, **entry)
    ledger.append(scratch / ledger.NAME, made)


def test_the_next_job_of_a_run_asks_for_what_is_left_of_its_budget(study, results):
    values = study | {"budget": "24 hours", "job_hours": 24}
    run, other = runs(values).trunks
    begun(results, run, seconds=23 * 3600.0)
    jobs = runs(values, in_job=True)
    assert jobs.minutes(of(run=run)) == 75 + 60
    assert jobs.minutes(of(run=other)) == 24 * 60
    assert jobs.words(of(run=run)).endswith(" --stop-after 7500")


def test_with_auto_a_run_waits_for_its_own_calibration_or_for_the_nearest(study, results):
    """And for its check, where the calibration has other kernels: heads are 8 or 16 wide."""
    axes = {**study["axes"], "size": ["s", "m", "w"], "context": [16, 32, 64]}
    sizes = study["sizes"] | {"w": {"n_layer": 2, "n_head": 1, "d_model": 16, "lr": 5e-3}}
    auto = {"branches": None, "evaluate": None, "calibrate": "auto", "axes": axes, "gpus": 1}
    auto = study | auto | {"sizes": sizes}
    planned = runs(auto)
    made = planned.calibrated
    assert {cell.attention for cell in made.values()} == {"softmax", "linear"}
    assert len(made) < len(planned.cells)
    waits = {run: planned.inputs(of(run=run)) for run in planned.cells}
    for run, (study_path, check, _, path) in waits.items():
        cell, name = planned.cells[run], path.split("/")[-1].removesuffix(".json")
        assert made[name].attention == cell.attention
        assert (name == cell.calibration) == (cell.calibration in made)
        of_other = f" --calibrated results/tiny/cells/{made[name].run}.json"
        of_other *= name != cell.calibration
        assert planned.words(of(run=run)).endswith(f"--calibration {path}{of_other}")
        assert study_path == "results/tiny/study.json"
        assert check == f"results/tiny/checks/{cell.check}.json"
    for name in list(made)[1:]:  # a job that starts later names the same
        leave(results / "calibrations" / f"{name}.json")
        late = runs(auto, in_job=True)
        assert {run: late.inputs(of(run=run)) for run in late.cells} == waits


def test_a_branch_waits_for_its_trunk_which_has_waited_for_the_rest(study, results):
    jobs = runs(study)
    (run, cell), *_ = ((r, c) for r, c in jobs.cells.items() if c.branch)
    name = jobs.names[run]
    trunk = f"results/tiny/runs/{cell.trunk}.json"
    assert jobs.branch_inputs(of(run=name)) == [trunk]
    leave(results / "runs" / f"{cell.trunk}.json")
    assert len(runs(study).branch_inputs(of(run=name))) == 5
    files = [f"results/tiny/cells/{each}.json" for each in jobs.groups[name]]
    assert shlex.split(jobs.words(of(run=name)))[: len(files) + 1] == [*files, "--manifest"]


def test_what_kernels_depend_on_has_a_check_of_its_own(study):
    def names(**changes):
        return set(grid.expand(study | changes).checked)

    wide = {"s": STUDY["sizes"]["s"] | {"d_model": 16}}
    tokenizers = {"bytes": {"encoding": "gpt2"}}
    for change in ({"position": "rope"}, {"sizes": wide}, {"tokenizers": tokenizers}):
        assert names().isdisjoint(names(**change)), change
    assert names() == names(budget="1 updates", update_tokens=128)
    assert names(gpus=0) == set() != names()
    axes = {**study["axes"], "seed": [0, 1], "context": [16, 32]}
    kinds = [name.rpartition("-")[0] for name in names(axes=axes)]  # one for all that are the same
    assert sorted(kinds) == ["linear-d8", "softmax-d8"]


def test_a_figure_depends_on_its_module_and_on_what_it_imports():
    def importers(helper):
        path = registry.PACKAGE / helper
        return {name for name in registry.figures() if path in registry.figure_sources(name)}

    everything = set(registry.figures())
    for name in everything:
        assert importers(f"figures/{name}.py") >= {name}
    assert importers("figures/surface.py") == {"surface"}
    for file in ("__init__.py", "shared/own_context.py"):  # which __init__.py imports
        assert importers(f"figures/{file}") == everything
    assert {"time_law"} <= importers("fits/power_law.py") < everything
    assert {"surface"} <= importers("fits/student.py") < everything
    curves = {name for name in everything if "learning_curves" in name}
    assert importers("figures/shared/curves.py") == curves


HUB = {
    "kind": "hub", "repository": "o/t", "revision": "1" * 40, "shards": 20, "documents": [9],
    "train": "t.{00000..01023}.gz", "validation": "v.00000.gz",
}  # fmt: skip


def of_text(study, **row):
    shards = Shards(grid.expand(study | {"datasets": {"lines": HUB | row}}))
    (tokens,) = shards.corpora
    return shards, tokens


def make(results, tokens, *numbers):
    """Complete shards, as far as planning looks: one of validation, and these of training."""
    for shard in ("validation-00000", *(f"train-{i:05d}" for i in numbers)):
        for end in ("bin", "json", "fingerprints"):
            leave(results / f"tokens/{tokens}/{shard}.{end}")


def test_a_chunk_of_training_reads_validation(study):
    shards, tokens = of_text(study)
    text, job = of(tokens=tokens), of(chunk=f"{tokens}/train-00016-00019")
    assert [tokens] == list(shards.corpora)
    assert shards.inputs(job).keys() == {"validation"}
    assert shards.inputs(of(chunk=f"{tokens}/validation-00000-00000")) == {}
    assert shards.minutes(job) == 165
    assert json.loads(shards.json(job))["source"]["shards"] == 20
    assert shards.n(text) == "20 1"
    cells = grid.expand(study | {"datasets": {"lines": HUB}}).cells
    for size, n_chunks in ((1, 20), (7, 3), (16, 2), (99, 1)):  # no hash depends on it
        shards, same = of_text(study, shards_per_job=size)
        assert (len(shards.before(text)), same) == (n_chunks + 1, tokens)
        row = HUB | {"shards_per_job": size}
        assert grid.expand(study | {"datasets": {"lines": row}}).cells == cells


def test_a_mark_goes_with_its_shard_and_a_manifest_is_asked_for_once(study, results):
    shards, tokens = of_text(study)
    make(results, tokens, *range(17), 18, 19)
    folder = results / "tokens" / tokens
    marks = [folder / f"train-{name}.tokenized" for name in ("00000-00015", "00016-00019")]
    for mark in marks:
        leave(mark)
    manifest = json.dumps({"train": [{}] * 20, "validation": [{}]})
    leave(folder / "manifest.json", manifest)
    os.utime(folder / "manifest.json", (1e9, 1e9))
    shards, _ = of_text(study)
    shards.ask()
    assert [mark.exists() for mark in marks] == [True, False]
    asked = folder / "shards.json"
    assert {"train": 20, "validation": 1}.items() <= json.loads(asked.read_text()).items()
    before = asked.stat().st_mtime_ns
    shards.ask()
    assert asked.stat().st_mtime_ns == before
    found = [f"results/tiny/tokens/{tokens}/{name}" for name in (
        "shards.json", *(mark.name for mark in marks), "validation-00000-00000.tokenized"
    )]  # fmt: skip
    assert shards.before(of(tokens=tokens)) == found
    make(results, tokens, 17)  # a job that comes late needs nothing
    late, _ = of_text(study)
    assert late.inputs(of(chunk=f"{tokens}/train-00016-00019")) == {}
    for n, is_asked in ((20, False), (19, True), (21, True)):  # shards of the manifest
        asked.unlink(missing_ok=True)
        manifest = json.dumps({"train": [{}] * n, "validation": [{}]})
        leave(folder / "manifest.json", manifest)
        of_text(study)[0].ask()
        assert asked.exists() == is_asked


def of_tokenizer(study, row):
    tables = {"tokenizers": {"own": row}, "datasets": {"lines": HUB}}
    return Shards(grid.expand(study | tables | {"tokenizer": "own"}))


def test_each_kind_of_tokenizer_has_a_file(study):
    shards = of_tokenizer(study, {"encoding": "gpt2"})
    assert (shards.vocabulary, shards.vocabulary_words(None)) == ("gpt2.tiktoken", "")
    assert of_tokenizer(study, {"encoding": "bytes"}).vocabulary == ""
    row = {"file": "my tokenizer.json", "sha256": "0" * 64, "vocab_size": 300}
    shards = of_tokenizer(study, row)
    assert re.fullmatch(r"own-\w{8}\.json", shards.vocabulary)
    words = shlex.split(shards.vocabulary_words(None))
    assert (words[:3], json.loads(words[3])) == (["--file", "my tokenizer.json", "--row"], row)
    moved = of_tokenizer(study, row | {"file": "elsewhere.json"})
    assert (moved.vocabulary, [*moved.corpora]) == (shards.vocabulary, [*shards.corpora])
    (text,) = shards.corpora
    assert text not in of_tokenizer(study, row | {"sha256": "1" * 64}).corpora
    job = of(chunk=f"{text}/train-00000-00015")
    assert shards.inputs(job)["vocabulary"] == f"results/tiny/vocabulary/{shards.vocabulary}"
