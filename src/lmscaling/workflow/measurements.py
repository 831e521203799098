"""What the rules ask that measure: a device before runs, final weights, and the speed study."""

import shlex
from pathlib import Path

from lmscaling.config import sweeps
from lmscaling.config.grid import Grid
from lmscaling.types import digest
from lmscaling.workflow.runs import Runs, Wildcards


class Devices:
    """What is measured before a run: checks of its kernels, and the fastest way to train."""

    def __init__(self, grid: Grid, runs: Runs) -> None:
        self.results, self.checked, self.calibrated = runs.results, grid.checked, runs.calibrated

    def cell(self, wildcards: Wildcards) -> str:
        """The cell of a check, ``checks/<check>.json``, that has the same kernels as others."""
        return f"{self.results}/cells/{self.checked[wildcards.check].run}.json"

    def calibrated_cell(self, wildcards: Wildcards) -> str:
        return f"{self.results}/cells/{self.calibrated[wildcards.calibration].run}.json"

    def inputs(self, wildcards: Wildcards) -> list[str]:
        """Before a calibration: the record of the study, which writes cells, and their check."""
        cell = self.calibrated[wildcards.calibration]
        checks = [f"{self.results}/checks/{cell.check}.json"] if cell.gpus else []
        return [f"{self.results}/study.json", *checks]

    def gpus(self, wildcards: Wildcards) -> int:
        return min(1, self.calibrated[wildcards.calibration].gpus)


class Evaluations:
    """Finished runs on texts, ``evaluations/<run>/<text>.jsonl``, and the images that they draw,
    ``samples/<run>.json``."""

    def __init__(self, grid: Grid, runs: Runs) -> None:
        self.runs, results = runs, runs.results
        named = grid.study.evaluate.datasets if grid.study.evaluate else []
        texts = [text for text, corpus in grid.corpora.items() if corpus.dataset in named]
        self.paths = [
            f"{results}/evaluations/{run}/{text}.jsonl" for run in grid.evaluated for text in texts
        ]
        self.images = [f"{results}/samples/{run}.json" for run in grid.drawing]

    def inputs(self, wildcards: Wildcards) -> list[str]:
        return [self.runs.output(wildcards.run), self._manifest(wildcards)]

    def words(self, wildcards: Wildcards) -> str:
        """Arguments of ``evaluate`` and ``draw-images`` but their output."""
        run = f"{self.runs.results}/runs/{wildcards.run}"
        return shlex.join([run, "--manifest", self._manifest(wildcards)])

    def gpus(self, wildcards: Wildcards) -> int:
        return min(1, self.runs.cell(wildcards.run).gpus)

    def _manifest(self, wildcards: Wildcards) -> str:
        """The manifest of a text; of images, that of the run's own."""
        text = wildcards.get("text") or self.runs.cell(wildcards.run).data.folder
        return f"{self.runs.results}/tokens/{text}/manifest.json"


class Sweeps:
    """Sweeps of the speed study by their folder ``<kind>/<name>-<hash>``."""

    kinds = sweeps.KINDS
    """A rule for each."""

    def __init__(self, grid: Grid) -> None:
        self.results, self.names = grid.results, sweeps.expand(grid.study)
        self.paths = [f"{self.results}/speed/{sweep}/sweep.json" for sweep in self.names]
        kernels = sweeps.kernels(grid.study)
        name = f"kernels-{digest({'names': kernels})}"
        self.checks = [f"{self.results}/speed/{name}.json"] if kernels else []
        """The check of the kernels that are timed; none on a CPU."""

    def are_settled(self, wildcards: Wildcards) -> bool:
        """Whether every point of a sweep is settled."""
        folder = Path(self.results, "speed", wildcards.sweep)
        return not sweeps.is_pending(folder, self.names[wildcards.sweep])

    def gpus(self, wildcards: Wildcards) -> int:
        return self.names[wildcards.sweep].gpus

    def inputs(self, wildcards: Wildcards) -> list[str]:
        """The record of the study, with which sweeps are written, and what is measured before."""
        return [f"{self.results}/study.json", *self.checks]

    def options(self, wildcards: Wildcards) -> str:
        return f"--checks {shlex.quote(self.checks[0])}" if self.checks else ""
