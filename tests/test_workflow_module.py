"""What the rules ask, without Snakemake: names, patterns, inputs, resources and options."""

import json
import math
import os
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT, STUDY
from hypothesis import given
from hypothesis import strategies as st
from product import OVERLAY, leave
from slurm_cluster import program

from lmscaling import registry, workflow
from lmscaling.config import grid
from lmscaling.records import ledger
from lmscaling.workflow import runs as runs_module


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
    return workflow.Runs(grid.expand(study), in_job, lambda: False)


def name_in(names, part):
    (name,) = (name for name in names if part in name)
    return name


@given(st.lists(st.text("ab.c|", min_size=1, max_size=3), max_size=4), st.text("ab.c|", max_size=3))
def test_any_of_matches_the_names_and_nothing_else(names, other):
    assert bool(re.fullmatch(workflow.any_of(names), other)) == (other in names)


def test_the_record_says_what_repeats_the_study(tmp_path, monkeypatch):
    def command(*files):
        record = json.loads(workflow.study_record({"a": 1}, list(files)))
        assert record["study"] == {"a": 1}
        return record["command"].split()

    given = ["--configfile", "x.yaml", "y.yaml"]
    assert command(tmp_path / "x.yaml", tmp_path / "y.yaml")[3:] == given
    demo = ROOT / "config" / "demo.yaml"
    assert command(demo) == ["lmscaling", "demo"]
    monkeypatch.chdir(ROOT)
    first, *_, option, file = command(demo)
    assert (first, option, file) == ("snakemake", "--configfile", "config/demo.yaml")


@given(
    hashes=st.lists(st.sampled_from(["1234567a", "1234567b", "00000000"]), min_size=1, max_size=9),
    chosen=st.data(),
    end=st.sampled_from(["/run.json", ".json"]),
)
def test_a_short_pattern_matches_exactly_what_is_pending(hashes, chosen, end):
    """Few names are excluded, many are left out; some have the same hash."""
    names = [f"a.b-ctx{i}-{text}" for i, text in enumerate(hashes)]
    pending = [name for name in names if chosen.draw(st.booleans())]
    pattern = runs_module.some_of("[^/]+", pending, names)
    assert [name for name in names if re.fullmatch(f"({pattern}){end}", name + end)] == pending


def test_one_job_trains_the_missing_branches_of_a_trunk_and_is_named_after_the_last(study):
    shares = [0.125, 0.25, 0.5, 1.0]
    study = study | {"branches": {"attention": "linear", "shares": shares}}
    jobs = runs(study)
    names = {share: name_in(jobs.branches, f"-b{share:g}-") for share in shares}
    records = {share: f"results/tiny/runs/{name}/run.json" for share, name in names.items()}
    (trunk,) = {jobs.branches[name].trunk for name in names.values()}

    def trained():
        return [cell.branch for cell in runs(study).group(runs(study).representatives[0])]

    assert trained() == shares
    assert [names[share] in jobs.recorded for share in (0.5, 1.0)] == [False, True]
    assert jobs.represented(records[0.25]) == records[1.0]
    # 0.2 x (1/8 + 1/4 + 1/2 + 1) of an hour with the margin, and an hour.
    assert runs(study | {"job_hours": 24}).minutes(of(run=names[1.0])) == math.ceil(28.125 + 60)
    for share in (1.0, 0.25):
        leave(Path(records[share]))
    assert trained() == [0.125, 0.5]
    represented = {share: runs(study).represented(records[share]) for share in (0.125, 0.25)}
    assert represented == {0.125: records[0.5], 0.25: records[0.25]}
    assert {names[1.0], names[0.5]} <= set(runs(study).recorded)
    late = runs(study, in_job=True).cell_files(of(run=names[1.0]))
    assert late == [f"results/tiny/cells/{name}.json" for name in names.values()]
    assert runs(study).trunk(of(run=names[0.5])) == f"results/tiny/runs/{trunk}/run.json"


