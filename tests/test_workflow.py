"""The real workflow: one small study is trained for real, then each change is a real dry run."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import strangers
import yaml
from conftest import ROOT, STUDY

PARTS = ("Snakefile", "workflow", "config", "profiles", "default", "slurm", "src")
FIGURES = {"learning_curves", "context_scaling", "loss_by_position", "step_time"}
"""Files of figures/ that the product here has: every figure is a job, and drawn in other tests."""
TABLE = re.compile(r"^(?:local)?rule (\w+):$")

OVERLAY = STUDY | {
    "axes": {**STUDY["axes"], "seed": [0], "lr_scale": [1.0]},
    "protocol": {"all": 1, "linear": 1},
    # Over the real study's: one of the two cells has all that a cell can have.
    "calibrate": {"attention": "linear"},
    "branches": {"attention": "linear", "shares": [0.5]},
    "evaluate": {"attention": "linear", "datasets": ["lines"]},
    "speed": {
        "timeout_seconds": 60,
        "repeats": 3,
        "target_seconds": 0.01,
        "time_step": {
            "sizes": ["s"],
            "contexts": [16],
            "implementations": ["linear/chunked", "softmax"],
        },
        "tune_chunk": {"implementations": ["linear/chunked"], "chunks": [8, 16]},
        "time_decode": None,
        "time_layer": [],
        "copy_task": None,
    },
    "published": False,
}


class Place:
    """A copy of the product with a study of two cells in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def results(self) -> Path:
        return self.root / "results" / "tiny"

    def snakemake(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "snakemake", "--configfile", "tiny.yaml", *arguments]
        # The copy's own source, not the installed one, so that a test can edit it.
        environment = os.environ | {
            "PYTHONPATH": str(self.root / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def lmscaling(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lmscaling", *arguments]
        environment = os.environ | {"PYTHONPATH": str(self.root / "src")}
        return subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, check=True
        )

    def plan(self, *arguments: str) -> list[tuple[str, str]]:
        """What a dry run would do: rule and first output, sorted."""
        text = self.snakemake("-n", "-p", *arguments)  # -p lists each job
        jobs, rule = [], ""
        for line in (text.stdout + text.stderr).splitlines():
            if match := TABLE.match(line):
                rule = match[1]
            elif rule and line.startswith("    output: "):
                first = line.removeprefix("    output: ").split(", ")[0]
                jobs.append((rule, first.partition(" (")[0]))  # without flags such as update
                rule = ""
        return sorted(jobs)

    def trained(self, *arguments: str) -> list[str]:
        """Cells that a dry run would train, by name."""
        runs = [Path(out).parent.name for rule, out in self.plan(*arguments) if rule == "train"]
        return [run.rpartition("-")[0] for run in runs]

    def evaluated(self, *arguments: str) -> list[str]:
        """What a dry run would evaluate: cells and datasets by name."""
        files = [Path(out) for rule, out in self.plan(*arguments) if rule == "evaluate"]
        return [f"{p.parent.name.rpartition('-')[0]} {p.name.split('-')[0]}" for p in files]

    def edit(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text()
        assert old in text
        (self.root / path).write_text(text.replace(old, new, 1))

    def same_times(self) -> None:
        """Give all results one time of change."""
        for path in self.results.rglob("*"):
            os.utime(path, (1e9, 1e9))

    def study(self, **changes) -> None:
        values = yaml.safe_load((self.root / "tiny.yaml").read_text())
        for key, value in changes.items():
            inner = isinstance(value, dict) and key in values
            values[key] = {**values[key], **value} if inner else value
        (self.root / "tiny.yaml").write_text(yaml.safe_dump(values))


def product(root: Path) -> Place:
    """A copy of the product with the study, nothing of it done."""
    root.mkdir(exist_ok=True)
    for part in PARTS:
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        if (ROOT / part).is_dir() and not (ROOT / part).is_symlink():
            shutil.copytree(ROOT / part, root / part, symlinks=True, ignore=ignore)
        else:
            shutil.copy2(ROOT / part, root / part, follow_symlinks=False)
    (root / "results" / "published").mkdir(parents=True)
    for path in (ROOT / "results" / "published").glob("*.csv"):
        shutil.copy2(path, root / "results" / "published")
    for path in (root / "src/lmscaling/figures").glob("[a-z]*.py"):
        if path.stem not in FIGURES:
            path.unlink()
    for name, n in (("a", 400), ("b", 100), ("v", 60)):
        rows = (json.dumps({"text": f"{name} document {i}"}) + "\n" for i in range(n))
        (root / f"{name}.jsonl").write_text("".join(rows))
    (root / "tiny.yaml").write_text(yaml.safe_dump(OVERLAY))
    return Place(root)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The product with both cells of the study trained and all figures drawn."""
    place = product(tmp_path_factory.mktemp("product"))
    place.snakemake("--cores", "2")
    return place


@pytest.fixture
def place(trained: Place, tmp_path: Path) -> Place:
    """A copy of the trained product that a test may change; times are kept."""
    shutil.copytree(trained.root, tmp_path / "copy", symlinks=True)
    return Place(tmp_path / "copy")


def test_one_command_leaves_everything_that_is_promised(trained):
    expected = ["study.json", "report.html", "store/store.duckdb", "store/updates.parquet"]
    expected += [
        f"figures/{f}.{k}"
        for f in ("learning_curves", "context_scaling", "loss_by_position")
        for k in ("svg", "png", "csv")
    ]
    for name in expected:
        assert (trained.results / name).stat().st_size > 0, name
    records = [json.loads(p.read_text()) for p in trained.results.glob("runs/*/run.json")]
    assert {r["name"]: r["status"] for r in records} == {
        "softmax-s-ctx16-s0": "done",
        "linear-s-ctx16-s0": "done",
        "linear-s-ctx16-s0-b0.5": "done",
    }
    (path,) = trained.results.glob("evaluations/*/*")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    log = (trained.results / "runs" / path.parent.name / "log.jsonl").read_text().splitlines()
    last = json.loads(log[-2])
    for axis in ("sequence", "document"):
        bins = [row for row in rows if row["axis"] == axis]
        mean = sum(b["tokens"] * b["loss"] for b in bins) / last["val_tokens"]
        assert mean == pytest.approx(last["val_loss"], rel=1e-5)
    assert {p.name for p in (trained.root / "results").iterdir()} == {"tiny", "published"}


def test_a_finished_study_plans_nothing(place):
    assert place.plan() == []


def test_a_new_size_plans_only_its_own_cells(place):
    place.study(axes={"size": ["s", "m"]})
    assert place.trained() == ["linear-m-ctx16-s0", "softmax-m-ctx16-s0"]
    assert place.evaluated() == ["linear-m-ctx16-s0 lines"]


@pytest.mark.ci
def test_a_new_text_evaluates_on_it_alone_and_trains_nothing(place):
    row = {"kind": "jsonl", "train": ["b.jsonl", "v.jsonl"], "validation": ["a.jsonl"]}
    place.study(
        datasets={"lines": STUDY["datasets"]["lines"], "other": row},
        evaluate={"datasets": ["lines", "other"]},
    )
    plan = place.plan()
    assert place.trained() == []
    assert place.evaluated() == ["linear-s-ctx16-s0 other"]
    assert [Path(out).name for rule, out in plan if rule.startswith("tokenize")] == [
        "validation-00000-00000.tokenized"
    ]
    place.snakemake("--cores", "2")
    assert len(list(place.results.glob("evaluations/*/other-*.jsonl"))) == 1
    assert not list(place.results.glob("tokens/other-*/train-*"))
    assert place.plan() == []


def test_a_text_that_is_only_trained_on_is_not_evaluated(place):
    row = {"kind": "jsonl", "train": ["b.jsonl"], "validation": ["a.jsonl"]}
    place.study(
        datasets={"lines": STUDY["datasets"]["lines"], "other": row},
        axes={"size": ["m"], "attention": ["linear"]},
        evaluate={"datasets": ["other"]},
    )
    assert place.evaluated() == ["linear-m-ctx16-s0 other"]
    place.study(evaluate=None)
    assert place.evaluated() == []
    assert place.trained() == ["linear-m-ctx16-s0"]


def test_a_comment_in_the_study_plans_nothing(place):
    with (place.root / "tiny.yaml").open("a") as file:
        file.write("# a comment\n")
    place.edit("config/study.yaml", "# The complete study", "# All of the study")
    assert place.plan() == []


def test_a_comment_or_a_blank_in_a_rule_plans_nothing(place):
    place.edit("workflow/rules/train.smk", "rule train:", "# a comment\nrule train:")
    place.edit(
        "workflow/rules/train.smk", '" --record {output.record:q}', '"  --record {output.record:q}'
    )
    assert place.plan() == []


@pytest.mark.ci
def test_editing_a_figure_draws_that_figure_and_writes_the_report(place):
    with (place.root / "src/lmscaling/figures/context_scaling.py").open("a") as file:
        file.write("# edited\n")
    report = ("report", "results/tiny/report.html")
    assert place.plan() == [("draw", "results/tiny/figures/context_scaling.svg"), report]
    place.snakemake("--cores", "2")
    assert (place.results / "logs/draw.log").read_text().splitlines() == [
        "figure: results/tiny/figures/context_scaling.svg"
    ]
    assert place.plan() == []


@pytest.mark.ci
def test_editing_a_helper_draws_the_figures_that_import_it(place):
    def drawn_after_editing(helper):
        path = place.root / "src/lmscaling" / helper
        text = path.read_text()
        path.write_text(f"{text}# edited\n")
        said = place.lmscaling("figure", "results/tiny").stdout
        path.write_text(text)
        place.lmscaling("figure", "results/tiny")
        return re.findall(r"(\w+)\.svg", said)

    assert drawn_after_editing("figures/shared/curves.py") == ["learning_curves"]
    assert drawn_after_editing("figures/shared/own_context.py") == sorted(FIGURES)
    assert drawn_after_editing("fits/power_law.py") == []


@pytest.mark.ci
def test_editing_a_kernel_trains_nothing_is_said_and_reset_takes_the_runs_of_the_old_one(place):
    with (place.root / "src/lmscaling/kernels/feature_maps.py").open("a") as file:
        file.write("# A comment.\n")
    sentence = "2 runs were trained by other code than the present; to train again: lmscaling"
    assert sentence not in place.snakemake("-n").stderr
    with (place.root / "src/lmscaling/kernels/feature_maps.py").open("a") as file:
        file.write("EDITED = True\n")
    assert sentence in place.snakemake("-n").stderr
    assert {rule for rule, _ in place.plan()} == {"collect", "draw", "report"}
    place.lmscaling("reset", "--stale")
    assert place.trained() == ["linear-s-ctx16-s0"]
    assert "branch" in {rule for rule, _ in place.plan()}
    assert sentence not in place.snakemake("-n").stderr


def test_a_figure_that_fails_is_named_and_the_others_are_drawn(place):
    place.edit("src/lmscaling/figures/context_scaling.py", "QUERY =", "QUERY = 'SELECT' #")
    with (place.root / "src/lmscaling/figures/step_time.py").open("a") as file:
        file.write("# edited\n")
    failed = place.snakemake("--cores", "2", check=False)
    assert failed.returncode
    assert "1 of the figures cannot be drawn: context_scaling (" in failed.stdout + failed.stderr
    log = (place.results / "logs/draw.log").read_text()
    assert "Traceback" in log
    assert json.loads((place.results / "figures/drawn.json").read_text()).keys() == FIGURES
    assert (place.results / "figures/context_scaling.svg").is_file()


def test_deleted_tokens_and_a_new_cell_train_only_the_new_cell(place):
    shutil.rmtree(place.results / "tokens")
    place.study(axes={"size": ["s", "m"], "attention": ["linear"]})
    plan = place.plan()
    assert place.trained() == ["linear-m-ctx16-s0"]
    assert place.evaluated() == ["linear-m-ctx16-s0 lines"]
    assert "tokenize" in dict(plan)


def test_one_more_shard_trains_nothing(place):
    place.study(datasets={"lines": {**STUDY["datasets"]["lines"], "train": ["a.jsonl", "b.jsonl"]}})
    assert place.trained() == []
    place.study(axes={"context": [16, 32]})
    made = [out for rule, out in place.plan() if rule == "tokenize"]
    assert [Path(out).name for out in made] == ["train-00000-00001.tokenized"]
    assert place.trained() == ["linear-s-ctx32-s0", "softmax-s-ctx32-s0"]


def test_scrambled_times_train_nothing(place):
    for i, path in enumerate(sorted(place.root.rglob("*"))):
        if path.is_file() and not path.is_symlink():
            moment = 1_500_000_000 + (i * 7919) % 100_000
            os.utime(path, (moment, moment))
    assert place.trained() == []
    assert place.evaluated() == []


def test_a_lost_snakemake_folder_trains_nothing(place):
    shutil.rmtree(place.root / ".snakemake")
    assert place.trained() == []
    assert place.evaluated() == []
    place.study(axes={"size": ["s", "m"]})
    assert place.trained() == ["linear-m-ctx16-s0", "softmax-m-ctx16-s0"]


def test_results_copied_elsewhere_without_their_times_train_nothing(place, tmp_path):
    fresh = tmp_path / "fresh"
    shutil.copytree(place.root, fresh, symlinks=True, copy_function=shutil.copyfile)
    shutil.rmtree(fresh / ".snakemake")
    assert Place(fresh).trained() == []


def test_a_new_field_with_a_default_trains_nothing(place):
    field = '    novelty: float = 0.5\n    """A field that cells did not have before."""\n'
    old = "    protocol: dict[str, Positive] = field(default_factory=dict)\n"
    place.edit("src/lmscaling/config/cell.py", old, field + old)
    assert place.trained() == []
    old = '    text: str = "text"\n    """Key or column that contains'
    place.edit(
        "src/lmscaling/data/kinds/jsonl.py",
        old,
        field.replace("float", "str").replace("0.5", '"a"') + old,
    )
    assert place.trained() == []


@pytest.mark.ci
def test_a_share_that_is_added_plans_its_branch_and_no_training(place):
    place.study(branches={"attention": "linear", "shares": [0.5, 0.75]})
    jobs = [(rule, out) for rule, out in place.plan() if rule in ("train", "branch", "calibrate")]
    assert [(rule, "-b0.75-" in out) for rule, out in jobs] == [("branch", True)]
    place.snakemake("--cores", "2")
    (path,) = place.results.glob("runs/*-b0.75-*/run.json")
    assert json.loads(path.read_text())["status"] == "no_trunk"
    assert place.plan() == []


def test_deleted_calibrations_cells_and_kept_checkpoints_plan_nothing_that_trains(place):
    for folder in ("calibrations", "cells", "scratch"):
        shutil.rmtree(place.results / folder)
    assert place.plan() == []


@pytest.mark.ci
def test_few_calibrations_are_made_before_what_trains_with_them(place):
    """The linear cell has a calibration; the study gets contexts, and softmax one of its own."""
    place.study(calibrate="auto", axes={"context": [16, 32]}, branches=None, evaluate=None)
    blocks = re.split(r"\n(?=(?:local)?rule )", place.snakemake("-n", "-p").stdout)
    jobs = [text for text in blocks if re.match(r"rule (calibrate|train):", text)]
    trained = [text for text in jobs if text.startswith("rule train:")]
    (softmax,) = (
        re.findall(r"output: (\S+)", text)[0] for text in jobs if text.startswith("rule calibrate:")
    )
    waits = {"softmax": softmax, "linear": "calibrations/linear-s-ctx16-"}
    for text in trained:
        (inputs,) = re.findall(r"^    input: (.*)$", text, re.MULTILINE)
        assert waits["softmax" if "runs/softmax" in text else "linear"] in inputs
    (run,) = (out for rule, out in place.plan() if rule == "train" and "linear" in out)
    place.snakemake("--cores", "1", run)
    settings = json.loads((place.root / run).read_text())["calibration"]
    assert not settings["measured"]
    assert settings["nearest"].startswith("linear-s-ctx16-")
    assert set(settings["choice"]) == {"chunk"}


def test_a_raised_protocol_trains_what_it_names(place):
    place.study(protocol={"linear": 2})
    assert place.trained() == ["linear-s-ctx16-s0"]
    place.study(protocol={"all": 2, "linear": 1})
    assert place.trained() == ["linear-s-ctx16-s0", "softmax-s-ctx16-s0"]


@pytest.mark.ci
def test_reset_plans_exactly_its_cell_and_keeps_the_old_record(place):
    (old,) = place.results.glob("runs/linear-s-ctx16-s0-????????/run.json")
    before = old.read_bytes()
    place.lmscaling("reset", "linear-s-ctx16-s0")
    assert place.trained() == ["linear-s-ctx16-s0"]
    assert place.evaluated() == ["linear-s-ctx16-s0 lines"]
    (kept,) = place.results.glob("attic/*/runs/linear-s-ctx16-s0-????????/run.json")
    assert kept.read_bytes() == before
    place.snakemake("--cores", "2")
    assert old.exists()
    assert place.plan() == []
    assert kept.read_bytes() == before


def sweeps_of(plan):
    """What a plan would measure."""
    return [(rule, out.split("/")[-2].rpartition("-")[0]) for rule, out in plan if "/speed/" in out]


def test_every_point_of_the_speed_study_is_measured_by_its_rule(trained):
    for kind, points in (
        ("tune_chunk", ["linear.chunked-c16-b1-ctx16", "linear.chunked-c8-b1-ctx16"]),
        ("time_step", ["linear.chunked-b1-ctx16", "softmax-b1-ctx16"]),
    ):
        (folder,) = trained.results.glob(f"speed/{kind}/s-????????")
        assert sorted(p.stem for p in folder.iterdir()) == [*points, "sweep"]
        for point in points:
            assert json.loads((folder / f"{point}.json").read_text())["status"] == "done"
    (tuned,) = trained.results.glob("speed/tune_chunk/*/sweep.json")
    (chunk,) = json.loads(tuned.read_text())["fastest"]["linear/chunked"].values()
    (step,) = trained.results.glob("speed/time_step/*/linear.chunked-b1-ctx16.json")
    assert json.loads(step.read_text())["chunk"] == chunk


@pytest.mark.ci
def test_a_context_of_the_speed_study_plans_its_sweeps_and_measures_only_its_points(place):
    speed = {
        **OVERLAY["speed"],
        "time_step": {**OVERLAY["speed"]["time_step"], "contexts": [16, 32]},
    }
    place.study(speed=speed)
    plan = place.plan()
    assert sweeps_of(plan) == [("time_step", "s"), ("tune_chunk", "s")]
    assert not [r for r, _ in plan if r in {"train", "branch", "calibrate", "tokenize", "evaluate"}]
    before = {p: p.read_bytes() for p in place.results.glob("speed/*/*/*ctx16.json")}
    place.snakemake("--cores", "2")
    assert {p: p.read_bytes() for p in before} == before
    assert len(list(place.results.glob("speed/*/*/*ctx32.json"))) == 4
    assert place.plan() == []


def test_reset_of_a_point_plans_exactly_its_sweep(place):
    place.lmscaling("reset", "time_step/s/softmax-b1-ctx16")
    plan = place.plan()
    assert sweeps_of(plan) == [("time_step", "s")]
    assert not [r for r, _ in plan if r in {"train", "branch", "calibrate", "tokenize", "evaluate"}]


def test_scrambled_times_measure_nothing(place):
    for i, path in enumerate(sorted(place.results.rglob("*"))):
        os.utime(path, (1e9 + 1e4 * (i % 7), 1e9 + 1e4 * (i % 7)))
    assert sweeps_of(place.plan()) == []


def test_the_speed_study_alone_trains_and_tokenizes_nothing(place):
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "speed", "--profile", "default", "-np"],
        cwd=place.root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    table = done.stdout.split("Job stats:")[-1].split("total")[0].split("\n")
    jobs = dict(line.split() for line in table if line.strip() and line.split()[-1].isdigit())
    assert jobs == {
        "study": "1", "speed": "1", "time_step": "4", "tune_chunk": "4", "time_decode": "4",
        "time_layer": "2", "copy_task": "1",
    }  # fmt: skip


def test_forcing_a_finished_cell_cannot_delete_it(place):
    (path,) = place.results.glob("runs/linear-s-ctx16-s0-????????/run.json")
    place.snakemake("--cores", "1", "-f", "--", str(path.relative_to(place.root)), check=False)
    place.snakemake(
        "--cores", "1", "-R", "train", "--", str(path.relative_to(place.root)), check=False
    )
    assert path.is_file()


@pytest.mark.ci
def test_one_cell_is_trained_by_the_name_of_its_record(place):
    place.study(axes={"size": ["s", "m"]})
    (out,) = [o for r, o in place.plan() if r == "train" and "linear-m" in o]
    place.snakemake("--", out)
    assert (place.root / out).is_file()
    assert place.trained() == ["softmax-m-ctx16-s0"]


@pytest.mark.ci
def test_figures_draw_what_exists_and_train_nothing(place):
    place.study(axes={"size": ["s", "m"]})
    shutil.rmtree(place.results / "figures")
    shutil.rmtree(place.results / "store")
    assert place.plan("figures") == []  # it declares no output
    place.snakemake("--", "figures")
    assert (place.results / "figures" / "context_scaling.svg").is_file()
    assert (
        "Of 4 cells: 2 done, 2 pending. Of 2 branches: 1 done, 1 pending."
        in (place.results / "report.html").read_text()
    )
    assert len(list(place.results.glob("runs/*/run.json"))) == 3


@pytest.mark.ci
def test_figures_can_be_drawn_beside_a_running_workflow(place):
    place.study(axes={"size": ["m"]}, budget="60 minutes")
    environment = os.environ | {"PYTHONPATH": str(place.root / "src")}
    a_lot = "".join(json.dumps({"text": "x" * 1000}) + "\n" for _ in range(20_000))
    (place.root / "a.jsonl").write_text(a_lot)
    shutil.rmtree(place.results / "tokens")
    command = [sys.executable, "-m", "snakemake", "--configfile", "tiny.yaml", "--cores", "1"]
    log = (place.root / "log").open("w")
    process = subprocess.Popen(
        command, cwd=place.root, env=environment, stdout=log, stderr=log, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 90
        while not any(
            p.stat().st_size > 2000 for p in place.results.glob("scratch/*-m-*/attempt-*")
        ):
            assert time.monotonic() < deadline, (place.root / "log").read_text()
            time.sleep(0.1)
        place.snakemake("--", "figures")
        assert "Of 2 cells: 1 running, 1 pending." in (place.results / "report.html").read_text()
        assert process.poll() is None
    finally:
        os.killpg(process.pid, 15)
        process.wait(60)
    # Killed in the middle: nothing is finished, and what was finished before still is.
    assert len(list(place.results.glob("runs/*/run.json"))) == 3


def test_a_job_that_fails_leaves_no_record_and_the_rest_goes_on(place):
    place.study(axes={"size": ["m"]})
    (shard,) = place.results.glob("tokens/*/train-00000.bin")
    shard.write_bytes(shard.read_bytes()[:-2])
    done = place.snakemake("--cores", "1", "--keep-going", check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "its header states" in said
    assert "Traceback" not in said
    assert len(list(place.results.glob("runs/*/run.json"))) == 3


def test_an_attention_that_looks_ahead_is_not_trained_and_the_rest_goes_on(place):
    leaks = strangers.file(more=strangers.COUNTED).replace("triu(1)", "triu(2)")
    (place.root / "src/lmscaling/attention/mine.py").write_text(leaks)
    place.study(axes={"attention": ["softmax", "linear", "mine"]})
    done = place.snakemake("--cores", "1", "--keep-going", check=False)
    assert done.returncode == 1
    sentence = "attention mine looks ahead: its output at position 0 changes with the token at "
    assert sentence in done.stdout + done.stderr
    assert sentence in place.lmscaling("status", "results/tiny", "--failed").stdout
    assert not list(place.results.glob("runs/mine-*"))
    assert not list(place.results.glob("scratch/mine-*/*"))
    assert len(list(place.results.glob("runs/*/run.json"))) == 3


def test_kernels_are_checked_before_anything_is_calibrated_or_trained_on_a_gpu(place):
    place.study(gpus=1, axes={"seed": [0, 1]})
    blocks = re.split(r"\n(?=(?:local)?rule )", place.snakemake("-n", "-p").stdout)
    jobs = {}
    for block in blocks:
        if match := re.match(r"rule (check|calibrate|train|branch):", block):
            (inputs,) = re.findall(r"^    input: (.*)$", block, re.MULTILINE)
            jobs.setdefault(match[1], []).append(inputs)
    counts = {rule: len(inputs) for rule, inputs in jobs.items()}
    assert counts == {"check": 2, "calibrate": 1, "train": 4, "branch": 2}
    # What is calibrated waits for the calibration, which waits for the check.
    assert all("/checks/" in text for text in jobs["calibrate"])
    for text in jobs["train"] + jobs["branch"]:
        assert ("/checks/" in text) != ("/calibrations/" in text)
    checks = [out for rule, out in place.plan() if rule == "check"]
    for path in checks:
        (place.root / path).parent.mkdir(exist_ok=True)
        (place.root / path).write_text("{}")
    assert not [rule for rule, _ in place.plan() if rule == "check"]


MISTAKES = [
    ({"budgt": "1 hours"}, "unknown key 'budgt'; nearest is 'budget'"),
    ({"axes": {"size": ["x"]}}, "axes.size 'x' has no row under sizes"),
    (
        {"axes": {"context": [24]}},
        "axes.context 24 does not divide update_tokens 64; nearest is 16",
    ),
    ({"skip": [{"context": 99, "reason": "x"}]}, "skip {context: 99} matches no cell"),
]


@pytest.mark.parametrize(("change", "sentence"), MISTAKES)
def test_a_mistake_in_the_study_is_one_sentence_before_anything_is_done(place, change, sentence):
    place.study(**change)
    before = sorted(place.results.rglob("*"))
    done = place.snakemake("-n", check=False)
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert sentence in said
    assert "Traceback" not in done.stdout + done.stderr
    assert sorted(place.results.rglob("*")) == before


@pytest.mark.parametrize("profile", ["", "slurm"])
def test_the_real_study_is_planned_in_seconds_and_without_torch(place, profile):
    """In 5 s of processor time on the reference machine. One of eight tries must be as fast, for
    other tests and other users of a machine only add to the time."""
    words = ["-n", "--quiet", "all", *(["--profile", profile] if profile else [])]
    code = (
        f"import sys, time; sys.path.append({str(ROOT / 'tests')!r})\n"
        "from speed_of_python import slowness\n"
        "before, begun = slowness(), time.process_time()\n"
        "from snakemake.cli import main\n"
        f"try: main({words})\n"
        "except SystemExit as done: assert not done.code\n"
        "seconds = time.process_time() - begun\n"
        "print(2 * seconds / (before + slowness()), 'torch' in sys.modules)"
    )
    command, times = [sys.executable, "-c", code], []
    while len(times) < 8 and (not times or min(times) >= 5):
        done = subprocess.run(command, cwd=place.root, capture_output=True, text=True, check=True)
        seconds, loaded = done.stdout.split()[-2:]
        assert loaded == "False"
        times.append(float(seconds))
    assert min(times) < 5


def test_the_slurm_profile_is_found_by_its_name_and_understood(place):
    place.study(gpus=4, sizes={"m": STUDY["sizes"]["m"]}, axes={"size": ["m"]})
    done = place.snakemake("-n", "-p", "--profile", "slurm")
    assert done.stdout.count("gpu=4,") == 3  # two cells and a branch
    # Two checks of kernels, a calibration, an evaluation and two sweeps take one.
    assert done.stdout.count("gpu=1,") == 6
    assert done.stdout.count("slurm_extra=--signal=TERM@600") == 3
    assert done.stdout.count("nodes=1, ") == 5  # those that may have several GPUs
