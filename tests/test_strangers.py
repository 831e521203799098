"""Three attentions of strangers, one file each, from plan to report; and a file that goes again."""

import json
import re
import shutil

import pytest
import strangers
from conftest import ROOT
from product import product, trained

from lmscaling.store.build import connect

pytestmark = pytest.mark.ci

NAMES = list(strangers.RIGHT)
FIGURES = ("multiplier", "speed_up", "decode_time", "best_context")
AXES = {"size": ["s"], "seed": [0], "lr_scale": [1.0]}
STUDY = {
    "axes": AXES | {"attention": ["softmax", *NAMES], "context": [16, 32]},
    "calibrate": {"attention": "gate", "context": 16},
    "branches": None,
    "evaluate": {"attention": NAMES, "context": 16, "datasets": ["lines"]},
    "speed": {
        "timeout_seconds": 60, "repeats": 3, "target_seconds": 0.01,
        "time_step": {
            "sizes": ["s"], "contexts": [16, 32], "implementations": ["softmax/flash", *NAMES],
        },
        "time_decode": {
            "sizes": ["s"], "contexts": [16], "attentions": ["softmax", *NAMES], "batches": [1],
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The product with the three files in it and their study done."""
    made = product(tmp_path_factory.mktemp("strangers"))
    for name in FIGURES:
        shutil.copy2(ROOT / "src/lmscaling/figures" / f"{name}.py", made.package / "figures")
    for name, text in strangers.RIGHT.items():
        (made.package / "attention" / f"{name}.py").write_text(text)
    made.study(**STUDY)
    made.snakemake("--cores", "2")
    return made


def test_strangers_are_trained_calibrated_evaluated_and_compared_with_every_other(place):
    runs = [json.loads(p.read_text()) for p in place.results.glob("runs/*/run.json")]
    every = {"softmax", *NAMES}
    assert {(r["cell"]["attention"], r["status"]) for r in runs} == {(n, "done") for n in every}
    assert all(r["flops_per_token"] > 0 and r["state_bytes"] > 0 and r["code"] for r in runs)
    assert len(list(place.results.glob("calibrations/gate-*.json"))) == 1
    assert len(list(place.results.glob("evaluations/*"))) == len(NAMES)
    with connect(place.results / "store") as db:
        query = "SELECT DISTINCT challenger, baseline FROM crossings WHERE kind = 'time_step'"
        pairs = set(db.sql(query).fetchall())
        methods = db.sql("SELECT DISTINCT method FROM speeds WHERE kind = 'time_decode'").fetchall()
    assert {(name, "softmax fused") for name in NAMES} | {("window", "gate")} <= pairs
    assert {m for (m,) in methods} == every
    text = (place.results / "report.html").read_text()
    assert "has no state" in text
    assert "never tuned" in text
    rows = re.findall(r"<td[^>]*>(\w+)</td>\s*<td[^>]*>(\w+)</td>\s*<td[^>]*>s</td>", text)
    for one, other in (("window", "softmax"), ("gate", "window"), ("feature_map", "gate")):
        assert {(one, other), (other, one)} & {*rows}, f"{one} and {other} are not compared"


def test_without_its_file_a_variant_is_an_unknown_name_and_its_results_stay(place):
    (place.package / "attention/gate.py").unlink()
    done = place.snakemake("-n", check=False)
    assert done.returncode == 1
    assert "'gate'" in done.stdout + done.stderr
    axes = {"attention": ["softmax", "window"]}
    place.study(axes=axes, speed=None, calibrate=None, evaluate=None)
    assert trained(place.plan()) == []
    assert len(list(place.results.glob("runs/gate-*"))) == 2
