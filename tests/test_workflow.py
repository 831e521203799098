"""What Snakemake plans after each change, with verbs that take no time; and the real study."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from conftest import STUDY, sentence
from product import MORE, Place, product, trained, without_verbs
from test_store import end, header, log, record, update

__all__ = ["product"]  # for other tests
BEHIND = {"collect", "draw", "report", "plan", "study", "verify", "manifest"}
"""Rules that cost seconds, whatever they make again."""
LINES = STUDY["datasets"]["lines"]
TOKENS = ("tokenize", "validation-00000-00000")
TRAINING = ("train", "branch")
RULES = re.compile(r"^(?:local)?rule (\w+):$", re.MULTILINE)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Place:
    place = without_verbs(tmp_path_factory.mktemp("product"))
    place.snakemake("--cores", "2")
    return place


@pytest.fixture
def place(finished, tmp_path) -> Place:
    return finished.copy(tmp_path / "copy")


def expensive(plan):
    """What a plan computes that takes long: rules and names without hashes."""
    found = []
    for rule, path in ((rule, Path(out)) for rule, out in plan if rule not in BEHIND):
        of_stem = {"tokenize": path.stem, "calibrate": path.stem.rpartition("-")[0]}
        stem = (path if rule in TRAINING else path.parent).stem.partition("-branches-")[0]
        name = of_stem.get(rule, stem.rpartition("-")[0])
        text = f" {path.name.partition('-')[0]}" if rule == "evaluate" else ""
        found.append((rule, name + text))
    return sorted(found)


def recorded(place, name):
    (path,) = place.results.glob(f"runs/{name}-????????.json")
    return path


def train(*cells):
    return [("train", f"{cell}-s0") for cell in cells]


def linear(cell, *texts):
    """What a new cell of linear attention needs: all that a cell can have."""
    evaluated = [("evaluate", f"{cell}-s0 {text}") for text in texts]
    return [("calibrate", cell), *evaluated, *train(cell)]


LINEAR = "linear-m-ctx16"
CHANGES = {
    "a size, and a protocol of some": (
        {"axes": {"size": ["s", "m"]}, "protocol": {"linear": 2}},
        [*linear(LINEAR, "lines"), ("evaluate", "linear-s-ctx16-s0 lines"),
         *train("linear-s-ctx16", "softmax-m-ctx16")],
    ),
    "a text to evaluate on, a share, and a context of the speed study": (
        MORE,
        [("branch", "linear-s-ctx16-s0"), ("evaluate", "linear-s-ctx16-s0 other"),
         ("time_step", "s"), TOKENS],
    ),
    "a text in place of that trained on": (
        {"datasets": MORE["datasets"], "axes": {"size": ["m"], "attention": ["linear"]},
         "evaluate": {"datasets": ["other"]}},
        [*linear(LINEAR, "other"), TOKENS],
    ),
    "a shard and a context": (
        {"datasets": {"lines": LINES | {"train": ["a.jsonl", "b.jsonl"]}},
         "axes": {"context": [16, 32]}, "evaluate": None},
        [*linear("linear-s-ctx32"), ("tokenize", "train-00000-00001"), *train("softmax-s-ctx32")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_added_to_a_study_is_all_that_is_computed(place, change):
    changes, expected = CHANGES[change]
    place.study(**{"branches": None, **changes})
    assert expensive(place.plan()) == sorted(expected)


def test_a_budget_in_flops_is_planned_with_the_counts_of_each_model(place):
    place.study(budget="1e8 flops", branches=None)
    planned = {"linear-s-ctx16-s0-1e8flops", "softmax-s-ctx16-s0-1e8flops"}
    assert {*trained(place.plan())} == planned


def test_comments_new_fields_and_losses_of_what_can_be_made_again_plan_nothing(place):
    place.append("tiny.yaml", "# a comment\n")
    place.edit("config/study.yaml", "# The complete study", "# All of the study")
    place.edit("workflow/rules/train.smk", "rule train:", "# a comment\nrule train:")
    place.edit("workflow/rules/train.smk", "{params.words} --out", "{params.words}  --out")
    for folder in ("calibrations", "cells", "scratch"):
        shutil.rmtree(place.results / folder)
    assert place.plan() == []
    # Nor are new fields with a default a reason to train.
    field = '    novelty: float = 0.5\n    """A field that cells did not have before."""\n'
    old = "    protocol: dict[str, Positive] = field(default_factory=dict)\n"
    place.edit("src/lmscaling/config/cell.py", old, field + old)
    old = '    text: str = "text"\n    """Key or column that contains'
    word = field.replace("float", "str").replace("0.5", '"a"')
    place.edit("src/lmscaling/data/kinds/jsonl.py", old, word + old)
    assert trained(place.plan()) == []


def test_lost_tokens_are_made_again_only_for_a_new_cell(place):
    shutil.rmtree(place.results / "tokens")
    place.study(axes={"size": ["s", "m"], "attention": ["linear"]}, branches=None)
    again = [("tokenize", "train-00000-00000"), TOKENS]
    assert expensive(place.plan()) == sorted([*linear(LINEAR, "lines"), *again])


