"""Lightning's own loggers: TensorBoard, CSV, W&B and MLflow get the numbers of each row of a log.

They mirror the log, which stays the data of a run, and can never stop a run: an error of one of
them is one warning, after which it gets no more rows.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning.pytorch import loggers
from lightning.pytorch.loggers import Logger

from lmscaling.records.run import Row

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
        places: dict[str, dict[str, Any]] = {
            "wandb": {"save_dir": folder, "name": run, "id": run},
            "mlflow": {"save_dir": str(folder / "mlruns"), "run_name": run},
        }
        files = {"save_dir": folder, "name": run, "version": attempt}
        self._loggers: dict[str, Logger] = {}
        for name, options in wanted.items():
            with self._harmless(name):
                kind = getattr(loggers, KINDS[name])
                self._loggers[name] = kind(**{**places.get(name, files), **options})

    def write(self, row: Row) -> None:
        """Pass the numbers of a row on."""
        values: dict[str, float] = {
            k: v for k, v in asdict(row).items() if isinstance(v, int | float)
        }
        for name, logger in list(self._loggers.items()):
            with self._harmless(name):
                logger.log_metrics(values, step=int(values["update"]))

    def close(self) -> None:
        """Write what is left."""
        for name, logger in list(self._loggers.items()):
            with self._harmless(name):
                logger.save()
                logger.finalize("success")

    @contextmanager
    def _harmless(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._loggers.pop(name, None)
            reason = str(error).strip().partition("\n")[0]
            print(f"logger {name} gets no more rows: {reason}", file=sys.stderr, flush=True)
