"""Whether what a study has left belongs together and is whole; nothing is believed for its place.

A record must be of the run in whose folder it lies, and its log the one that it states. Weights,
checkpoints, measurements and evaluations are compared with the digests in them, or with what they
say of themselves; the store with the digests that it was built with, and with the present logs.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from lmscaling.errors import UserError
from lmscaling.files import check_tensors, read_json
from lmscaling.records import finished
from lmscaling.store import build

JSON = ("calibrations/*.json", "cells/*.json", "checks/*.json", "code/*.json", "forecasts/*.json",
        "speed/*/*/sweep.json", "study.json")  # fmt: skip
"""Other files of a study that are read again."""

TENSORS = {
    "runs/*/*.safetensors": "copy it again, or type lmscaling reset {}",
    "scratch/*/*.safetensors": "delete it, and the run goes on from the one before",
}
"""Files of tensors, and what to do with a damaged one of a run."""


def problems(study: Path) -> Iterator[str]:
    """A sentence for everything in ``results/<study>/`` that is damaged or belongs elsewhere."""
    for path in build.paths(study, "run"):
        values = finished.look(path)
        if values["status"] == finished.DAMAGED:
            yield values["message"]
    for path in study.glob("runs/*.json"):
        if "-branches-" not in path.name and not (path.with_suffix("") / "run.json").is_file():
            yield f"{path} is the copy of a record that is gone; copy its folder again"
    for pattern, remedy in TENSORS.items():
        for path in sorted(study.glob(pattern)):
            try:
                check_tensors(path)
            except (OSError, ValueError) as error:
                yield f"{path}: {error}; {remedy.format(path.parent.name)}"
    for kind in build.RECORDS.keys() - {"run"}:
        for path in build.paths(study, kind):
            try:
                rows = [known for known, _ in build.read_file(path, kind)]
            except UserError as error:
                yield str(error)
                continue
            sums = defaultdict[tuple[int, str], int](int)
            for row in rows if kind == "evaluation" else ():
                sums[row["context"], row["axis"]] += row["tokens"]
            if len({*sums.values()}) > 1:
                yield f"evaluation record {path} lacks lines; {build.RECORDS[kind][2]}"
    for path in (path for pattern in JSON for path in sorted(study.glob(pattern))):
        try:
            read_json(path, "file")
        except UserError as error:
            yield str(error)
    yield from _of_store(study)


def _of_store(study: Path) -> Iterator[str]:
    """What the store of a study has that its logs do not say; nothing without a store."""
    path = study / "store" / build.CONTENTS
    if not path.parent.is_dir():
        return
    again = f"type lmscaling build-store {study}"
    try:
        built = read_json(path, "list")
    except UserError as error:
        yield f"{error}; {again}"
        return
    now = {"exports": build.exports(path.parent), "sources": build.digests(study)}
    for what, where in (("exports", path.parent), ("sources", study)):
        before = built.get(what, {})
        for name in sorted(before.keys() | now[what].keys()):
            # A run that goes on has a longer log than its store.
            if before.get(name) != now[what].get(name) and not name.startswith("scratch/"):
                yield f"{where}/{name} is not as when the store was built; {again}"
