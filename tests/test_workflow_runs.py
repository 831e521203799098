"""The real workflow: one small study is trained for real, then changed and completed."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import strangers
from product import FIGURES, MORE, Place, documents, product
from slurm_cluster import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.ci

CELLS = ("softmax-s-ctx16-s0", "linear-s-ctx16-s0", "linear-s-ctx16-s0-b0.5")
DRAWN = ("learning_curves", "context_scaling", "loss_by_position")
FIRST = dict.fromkeys(CELLS, "done")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The product with both cells of the study trained and all figures drawn."""
    place = product(tmp_path_factory.mktemp("product"))
    place.snakemake("--cores", "2")
    return place


@pytest.fixture
def place(done: Place, tmp_path: Path) -> Place:
    """A copy of the trained product that a test may change."""
    return done.copy(tmp_path / "copy")


def records(place):
    found = [json.loads(p.read_text()) for p in place.results.glob("runs/*/run.json")]
    return {r["name"]: r["status"] for r in found}


def test_one_command_leaves_everything_that_is_promised_and_nothing_to_do(done):
    figures = [f"figures/{name}.{kind}" for name in DRAWN for kind in ("svg", "png", "csv")]
    for name in ("study.json", "report.html", "store/store.duckdb", *figures):
        assert (done.results / name).stat().st_size > 0, name
    assert records(done) == FIRST
    (path,) = done.results.glob("evaluations/*/*")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    log = (done.results / "runs" / path.parent.name / "log.jsonl").read_text().splitlines()
    last = json.loads(log[-2])
    for axis in ("sequence", "document"):
        bins = [row for row in rows if row["axis"] == axis]
        mean = sum(b["tokens"] * b["loss"] for b in bins) / last["val_tokens"]
        assert mean == pytest.approx(last["val_loss"], rel=1e-5)
    assert {p.name for p in (done.root / "results").iterdir()} == {"tiny", "published"}
    assert done.plan() == []


def test_every_point_of_the_speed_study_is_measured_by_its_rule(done):
    points = {
        f"{kind}/{path.stem}": json.loads(path.read_text())
        for kind in ("tune_chunk", "time_step")
        for path in done.results.glob(f"speed/{kind}/s-????????/*.json")
    }
    tuned = points.pop("tune_chunk/sweep")
    del points["time_step/sweep"]
    assert {name: point["status"] for name, point in points.items()} == dict.fromkeys(
        ("tune_chunk/linear.chunked-c16-b1-ctx16", "tune_chunk/linear.chunked-c8-b1-ctx16",
         "time_step/linear.chunked-b1-ctx16", "time_step/softmax-b1-ctx16"), "done",
    )  # fmt: skip
    (chunk,) = tuned["fastest"]["linear/chunked"].values()
    assert points["time_step/linear.chunked-b1-ctx16"]["chunk"] == chunk


def test_what_is_added_is_computed_and_what_is_reset_again_and_the_rest_stays(place):
    """A text, a share and contexts of the speed study are added; a cell is reset."""
    place.study(**MORE)
    place.append("src/lmscaling/figures/shared/curves.py", "# edited\n")
    (reset,) = place.results.glob("runs/softmax-s-ctx16-s0-????????/run.json")
    before = reset.read_bytes()
    place.lmscaling("reset", "softmax-s-ctx16-s0")
    kept = {
        p: p.read_bytes()
        for pattern in ("speed/*/*/*ctx16.json", "runs/linear*/run.json", "attic/*/runs/*/run.json")
        for p in place.results.glob(pattern)
    }
    assert before in kept.values()
    place.snakemake("--cores", "2")
    assert {p: p.read_bytes() for p in kept} == kept
    assert reset.read_bytes() != before
    assert records(place) == FIRST | {"linear-s-ctx16-s0-b0.75": "no_trunk"}
    assert len(list(place.results.glob("speed/*/*/*ctx32.json"))) == 4
    assert len(list(place.results.glob("evaluations/*/other-*.jsonl"))) == 1
    assert not list(place.results.glob("tokens/other-*/train-*"))
    assert place.plan() == []


def test_an_edited_helper_draws_its_figures_and_one_that_fails_holds_up_no_other(place):
    drawn = place.results / "figures/drawn.json"
    before = json.loads(drawn.read_text())
    place.append("src/lmscaling/figures/shared/curves.py", "# edited\n")
    place.edit("src/lmscaling/figures/context_scaling.py", "QUERY =", "QUERY = 'SELECT' #")
    failed = place.snakemake("--cores", "2", check=False)
    assert failed.returncode == 1
    assert "context_scaling (" in failed.stdout + failed.stderr
    log = (place.results / "logs/draw.log").read_text()
    assert "Traceback" in log
    after = json.loads(drawn.read_text())
    assert before.keys() == after.keys() == FIGURES
    assert {name for name in after if after[name] != before[name]} == {"learning_curves"}
    assert (place.results / "figures/context_scaling.svg").is_file()


def test_an_attention_that_looks_ahead_is_not_trained_and_the_rest_goes_on(place):
    leaks = strangers.file(more=strangers.COUNTED).replace("triu(1)", "triu(2)")
    (place.package / "attention/mine.py").write_text(leaks)
    place.study(axes={"attention": ["softmax", "linear", "mine"], "seed": [0, 1]}, branches=None)
    done = place.snakemake("--cores", "1", "--keep-going", check=False)
    assert done.returncode == 1
    said = "attention mine looks ahead"
    assert said in done.stdout + done.stderr
    assert said in place.lmscaling("status", "results/tiny", "--failed").stdout
    assert not list(place.results.glob("scratch/mine-*/*"))
    assert records(place) == FIRST | {"softmax-s-ctx16-s1": "done", "linear-s-ctx16-s1": "done"}


@pytest.mark.race
def test_figures_draw_what_exists_beside_a_running_workflow_and_train_nothing(place):
    place.study(axes={"size": ["m"]}, budget="60 minutes")
    documents(place.root, a=100_000)
    for folder in ("tokens", "figures", "store"):
        shutil.rmtree(place.results / folder)
    log = (place.root / "log").open("w")
    process = place.start("--cores", "1", stdout=log, stderr=log, start_new_session=True)

    def trains():
        assert process.poll() is None, (place.root / "log").read_text()
        logs = place.results.glob("scratch/*-m-*/attempt-*")
        locks = place.results.glob("scratch/*-m-*/lock")
        return next(locks, None) if any(p.stat().st_size > 2000 for p in logs) else None

    try:
        pid = json.loads(eventually(trains, "updates").read_text())["pid"]
        os.kill(pid, signal.SIGSTOP)  # so that it is not over before the figures are drawn
        assert place.plan("figures") == []  # it declares no output
        place.snakemake("--", "figures")
        counts = re.findall(r"Of \d+ cells: [^.]*", (place.results / "report.html").read_text())
        assert counts[0].split(": ")[1].split(", ") == ["1 running", "1 pending"]
        assert (place.results / "figures" / "learning_curves.svg").is_file()
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)
    # Killed in the middle: nothing is finished, and what was finished before still is.
    assert records(place) == FIRST
