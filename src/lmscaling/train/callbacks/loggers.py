"""Lightning's own loggers: TensorBoard, CSV, W&B and MLflow get the numbers of each row of a log.

They mirror the log, which stays the data of a run, and can never stop a run: an error of one of
them is one warning, after which it gets no more rows.
"""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning.pytorch import loggers
from lightning.pytorch.loggers import Logger

from lmscaling.records.run import End, Header, Row

KINDS = {
    "csv": "CSVLogger",
    "mlflow": "MLFlowLogger",
    "tensorboard": "TensorBoardLogger",
    "wandb": "WandbLogger",
}


class Mirror:
    """Passes rows on to loggers.

    Args:
        wanted: Options by name of a logger, as ``loggers:`` in a study file.
        folder: Where those write that write files.
        run: Name of the run.
        attempt: Number of the attempt, which has files of its own: CSV and TensorBoard replace
            those that exist.
    """

    def __init__(
        self, wanted: dict[str, dict[str, Any]], folder: Path, run: str, attempt: int
    ) -> None:
        files = {"save_dir": folder, "name": run, "version": attempt}
        places: dict[str, dict[str, Any]] = {
            "wandb": {"save_dir": folder, "name": run, "id": run},
            "mlflow": {"save_dir": str(folder / "mlruns"), "run_name": run},
        }
        self._loggers: dict[str, Logger] = {}

        def create(name: str) -> None:
            options = {**places.get(name, files), **wanted[name]}
            self._loggers[name] = getattr(loggers, KINDS[name])(**options)

        self._each(wanted, create)

    def write(self, row: Row) -> None:
        """Pass the numbers of a row on."""
        if self._loggers and not isinstance(row, Header | End):
            values = {k: float(v) for k, v in asdict(row).items() if isinstance(v, int | float)}
            step = row.update
            self._each(self._loggers, lambda name: self._loggers[name].log_metrics(values, step))

    def close(self) -> None:
        """Write what is left."""
        self._each(self._loggers, lambda name: self._loggers[name].finalize("success"))

    def _each(self, names: dict[str, Any], work: Callable[[str], None]) -> None:
        for name in list(names):
            try:
                work(name)
            except Exception as error:
                self._loggers.pop(name, None)
                reason = str(error).strip().partition("\n")[0]
                print(f"logger {name} gets no more rows: {reason}", file=sys.stderr, flush=True)
