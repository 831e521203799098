"""The real workflow: one small study is trained for real, then changed and completed."""

import json
import os
import re
import shutil
import signal

import pytest
import strangers
from conftest import ROOT
from product import CURVES, FIGURES, MORE, Place, documents, product
from slurm_cluster import PATIENCE_SECONDS, eventually

from lmscaling.store.build import connect

pytestmark = pytest.mark.ci

CELLS = ("softmax-s-ctx16-s0", "linear-s-ctx16-s0", "linear-s-ctx16-s0-b0.5")
DRAWN = ("learning_curves", "context_scaling", "loss_by_position")
FIRST = dict.fromkeys(CELLS, "done")


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Place:
    place = product(tmp_path_factory.mktemp("product"))
    place.snakemake("--cores", "2")
    return place


@pytest.fixture
def place(done, tmp_path) -> Place:
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
        bins = [row for row in rows if row.get("axis") == axis]
        mean = sum(b["tokens"] * b["loss"] for b in bins) / last["val_tokens"]
        assert mean == pytest.approx(last["val_loss"], rel=1e-5)
    assert {p.name for p in (done.root / "results").iterdir()} == {"tiny", "published"}
    assert done.plan() == []
    # Every point of the speed study is measured by its rule.
    found = {
        f"{path.parts[-3]}/{path.stem}": json.loads(path.read_text())
        for path in done.results.glob("speed/*/s-????????/*.json")
    }
    names = [f"time_step/linear.chunked-c{chunk}-b1-ctx16" for chunk in (8, 16)]
    names.append("time_step/softmax-b1-ctx16")
    assert {found[name]["status"] for name in names} == {"done"}
    assert found.keys() == {*names, "time_step/sweep"}


def test_what_is_added_is_computed_and_what_is_reset_again_and_the_rest_stays(place):
    place.study(**MORE)
    place.append("src/lmscaling/figures/learning_curves.py", "# edited\n")
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
    assert len(list(place.results.glob("speed/*/*/*ctx32.json"))) == 3
    assert len(list(place.results.glob("evaluations/*/other-*.jsonl"))) == 1
    assert not list(place.results.glob("tokens/other-*/train-*"))
    assert place.plan() == []


def test_an_edited_helper_draws_its_figures_and_one_that_fails_holds_up_no_other(place):
    drawn = place.results / "figures/drawn.json"
    before = json.loads(drawn.read_text())
    place.append("src/lmscaling/figures/learning_curves.py", "# edited\n")
    place.edit("src/lmscaling/figures/throughput.py", "QUERY =", "QUERY = 'SELECT' or")
    failed = place.snakemake("--cores", "2", check=False)
    assert failed.returncode == 1
    assert "throughput (" in failed.stdout + failed.stderr
    assert "Traceback" in (place.results / "logs/draw.log").read_text()
    after = json.loads(drawn.read_text())
    assert before.keys() == after.keys() == FIGURES
    assert {name for name in after if after[name] != before[name]} == CURVES
    assert (place.results / "figures/throughput.svg").is_file()


def test_an_attention_that_looks_ahead_is_not_trained_and_the_rest_goes_on(place):
    leaks = strangers.file(more=strangers.COUNTED).replace("triu(1)", "triu(2)")
    (place.package / "attention/mine.py").write_text(leaks)
    place.study(axes={"attention": ["softmax", "linear", "mine"], "seed": [0, 1]}, branches=None)
    done = place.snakemake("--cores", "1", "--keep-going", check=False)
    assert done.returncode == 1
    status = place.lmscaling("status", "results/tiny", "--failed")
    for said in (done.stdout + done.stderr, status):
        assert "attention mine looks ahead" in said
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
        place.snakemake("--cores", "1", "--", "figures")
        counts = re.findall(r"Of \d+ cells: [^.]*", (place.results / "report.html").read_text())
        assert counts[0].split(": ")[1].split(", ") == ["1 running", "1 pending"]
        assert (place.results / "figures" / "learning_curves.svg").is_file()
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
        process.wait(PATIENCE_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    # Killed in the middle: nothing is finished, and what was finished before still is.
    assert records(place) == FIRST


NAMES = list(strangers.RIGHT)
EVERY = ["softmax", *NAMES]
TIMED = ["softmax/flash", *NAMES]
AXES = {"size": ["s"], "seed": [0], "lr_scale": [1.0], "attention": EVERY, "context": [16, 32]}
OF_STRANGERS = {
    "axes": AXES,
    "calibrate": {"attention": "gate", "context": 16},
    "branches": None,
    "evaluate": {"attention": NAMES, "context": 16, "datasets": ["lines"]},
    "speed": {
        "timeout_seconds": 60, "repeats": 3, "target_seconds": 0.01,
        "time_step": [{"sizes": ["s"], "contexts": [16, 32], "implementations": TIMED}],
        "time_decode": {"sizes": ["s"], "contexts": [16], "attentions": EVERY, "batches": [1]},
    },
}  # fmt: skip


def test_three_strangers_are_trained_calibrated_evaluated_and_compared_with_every_other(tmp_path):
    made = product(tmp_path / "product")
    for name in ("multiplier", "speed_table", "best_context"):
        shutil.copy2(ROOT / "src/lmscaling/figures" / f"{name}.py", made.package / "figures")
    for name, text in strangers.RIGHT.items():
        (made.package / "attention" / f"{name}.py").write_text(text)
    made.study(**OF_STRANGERS)
    made.snakemake("--cores", "2")
    results = made.results
    runs = [json.loads(p.read_text()) for p in results.glob("runs/*/run.json")]
    assert {(r["cell"]["attention"], r["status"]) for r in runs} == {(n, "done") for n in EVERY}
    assert all(r["flops_per_token"] > 0 and r["state_bytes"] > 0 and r["code"] for r in runs)
    assert len(list(results.glob("calibrations/gate-*.json"))) == 1
    assert len(list(results.glob("evaluations/*"))) == len(NAMES)
    with connect(results / "store") as db:
        query = "SELECT DISTINCT challenger, baseline FROM crossings WHERE kind = 'time_step'"
        pairs = set(db.sql(query).fetchall())
        methods = db.sql("SELECT DISTINCT method FROM speeds WHERE kind = 'time_decode'").fetchall()
    assert {(name, "softmax fused") for name in NAMES} | {("window", "gate")} <= pairs
    assert {m for (m,) in methods} == {*EVERY}
    text = (results / "report.html").read_text()
    assert "has no state" in text
    assert "one rate" in text
    rows = re.findall(r"<td[^>]*>(\w+)</td>\s*<td[^>]*>(\w+)</td>\s*<td[^>]*>s</td>", text)
    for one, other in (("window", "softmax"), ("gate", "window"), ("feature_map", "gate")):
        assert {(one, other), (other, one)} & {*rows}, f"{one} and {other} are not compared"
