"""What the rules ask, without Snakemake: names, patterns, inputs, resources and options."""

import json
import math
import os
import re
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, STUDY
from hypothesis import given
from hypothesis import strategies as st
from product import OVERLAY
from slurm_cluster import program

from lmscaling import registry, workflow
from lmscaling.config import grid
from lmscaling.records import ledger
from lmscaling.workflow import runs as runs_module


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """The working directory, with nothing done."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def study(values):
    """A study that has everything the rules can ask about."""
    kept = ("calibrate", "branches", "evaluate", "speed")
    parts = {part: OVERLAY[part] for part in kept}
    return values | parts | {"budget": "60 minutes", "job_hours": 0.5, "gpus": 2}


def runs(study, in_job=False):
    return workflow.Runs(grid.expand(study), in_job, lambda: False)


def of(**names):
    """The wildcards of a job."""
    return SimpleNamespace(**names)


def name_in(names, part):
    (name,) = (name for name in names if part in name)
    return name


def leave(folder, path, text="{}"):
    """An output that exists."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


@given(st.lists(st.text("ab.c|", min_size=1, max_size=3), max_size=4), st.text("ab.c|", max_size=3))
def test_any_of_matches_the_names_and_nothing_else(names, other):
    assert bool(re.fullmatch(workflow.any_of(names), other)) == (other in names)


def test_the_record_says_what_repeats_the_study(folder, monkeypatch):
    def command(*files):
        record = json.loads(workflow.study_record({"a": 1}, list(files)))
        assert record["study"] == {"a": 1}
        return record["command"].split()

    given = ["--configfile", "x.yaml", "y.yaml"]
    assert command(folder / "x.yaml", folder / "y.yaml")[3:] == given
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
    """Few names are excluded, many are left out; some have the same hash; calibrations have no
    folder."""
    names = [f"a.b-ctx{i}-{text}" for i, text in enumerate(hashes)]
    pending = [name for name in names if chosen.draw(st.booleans())]
    pattern = runs_module.some_of("[^/]+", pending, names)
    assert [name for name in names if re.fullmatch(f"({pattern}){end}", name + end)] == pending


def test_one_job_trains_the_missing_branches_of_a_trunk_and_is_named_after_the_last(study, folder):
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
    leave(folder, records[1.0])
    leave(folder, records[0.25])
    assert trained() == [0.125, 0.5]
    represented = {share: runs(study).represented(records[share]) for share in (0.125, 0.25)}
    assert represented == {0.125: records[0.5], 0.25: records[0.25]}
    assert {names[1.0], names[0.5]} <= set(runs(study).recorded)
    late = runs(study, in_job=True).cell_files(of(run=names[1.0]))
    assert late == [f"results/tiny/cells/{name}.json" for name in names.values()]
    assert runs(study).trunk(of(run=names[0.5])) == f"results/tiny/runs/{trunk}/run.json"


def test_a_training_job_asks_for_what_its_gpus_need_and_has_the_options_of_its_job(study):
    run = of(run=name_in(runs(study).trunks, "linear"))
    for gpus, *needed in ((0, 1, 4000), (2, 8, 64_000)):
        jobs = runs(study | {"gpus": gpus})
        job = of(run=name_in(jobs.trunks, "linear"))
        assert [jobs.gpus(job), jobs.threads(job), jobs.mem_mb(job)] == [gpus, *needed]
        assert jobs.minutes(job) == 30
    assert runs(study).options(run, of(calibration=[])) == ""
    assert runs(study).options(run, of(calibration="c.json")) == "--calibration c.json"
    assert runs(study, in_job=True).options(run, of(calibration=[])) == "--stop-after 1620"
    # The node expands the variable, not the shell of whoever submits.
    copying = runs(study | {"node_scratch": "$SLURM_TMPDIR"})
    assert copying.options(run, of(calibration=[])) == "--node-scratch '$SLURM_TMPDIR'"
    assert copying.cells == runs(study).cells