def test_a_training_job_asks_for_what_its_gpus_need_and_has_the_options_of_its_job(study):
    jobs, none = runs(study), of(calibration=[])
    run = of(run=name_in(jobs.trunks, "linear"))
    assert jobs.options(run, none) == ""
    assert jobs.options(run, of(calibration="c.json")) == "--calibration c.json"
    assert runs(study, in_job=True).options(run, none) == "--stop-after 1620"
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


def test_a_job_waits_for_earlier_ones_and_avoids_bad_nodes(study, results, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def answers(name, text=""):
        program(tmp_path, name, f"printf '%s' '{text}'")

    for name in ("squeue", "scontrol", "sinfo"):
        answers(name)
    results.mkdir(parents=True)
    run, other = runs(study).trunks
    signal = "--signal=TERM@180"

    def asked(site=""):
        """The options of both runs on Slurm; without it they have no others."""
        assert runs(study).sbatch_options(of(run=run)) == signal
        jobs = workflow.Runs(grid.expand(study), False, lambda: True, site)
        return [jobs.sbatch_options(of(run=name)) for name in (run, other)]

    answers("squeue", f"7|anna|{tmp_path}|rule_train_wildcards_{run}\n")
    assert asked() == [f"{signal} --dependency=afterany:7", signal]
    answers("squeue")
    answers("sinfo", "node7\nnode8\n")
    begun(results, run, "failed", fault="device", reason="ECC", host="node7")
    assert asked() == [f"{signal} --exclude=node7", signal]
    site = "--mail-type=END --exclude=node9"
    assert asked(site) == [f"{site},node7 {signal}", f"{site} {signal}"]
    answers("sinfo", "node7\n")  # a cluster without other nodes
    assert asked() == [signal, signal]


def test_the_next_job_of_a_run_asks_for_what_is_left_of_its_budget(study, results):
    values = study | {"budget": "24 hours", "job_hours": 24}
    run, other = runs(values).trunks
    assert runs(values).further_jobs() == {"train": 1, "branch": 0}
    assert runs(study).further_jobs() == {"train": 4, "branch": 0}
    assert runs(study | {"branches": None, "job_hours": 24}).further_jobs() == {"train": 0}
    begun(results, run, seconds=23 * 3600.0)
    jobs = runs(values, in_job=True)
    assert jobs.minutes(of(run=run)) == 75 + 60
    assert jobs.minutes(of(run=other)) == 24 * 60
    assert jobs.options(of(run=run), of(calibration=[])) == "--stop-after 7500"
    leave(results / "runs" / other / "run.json")
    assert runs(values).further_jobs() == {"train": 0, "branch": 0}


def test_with_auto_a_run_waits_for_its_own_calibration_or_for_the_nearest(study, results):
    """And for its check, where the calibration has other kernels: heads are 8 or 16 wide."""
    axes = {**study["axes"], "size": ["s", "m", "w"], "context": [16, 32, 64]}
    sizes = study["sizes"] | {"w": {"n_layer": 2, "n_head": 1, "d_model": 16, "lr": 5e-3}}
    auto = {"branches": None, "evaluate": None, "calibrate": "auto", "axes": axes, "gpus": 1}
    auto = study | auto | {"sizes": sizes}
    planned = runs(auto)
    made = workflow.Calibrations(planned).cells
    assert {cell.attention for cell in made.values()} == {"softmax", "linear"}
    assert len(made) < len(planned.cells)
    waits = {run: str(planned.calibration(of(run=run))) for run in planned.cells}
    others = set()
    for run, path in waits.items():
        cell, name = planned.cells[run], path.split("/")[-1].removesuffix(".json")
        assert made[name].attention == cell.attention
        assert (name == cell.calibration) == (cell.calibration in made)
        options = planned.options(of(run=run), of(calibration=path))
        of_other = f" --calibrated results/tiny/cells/{made[name].run}.json"
        of_other *= name != cell.calibration
        assert options == f"--calibration {path}{of_other}"
        is_other = made[name].check != cell.check
        check = ["results/tiny/study.json", f"results/tiny/checks/{cell.check}.json"]
        assert planned.before(of(run=run)) == check * is_other
        others.add(is_other)
    assert others == {False, True}
    for name in list(made)[1:]:  # a job that starts later names the same
        leave(results / "calibrations" / f"{name}.json")
        late = runs(auto, in_job=True)
        assert {run: str(late.calibration(of(run=run))) for run in late.cells} == waits


def test_what_kernels_depend_on_has_a_check_of_its_own(study):
    def names(**changes):
        return set(workflow.Checks(grid.expand(study | changes)).cells)

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
    assert {"surface"} <= importers("fits/newton.py") < everything
    curves = {name for name in everything if "learning_curves" in name}
    assert importers("figures/shared/curves.py") == curves


HUB = {
    "kind": "hub", "repository": "o/t", "revision": "1" * 40, "shards": 20, "documents": [9],
    "train": "t.{00000..01023}.gz", "validation": "v.00000.gz",
}  # fmt: skip


def of_text(study, **row):
    shards = workflow.Shards(grid.expand(study | {"datasets": {"lines": HUB | row}}))
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
    assert tokens == shards.trained
    assert shards.inputs(job).keys() == {"validation"}
    assert shards.inputs(of(chunk=f"{tokens}/validation-00000-00000")) == {}
    assert shards.minutes(job) == 165
    assert json.loads(shards.json(job))["source"]["shards"] == 20
    assert (shards.n_train(text), shards.n_validation(text)) == (20, 1)
    cells = grid.expand(study | {"datasets": {"lines": HUB}}).cells
    for size, n_chunks in ((1, 20), (7, 3), (16, 2), (99, 1)):  # no hash depends on it
        shards, same = of_text(study, shards_per_job=size)
        assert (len(shards.marks(text)), same) == (n_chunks + 1, tokens)
        row = HUB | {"shards_per_job": size}
        assert grid.expand(study | {"datasets": {"lines": row}}).cells == cells
    assert len(of_text(study, shards=1024)[0].pattern(in_job=False)) < 2_000


def test_a_chunk_matches_as_long_as_one_of_its_shards_is_missing(study, results):
    shards, tokens = of_text(study)
    make(results, tokens, *range(17), 18, 19)
    leave(results / f"tokens/{tokens}/train-00000-00015.tokenized")
    shards, _ = of_text(study)
    assert shards.pattern(in_job=False) == rf"{re.escape(tokens)}/(?:train-00016-00019)"
    assert shards.outdated == [tokens]
    again = ["manifest.json", "train-00016-00019.tokenized"]
    assert [path.rpartition("/")[2] for path in shards.due(of(tokens=tokens))] == again
    # The list of marks stays, for Snakemake would make the manifest anew after a change.
    assert len(shards.marks(of(tokens=tokens))) == 2
    make(results, tokens, 17)  # a job that comes late finds its rule and needs nothing
    shards, _ = of_text(study)
    late = f"{tokens}/train-00000-00015"
    matched = [bool(re.fullmatch(shards.pattern(in_job=job), late)) for job in (False, True)]
    assert (matched, shards.inputs(of(chunk=late))) == ([False, True], {})
    for n, outdated in ((20, []), (19, [tokens]), (21, [tokens])):  # shards of the manifest
        manifest = json.dumps({"train": [{}] * n, "validation": [{}]})
        leave(results / f"tokens/{tokens}/manifest.json", manifest)
        made, _ = of_text(study)
        assert (made.outdated, len(made.due(of(tokens=tokens)))) == (outdated, len(outdated))


def of_tokenizer(study, row):
    tables = {"tokenizers": {"own": row}, "datasets": {"lines": HUB}}
    return workflow.Shards(grid.expand(study | tables | {"tokenizer": "own"}))


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
    assert (moved.vocabulary, moved.trained) == (shards.vocabulary, shards.trained)
    assert of_tokenizer(study, row | {"sha256": "1" * 64}).trained != shards.trained
    job = of(chunk=f"{shards.trained}/train-00000-00015")
    assert shards.inputs(job)["vocabulary"] == f"results/tiny/vocabulary/{shards.vocabulary}"
