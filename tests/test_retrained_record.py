"""A recorded run is trained again, by today's code, and has its recorded losses bit for bit.

CPUs of two makers add the products of a matrix in different orders, so the record is compared on a
CPU like its own: an Intel Xeon, by commit 6fc5fb38.
"""

import json

import pytest
from conftest import ROOT
from test_train import trained

from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.data import shards
from lmscaling.data.rows import Corpus, Tokenizer, of_cell
from lmscaling.data.tokenize import tokenize
from lmscaling.runtime import environment

RUN = "recall-softmax-r32-ctx65-s0-77d25dd5"
FOLDER = ROOT / "tests" / "records" / RUN
EVERY = 10
"""Of how many updates one is kept."""


def manifest_of(cell, folder):
    """The sequences of a task, made again."""
    source = of_cell(cell.data.source)
    assert source
    row = Tokenizer(encoding="bytes")
    corpus = Corpus(dataset="recall", source=source, tokenizer="bytes", encoding=row)
    for split in ("train", "validation"):
        tokenize(corpus, split, 0, folder / f"{split}-00000.bin")
    shards.write_manifest(folder / "manifest.json", {"train": 1, "validation": 1})
    return folder / "manifest.json"


def shortened(row):
    """A line of a log as the record keeps it: seven digits, and only some updates; else empty."""
    values = json.loads(row)
    if values["record"] != "update":
        return row
    if values["update"] % EVERY:
        return ""
    return json.dumps(
        {k: float(f"{v:.7g}") if isinstance(v, float) else v for k, v in values.items()}
    )


def numbers(rows):
    """What must be equal: losses, norms of gradients and accuracies."""
    keys = "record", "update", "train_loss", "grad_norm", "val_loss", "groups", "layer_grad_norms"
    rows = (json.loads(row) for row in rows if row)
    return [{key: row[key] for key in keys if key in row} for row in rows if "update" in row]


@pytest.mark.slow  # a name of a device may stand for several CPUs
def test_a_recorded_run_has_its_losses_again_bit_for_bit(tmp_path):
    record = json.loads((FOLDER / "run.json").read_text())
    then, now = record["environment"], environment.describe(0)
    for key in ("device", "threads", "versions"):
        if then[key] != now[key]:
            pytest.skip(f"the record has {key} {then[key]}, and this process {now[key]}")
    cell, way = checked(Cell, record["cell"], "cell"), record["calibration"]
    manifest = manifest_of(cell, tmp_path / cell.data.folder)
    made, log = trained(tmp_path, cell, manifest, **way)
    assert made.data == record["data"]
    again = [shortened(row) for row in log.open()]
    recorded = numbers((FOLDER / "log.jsonl").open())
    assert sum("train_loss" in row for row in recorded) == 600 // EVERY
    assert sum("val_loss" in row for row in recorded) == 6
    assert numbers(again) == recorded
