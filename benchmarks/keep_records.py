"""Copy the records of a study into a folder that git keeps, and shorten the numbers of its logs.

    python benchmarks/keep_records.py results/cpu results/measured/cpu-python --every 2
    python benchmarks/keep_records.py results/cpu_rates results/measured/cpu-python-rates --every 10
    python benchmarks/keep_records.py results/cpu_english results/measured/cpu-english --every 2
    python benchmarks/keep_records.py results/measured/cpu-python results/cpu --restore

Cells, tokens, weights, the store and pictures are left out: the study makes them again. So is the
source that trained the runs: their records name its commit. In the copied logs the numbers of an
update have seven digits, and with ``--every N`` only every Nth update is kept. Validations, norms
and records are copied as they are. ``thinned.json`` says what was done.

``--restore`` puts the records back, so that a study that is not finished goes on: Snakemake trains
no run that has a record.
"""

import argparse
import json
import shutil
from pathlib import Path

from lmscaling.files import replacing, write_json

RECORDS = (
    "study.json", "checks/*.json", "runs/*/run.json", "evaluations/*/*.jsonl", "samples/*.json",
    "forecasts/*.json",
)  # fmt: skip
"""In this order: an evaluation or a sample that is older than the record of its run is repeated."""
LOGS = "runs/*/log.jsonl"
DIGITS = 7
"""Significant digits, those of a 32-bit float."""


def copy(study: Path, out: Path, every: int | None) -> int:
    """Copy the records of finished runs, and return how many runs have been copied.

    Args:
        study: ``results/<study>``.
        out: The folder to write; what it has is replaced file by file.
        every: Of the updates only those whose number is a multiple of it are kept; None copies
            logs as they are.
    """
    for path in (path for pattern in RECORDS for path in study.glob(pattern)):
        _copy(path, out / path.relative_to(study))
    logs = [path for path in study.glob(LOGS) if path.with_name("run.json").is_file()]
    for path in logs:
        target = out / path.relative_to(study)
        if every is None:
            _copy(path, target)
        else:
            with path.open() as rows, replacing(target) as file:
                file.writelines(shortened(row, every).encode() for row in rows)
    if every is not None:
        kept = "all" if every == 1 else f"every {every}"
        said = {"digits_of_updates": DIGITS, "updates_kept": kept}
        write_json(out / "thinned.json", said)
    return len(logs)


def shortened(row: str, every: int) -> str:
    """A line of a log as it is kept; empty if it is left out."""
    values = json.loads(row)
    if values["record"] != "update":
        return row
    if values["update"] % every:
        return ""
    short = {k: float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v for k, v in values.items()}
    return json.dumps(short) + "\n"


def _copy(path: Path, target: Path) -> None:
    if not target.is_file() or target.read_bytes() != path.read_bytes():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="keep every Nth update")
    parser.add_argument("--restore", action="store_true", help="copy logs as they are")
    args = parser.parse_args()
    runs = copy(args.study, args.out, None if args.restore else args.every)
    print(f"{args.out}: {runs} runs")


if __name__ == "__main__":
    main()
