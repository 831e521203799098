"""What the fits say of the 48 runs of the published study, where its numbers are at hand."""

import csv
import gzip
from collections import defaultdict

import numpy as np
import pytest
from conftest import ROOT

from lmscaling.fits import final_loss
from lmscaling.fits.multiplier import Curve

PUBLISHED = ROOT.parent / "shared" / "published"
pytestmark = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="no published numbers here")

Run = tuple[str, str, int]


@pytest.fixture(scope="module")
def curves() -> dict[Run, Curve]:
    rows: dict[Run, list[list[float]]] = defaultdict(list)
    with gzip.open(PUBLISHED / "learning_curves.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            key = (row["attention"], row["params_millions"], int(row["context"]))
            loss = float(row["train_loss"] or "nan")
            rows[key].append([float(row["update"]) + 0.5, float(row["hours"]), loss])
    columns = {key: np.array(run).T for key, run in rows.items()}
    return {key: Curve(u, u, hours, loss) for key, (u, hours, loss) in columns.items()}


@pytest.fixture(scope="module")
def losses() -> dict[Run, float]:
    with open(PUBLISHED / "final_loss.csv") as file:
        return {
            (row["attention"], row["params_millions"], int(row["context"])): float(
                row["final_train_loss"]
            )
            for row in csv.DictReader(file)
        }


def test_ends_of_runs_are_those_published(curves, losses):
    ends = {key: final_loss.fit(curves[key].loss) for key in losses}
    off = [abs(end.loss - losses[key]) for key, end in ends.items() if end.loss is not None]
    assert len(off) > 35
    assert np.median(off) < 0.003
    assert max(off) < 0.02
    assert all(len(np.asarray(curves[key].loss)) < 400 for key in ends if ends[key].loss is None)