@pytest.fixture
def answers(tmp_path_factory, monkeypatch):
    """A function that gives a program of Slurm its answer; they say nothing before."""
    programs = tmp_path_factory.mktemp("bin")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def give(name, text=""):
        program(programs, name, f"printf '%s' '{text}'")

    for name in ("squeue", "scontrol", "sinfo"):
        give(name)
    return give


def begun(folder, run, **entry: Any):
    """A ledger with one entry."""
    values = {"kind": "checkpoint", "attempt": 1, "update": 5, "train_seconds": 1.0} | entry
    made = ledger.Entry(attempt_seconds=1.0, **values)
    path = folder / "results" / "tiny" / "scratch" / run / ledger.NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(ledger.line(made))


def test_a_job_on_slurm_waits_for_the_earlier_jobs_of_its_run_and_avoids_nodes_that_failed_it(
    study, folder, answers
):
    (folder / "results" / "tiny").mkdir(parents=True)
    run, other = runs(study).trunks
    signal = "--signal=TERM@180"

    def asked(site=""):
        """The options of both runs on Slurm; without it they have no others."""
        assert runs(study).sbatch_options(of(run=run)) == signal
        jobs = workflow.Runs(grid.expand(study), False, lambda: True, site)
        return [jobs.sbatch_options(of(run=name)) for name in (run, other)]

    answers("squeue", f"7|anna|{folder}|rule_train_wildcards_{run}\n")
    assert asked() == [f"{signal} --dependency=afterany:7", signal]
    answers("squeue")
    answers("sinfo", "node7\nnode8\n")
    begun(folder, run, kind="failed", fault="device", reason="ECC", host="node7")
    assert asked() == [f"{signal} --exclude=node7", signal]
    site = "--mail-type=END --exclude=node9"
    assert asked(site) == [f"{site},node7 {signal}", f"{site} {signal}"]
    answers("sinfo", "node7\n")  # a cluster without other nodes
    assert asked() == [signal, signal]


def test_the_next_job_of_a_run_asks_for_what_is_left_of_its_budget(study, folder):
    values = study | {"budget": "24 hours", "job_hours": 24}
    run, other = runs(values).trunks
    short = study | {"branches": None, "job_hours": 24}
    for made, further in ((values, {"train": 1, "branch": 0}), (study, {"train": 4, "branch": 0}),
                          (short, {"train": 0})):  # fmt: skip
        assert runs(made).further_jobs() == further
    begun(folder, run, train_seconds=23 * 3600.0)
    jobs = runs(values, in_job=True)
    assert jobs.minutes(of(run=run)) == 75 + 60
    assert jobs.minutes(of(run=other)) == 24 * 60
    assert jobs.options(of(run=run), of(calibration=[])) == "--stop-after 7500"
    leave(folder, f"results/tiny/runs/{other}/run.json")
    assert runs(values).further_jobs() == {"train": 0, "branch": 0}


def test_with_auto_a_run_waits_for_its_own_calibration_or_for_the_nearest(study, folder):
    """And for its check, where the calibration has other kernels: heads are 8 or 16 wide."""
    axes = {**study["axes"], "size": ["s", "m", "w"], "context": [16, 32, 64]}
    sizes = study["sizes"] | {"w": {"n_layer": 2, "n_head": 1, "d_model": 16, "lr": 5e-3}}
    parts = {"branches": None, "evaluate": None, "calibrate": "auto", "sizes": sizes}
    auto = study | parts | {"axes": axes, "gpus": 1}
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
        leave(folder, f"results/tiny/calibrations/{name}.json")
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
    assert importers("figures/surface.py") == {"surface"}
    for file in ("__init__.py", "shared/own_context.py"):  # which __init__.py imports
        assert importers(f"figures/{file}") == everything
    assert {"time_law"} <= importers("fits/power_law.py") < everything
    assert {"surface"} <= importers("fits/newton.py") < everything
    curves = {name for name in everything if "learning_curves" in name}
    assert importers("figures/shared/curves.py") == curves
    for name in everything:
        assert registry.PACKAGE / "figures" / f"{name}.py" in registry.figure_sources(name)