def test_with_other_times_and_without_snakemakes_notes_only_what_is_new_is_trained(place):
    for i, path in enumerate(sorted(place.root.rglob("*"))):
        if path.is_file() and not path.is_symlink():
            moment = 1_500_000_000 + (i * 7919) % 100_000
            os.utime(path, (moment, moment))
    shutil.rmtree(place.root / ".snakemake")
    place.study(axes={"size": ["s", "m"]}, branches=None)
    cheap = {"tokenize", *BEHIND}
    done = [(rule, out) for rule, out in place.plan() if rule not in cheap]
    assert expensive(done) == sorted([*linear(LINEAR, "lines"), *train("softmax-m-ctx16")])


def test_runs_of_other_code_are_said_and_not_trained_again(place):
    run = recorded(place, "linear-s-ctx16-s0").stem
    path = place.results / "runs" / run / "run.json"
    before = path.stat().st_mtime_ns
    shutil.rmtree(path.parent)
    record(place.results, run, log(header(run), update(2), end(2)))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code": "0123456789ab"}))
    os.utime(path, ns=(before, before))
    (place.results / "code").mkdir()
    (place.results / "code" / "0123456789ab.json").touch()
    done = place.snakemake("-n", "-p")
    (said,) = (line for line in done.stderr.splitlines() if "--stale" in line)
    sentence("snakemake", said)
    assert set(RULES.findall(done.stdout)) <= BEHIND


def test_an_edited_or_a_deleted_figure_and_a_lost_point_plan_exactly_their_jobs(place):
    figures = [("draw", "results/tiny/figures/context_scaling.svg")]
    figures.append(("report", "results/tiny/report.html"))
    (place.results / "figures" / "learning_curves.svg").unlink()
    assert place.plan() == figures
    place.snakemake("--cores", "1")
    place.append("src/lmscaling/figures/context_scaling.py", "# edited\n")
    assert place.plan() == figures
    (point,) = place.results.glob("speed/time_step/*/softmax-b1-ctx16.json")
    for path in (point, point.parent / "sweep.json"):
        path.unlink()
    assert expensive(place.plan()) == [("time_step", "s")]


def test_a_wrong_target_is_told_the_nearest_and_the_speed_study_alone_trains_nothing(place):
    target = str(recorded(place, "softmax-s-ctx16-s0").relative_to(place.root))
    wrong = place.snakemake("-n", "--", target.replace("ctx16", "ctx61"), check=False)
    assert wrong.returncode == 1
    assert Path(target).stem in wrong.stdout + wrong.stderr
    shutil.rmtree(place.results)
    assert {rule for rule, _ in place.plan("speed")} == {"study", "time_step"}


def waits(block):
    """Whether a job has a check among its inputs, and a calibration."""
    inputs = re.findall(r"^    input: (.*)$", block, re.MULTILINE)[0]
    return {what for what in ("checks", "calibrations") if f"/{what}/" in inputs}


def test_kernels_are_checked_before_anything_is_calibrated_or_trained_on_a_gpu(place):
    """With the resources that the profile of Slurm asks for."""
    place.study(gpus=4, axes={"seed": [0, 1]})
    done = place.snakemake("-n", "-p", "--profile", "slurm")
    jobs = defaultdict(list)
    for block in re.split(r"\n(?=(?:local)?rule )", done.stdout):
        jobs[block.removeprefix("rule ").partition(":")[0]].append(block)
    counts = {"check": 2, "calibrate": 1, "train": 4, "branch": 2}
    assert {rule: len(jobs[rule]) for rule in counts} == counts
    assert [waits(block) for block in jobs["calibrate"]] == [{"checks"}]
    assert all("checks" in waits(block) for block in jobs["train"])
    for block in jobs["train"] + jobs["branch"]:
        assert all(part in block for part in ("gpu=4,", "nodes=1, ", "mem_mb=128000"))
    assert all("gpu=1," in block for block in jobs["check"] + jobs["calibrate"])
    for path in re.findall(r"^    output: (\S+/checks/\S+)", done.stdout, re.MULTILINE):
        (place.root / path).parent.mkdir(exist_ok=True)
        (place.root / path).write_text("{}")
    assert "check" not in dict(place.plan())


def test_a_mistake_in_the_study_is_one_sentence_before_anything_is_done(place):
    place.study(budgt="1 hours")
    before = sorted(place.results.rglob("*"))
    done = place.snakemake("-n", check=False)
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.returncode, "'budgt'" in said) == (1, True)
    assert "Traceback" not in done.stdout + done.stderr
    assert sorted(place.results.rglob("*")) == before


def test_the_real_study_is_planned_for_slurm_and_loads_nothing_that_computes(tmp_path):
    place = product(tmp_path / "product")
    code = (
        "import sys\n"
        "from snakemake.cli import main\n"
        "try: main(['-n', '--quiet', 'all', '--profile', 'slurm'])\n"
        "except SystemExit as done: assert not done.code\n"
        "print(*{'torch', 'duckdb', 'scipy', 'matplotlib', 'tokenizers'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place.root, env=place.environment,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == ""
