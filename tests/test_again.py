"""What Snakemake is told to make again is trained again, and nothing else; with verbs that take no
time, of which a training leaves a random number."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from product import Place, trained, without_verbs
from slurm_cluster import eventually

pytestmark = pytest.mark.ci

SMALL = {"calibrate": {"attention": "linear"}, "speed": None}
X = "softmax-s-ctx16-s0"
TRUNK, BRANCH = "linear-s-ctx16-s0", "linear-s-ctx16-s0-b0.5"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Place:
    place = without_verbs(tmp_path_factory.mktemp("product"))
    place.study(**SMALL)
    place.snakemake("--cores", "2")
    return place


@pytest.fixture
def place(finished, tmp_path) -> Place:
    return finished.copy(tmp_path / "copy")


def output(place, name) -> Path:
    trunk = name.replace("-b0.5", "-????????-branches")
    (path,) = place.results.glob(f"runs/{trunk}-????????.json")
    return path.relative_to(place.root)


def ids(place) -> dict[str, str]:
    """The number of the training of each run, by the name of its cell."""
    found = {path.parent.name: path for path in place.results.glob("runs/*/run.json")}
    return {run.rpartition("-")[0]: json.loads(p.read_text())["id"] for run, p in found.items()}


def earlier(place, name) -> list[str]:
    """The numbers of the trainings that have moved aside, with what belongs to each."""
    found = []
    for path in place.results.glob(f"runs/{name}-????????/earlier/*/run.json"):
        assert {"log.jsonl", "model.safetensors"} <= {p.name for p in path.parent.iterdir()}
        found.append(json.loads(path.read_text())["id"])
    return found


def said(place, name) -> str:
    (path,) = place.results.glob(f"logs/*/{name}-????????.log")
    return path.read_text()


def run(place, *words, check=True, **variables):
    done = subprocess.run(
        **place.typed("--cores", "2", *words) | {"env": place.environment | variables},
        capture_output=True, check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_job_that_fails_after_its_end_has_trained_once_whether_it_is_tried_again_or_not(place):
    first = ids(place)
    path = place.root / output(place, X)
    # Nobody can tell this from a folder of a version without outputs; nothing is trained for it.
    shutil.rmtree(path.with_suffix(""))
    path.unlink()
    target = str(path.relative_to(place.root))
    failed = run(place, "--retries", "2", "--", target, FAIL_AFTER="1", check=False)
    assert failed.returncode == 1
    once = ids(place)
    assert once[X] != first[X]
    assert "another job has ended it since it was planned" in said(place, X)
    assert not path.exists()
    assert place.plan("--", target) == []
    assert path.is_file()
    assert (ids(place), earlier(place, X)) == (once, [])


def test_a_run_that_is_forced_and_fails_half_way_goes_on_and_its_record_stays_aside(place):
    first, target = ids(place)[X], str(output(place, X))
    assert run(place, "-f", "--", target, FAIL_AT="1", check=False).returncode == 1
    assert (earlier(place, X), X in ids(place)) == ([first], False)
    run(place, "--", target)
    assert (earlier(place, X), ids(place)[X] != first) == ([first], True)
    second = ids(place)[X]
    assert run(place, "-f", "--retries", "1", "--", target, FAIL_AT="1", check=False).returncode
    assert sorted(earlier(place, X)) == sorted([first, second])


FORCED = (
    ["-f", "--", "{}"], ["-f", "./{}"], ["-R", "train", "--", "{}"], ["-F", "--until", "train"],
    ["--forcerun", "{}", "--", "{}"], ["--forcerun={}", "--", "{}"], ["--force", "{}"],
    ["-pf", "{}"],
)  # fmt: skip


@pytest.mark.parametrize("words", FORCED, ids=" ".join)
def test_a_run_that_is_forced_is_trained_again(place, words):
    first, target = ids(place)[X], str(output(place, X))
    run(place, *(word.format(target) for word in words))
    assert ids(place)[X] != first
    assert earlier(place, X) == [first]
    assert place.plan("--", target) == []


def test_a_run_whose_output_is_deleted_is_trained_again_with_its_branches_and_evaluated(place):
    before = ids(place)
    (place.root / output(place, TRUNK)).unlink()
    rules = {rule for rule, _ in place.plan()}
    assert rules == {"train", "branch", "evaluate", "collect", "draw", "report"}
    run(place)
    after = ids(place)
    assert {name for name in before if after[name] != before[name]} == {TRUNK, BRANCH}
    for name in (TRUNK, BRANCH):
        assert earlier(place, name) == [before[name]]
    assert len(list(place.results.glob("runs/*/earlier/*/evaluations/*.jsonl"))) == 1
    assert place.plan() == []


def test_all_is_trained_again_when_a_rule_is_forced_and_only_what_follows(place):
    before = ids(place)
    assert {rule for rule, _ in place.plan("-R", "evaluate")} == {
        "evaluate", "collect", "draw", "report"
    }  # fmt: skip
    assert {rule for rule, _ in place.plan("-F")} > {"train", "branch", "tokenize", "calibrate"}
    run(place, "-R", "train")
    after = ids(place)
    assert all(before[name] != after[name] for name in before)
    run(place, "-R", "evaluate", "calibrate", "verify")
    assert (ids(place), place.plan()) == (after, [])


def test_a_branch_without_the_checkpoint_of_its_trunk_is_not_lost(place):
    before, target = ids(place), output(place, BRANCH)
    done = run(place, "-f", "--", str(target), check=False)
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    both = told.partition("snakemake ")[2].split()
    (place.root / target).unlink()
    assert place.plan() == []
    assert (ids(place), (place.root / target).is_file()) == (before, True)
    run(place, *both)
    after = ids(place)
    assert {name for name in before if after[name] != before[name]} == {TRUNK, BRANCH}


def test_texts_of_rules_and_lost_inputs_are_no_reason_to_train(place):
    before = ids(place)
    place.edit("workflow/rules/train.smk", "{params.words} --out", "{params.words}  --out")
    assert place.plan() == []
    again = {rule for rule, _ in place.plan("--workflow-profile", "none")}
    assert {"train", "branch"} <= again
    run(place, "--workflow-profile", "none", "--until", "train", "branch")
    assert ids(place) == before
    assert "nobody has asked for it again" in said(place, X)
    run(place)
    (manifest,) = place.results.glob("tokens/*/manifest.json")
    os.utime(manifest)
    assert place.plan() == []
    manifest.write_text(manifest.read_text() + " ")
    assert place.plan() == []
    for folder in ("tokens", "calibrations", "cells", "scratch"):
        shutil.rmtree(place.results / folder, ignore_errors=True)
    assert place.plan() == []
    assert ids(place) == before


def test_a_folder_of_a_version_without_outputs_is_read_without_training(place):
    before = ids(place)
    for path in [*place.results.glob("runs/*.json"), place.results / "seen.json"]:
        path.unlink()
    assert place.plan() == []
    assert len(list(place.results.glob("runs/*.json"))) == len(before) == 3
    (place.root / output(place, X)).unlink()  # now it counts as deleted
    assert trained(place.plan()) == [X]


WAIT = """
import os, time
from pathlib import Path
if "WAIT" in os.environ and sys.argv[1] == "train":
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.1)
"""


@pytest.mark.race
def test_after_a_kill_a_run_that_has_ended_alone_is_kept(place):
    before = ids(place)
    main = place.package / "__main__.py"
    begin = "verb, *words"
    main.write_text(main.read_text().replace(begin, WAIT + begin, 1))
    target = str(output(place, X))
    typed = place.typed("--cores", "2", "-f", "--", target)
    typed["env"] = place.environment | {"WAIT": "1"}
    killed = subprocess.Popen(**typed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually((place.root / "begun").exists, "job")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    (place.root / "go").touch()
    eventually(lambda: ids(place).get(X, before[X]) != before[X], "end of the job")
    eventually((place.root / target).exists, "output")
    ended = ids(place)
    run(place, "--unlock")
    assert [rule for rule, _ in place.plan("--rerun-incomplete", "--", target)] == ["train"]
    run(place, "--rerun-incomplete", "--", target)
    assert ids(place) == ended
    assert "nobody has asked for it again" in said(place, X)
    assert place.plan("--", target) == []


def test_new_values_of_an_axis_and_a_forced_run_train_these_alone(place):
    before = ids(place)
    shutil.rmtree(place.results / "tokens")
    place.study(axes={"seed": [0, 1]}, branches=None, evaluate=None)
    asked = ["--until", "train", "--forcerun", str(output(place, X))]
    names = ["linear-s-ctx16-s1", "softmax-s-ctx16-s0", "softmax-s-ctx16-s1"]
    assert sorted(trained(place.plan(*asked))) == names
    assert [rule for rule, _ in place.plan(*asked)].count("tokenize") == 2
    run(place, *asked)
    after = ids(place)
    assert {name for name, number in after.items() if before.get(name) != number} == set(names)


def test_shards_are_made_exactly_where_an_open_run_needs_them(place):
    shard = next(place.results.glob("tokens/*/train-00000.bin"))
    shard.unlink()
    assert place.plan() == []
    place.study(axes={"seed": [0, 1]}, branches=None, evaluate=None)
    rules = [rule for rule, _ in place.plan("--until", "train")]
    assert {rule: rules.count(rule) for rule in rules} == {
        "study": 1, "tokenize": 1, "manifest": 1, "verify": 1, "train": 2
    }  # fmt: skip
    run(place, "--until", "train")
    assert shard.is_file()
    assert place.plan("--until", "train") == []


def test_what_snakemake_users_know_does_what_its_manual_says(place):
    target = str(output(place, X))
    (place.root / target).unlink()
    assert {rule for rule, _ in place.plan("--until", "train")} == {"train"}
    assert place.plan("--omit-from", "train") == []
    assert target in place.snakemake("--summary").stdout
    assert "digraph" in place.snakemake("--rulegraph").stdout
    rules = place.snakemake("--list-rules").stdout.split()
    assert {"train", "branch", "evaluate", "all"} <= set(rules)
    (place.root / target).touch()
    assert place.plan("--", target) == []
    before = ids(place)
    place.snakemake("--cores", "1", "--touch")
    assert (place.plan(), ids(place)) == ([], before)


def test_a_study_of_another_file_or_of_the_command_line_is_planned(place):
    place.study(branches=None, evaluate=None, calibrate=None)
    runs = place.plan("--config", "axes={seed: [2]}", "--until", "train")
    assert sorted(trained(runs)) == ["linear-s-ctx16-s2", "softmax-s-ctx16-s2"]
    runs = place.plan("--until", "train", "--config", "set=axes.seed=[3]&axes.attention=[softmax]")
    assert trained(runs) == ["softmax-s-ctx16-s3"]
    text = (place.root / "tiny.yaml").read_text().replace("study: tiny", "study: other")
    (place.root / "other.yaml").write_text(text)
    target = "results/other/report.html"
    assert target in place.snakemake("-n", target, "--configfile", "other.yaml").stdout
