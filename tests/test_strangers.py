"""Three attentions of strangers, one file each, from plan to report; and a file that goes again."""

import json
import re
import shutil

import pytest
import strangers
from conftest import ROOT, refused
from product import product, trained

from lmscaling.config import grid
from lmscaling.errors import UserError
from lmscaling.store.build import connect

NAMES = list(strangers.RIGHT)
FIGURES = ("multiplier", "speed_up", "decode_time", "best_context")
STUDY = {
    "axes": {
        "attention": ["softmax", *NAMES],
        "size": ["s"],
        "context": [16, 32],
        "seed": [0],
        "lr_scale": [1.0],
    },
    "calibrate": {"attention": "gate", "context": 16},
    "branches": None,
    "evaluate": {"attention": NAMES, "context": 16, "datasets": ["lines"]},
    "speed": {
        "timeout_seconds": 60,
        "repeats": 3,
        "target_seconds": 0.01,
        "time_step": {
            "sizes": ["s"],
            "contexts": [16, 32],
            "implementations": ["softmax/flash", *NAMES],
        },
        "time_decode": {
            "sizes": ["s"],
            "contexts": [16],
            "attentions": ["softmax", *NAMES],
            "batches": [1],
        },
    },
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The product with the three files in it and their study done."""
    made = product(tmp_path_factory.mktemp("strangers"))
    for name in FIGURES:
        file = f"src/lmscaling/figures/{name}.py"
        shutil.copy2(ROOT / file, made.root / file)
    for name, text in strangers.RIGHT.items():
        (made.root / "src/lmscaling/attention" / f"{name}.py").write_text(text)
    made.study(**STUDY)
    made.snakemake("--cores", "2")
    return made


@pytest.mark.ci
def test_every_cell_of_a_stranger_is_trained_calibrated_and_evaluated(place):
    runs = [json.loads(p.read_text()) for p in place.results.glob("runs/*/run.json")]
    assert {(r["cell"]["attention"], r["status"]) for r in runs} == {
        (name, "done") for name in ("softmax", *NAMES)
    }
    assert all(r["flops_per_token"] > 0 and r["state_bytes"] > 0 and r["code"] for r in runs)
    assert len(list(place.results.glob("calibrations/gate-*.json"))) == 1
    assert len(list(place.results.glob("evaluations/*"))) == len(NAMES)


@pytest.mark.ci
def test_figures_tables_and_crossings_compare_it_with_every_other(place):
    with connect(place.results / "store") as db:
        query = "SELECT DISTINCT challenger, baseline FROM crossings WHERE kind = 'time_step'"
        pairs = set(db.sql(query).fetchall())
        assert {(name, "softmax fused") for name in NAMES} < pairs
        assert ("window", "gate") in pairs
        methods = db.sql("SELECT DISTINCT method FROM speeds WHERE kind = 'time_decode'").fetchall()
    assert {m for (m,) in methods} == {"softmax", *NAMES}
    text = (place.results / "report.html").read_text()
    assert "has no state" in text
    assert "never tuned" in text
    for one, other in (("window", "softmax"), ("gate", "window"), ("feature_map", "gate")):
        either = {(one, other), (other, one)}
        rows = re.findall(r"<td[^>]*>(\w+)</td>\s*<td[^>]*>(\w+)</td>\s*<td[^>]*>s</td>", text)
        assert either & set(rows), f"{one} and {other} are not compared"


@pytest.mark.ci
def test_without_its_file_a_variant_is_an_unknown_name_and_its_results_stay(place):
    path = place.root / "src/lmscaling/attention/gate.py"
    text = path.read_text()
    path.unlink()
    try:
        done = place.snakemake("-n", check=False)
        assert done.returncode == 1
        assert "'gate'" in done.stdout + done.stderr
        axes = {**STUDY["axes"], "attention": ["softmax", "window"]}
        place.study(axes=axes, speed=None, calibrate=None, evaluate=None)
        assert trained(place.plan()) == []
    finally:
        path.write_text(text)
    assert len(list(place.results.glob("runs/gate-*"))) == 2


def test_nothing_but_its_file_makes_a_variant_known(tmp_path, values):
    values["axes"]["attention"] = ["softmax", "mine"]
    with strangers.copied(tmp_path) as copy:
        path = copy.write("mine", strangers.GATE)
        made = grid.expand(values)
        assert [c.attention for c in made.cells.values()] == ["softmax", "mine"]
        path.unlink()
        with refused(UserError, "'mine'", "attention/"):
            grid.expand(values)
