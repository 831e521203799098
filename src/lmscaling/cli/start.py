"""Verbs to begin with: a folder for a study of your own, and the demo."""

import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import yaml

from lmscaling import files, registry
from lmscaling.cli.verb import Verb, argument, verb
from lmscaling.errors import UserError

VERBS: list[Verb] = []

TEMPLATE = "my_attention"
"""The study of the package that ``new`` copies, and its name in the other templates."""

NEW = Path(__file__).parent / "new_study"
"""Files that only ``new`` writes."""

COPIED = (
    "profiles/default/config.yaml",
    "profiles/slurm/config.yaml",
    "config/study.yaml",
    "config/study.schema.json",
)
"""Files of the package that a folder of studies has, too."""


@verb(VERBS, argument("name", help="name of the study; its results are in results/<name>/"))
def new(args: Namespace) -> str:
    """Write a study of your own into this folder, and what it needs to run."""
    from lmscaling.store import published

    study = Path("config", f"{args.name}.yaml")
    _check(args.name, study)
    texts = {Path(name): (registry.PROJECT / name).read_text() for name in COPIED}
    texts |= {
        Path("attention/mine.py"): (NEW / "mine.py").read_text(),
        **{
            Path(name): (NEW / name).read_text().replace(TEMPLATE, args.name)
            for name in ("README.md", "Snakefile")
        },
        study: _template().replace(TEMPLATE, args.name),
    }
    missing = [path for path in texts if not path.exists()]
    for path in missing:
        files.write_text(path, texts[path])
    if not Path("slurm").exists():
        Path("slurm").symlink_to("profiles/slurm")  # for `snakemake --profile slurm`
    published.lay_out(Path("results"))
    return "\n".join(
        [
            f"new: {', '.join(map(str, missing))}",
            f"next: snakemake -n --configfile {study}",
        ]
    )


def _check(name: str, study: Path) -> None:
    """Refuse a name that cannot be that of a new study, before anything is written.

    Raises:
        UserError: The file exists, the package has a study of this name, or it is no legal name.
    """
    from lmscaling.config import grid, study_file

    if study.exists():
        raise UserError(f"{study} exists and stays as it is; type lmscaling new with another name")
    base = [registry.project_file("config/study.yaml")]
    grid.expand(study_file.read_study(base, yaml.safe_load(_template()) | {"study": name}))
    of_package = {path.stem for path in (registry.PROJECT / "config").glob("*.yaml")}
    if name in of_package or yaml.safe_load(name) != name:
        reason = "is a study of the package" if name in of_package else "is no text in YAML"
        raise UserError(f"{name} {reason}; type lmscaling new with another name, such as my_{name}")


def _template() -> str:
    return (registry.PROJECT / "config" / f"{TEMPLATE}.yaml").read_text()


SEALED = "6k"
"""Size of the demo whose losses and times are sealed before it trains: between the others."""


@verb(VERBS)
def demo(args: Namespace) -> str:
    """Train tiny models on this CPU and draw every figure, in results/demo/."""
    from lmscaling.config import grid, study_file

    study = registry.PROJECT / "config/demo.yaml"
    values = study_file.read_study([registry.project_file("config/study.yaml"), study])
    cells = grid.expand(values).cells
    records = {f"results/demo/runs/{run}.json": cell.size for run, cell in cells.items()}
    first = [path for path, size in records.items() if size != SEALED and not Path(path).is_file()]
    options = {
        "--snakefile": registry.PROJECT / "workflow/Snakefile",
        "--workflow-profile": registry.PROJECT / "profiles/default",
        "--configfile": study,
        "--cores": "all",
    }
    workflow = ["snakemake", *(word for option in options.items() for word in option)]
    if first:
        _run_demo([*workflow, "--", *first])
    if not all(Path(path).is_file() for path in records):
        _run_demo(["lmscaling", "forecast", study, "--seal"])
    _run_demo(workflow)
    return f"report: {Path('results/demo/report.html').absolute()}"


def _run_demo(module: list[str | Path]) -> None:
    """Run a module of this Python with arguments.

    Raises:
        UserError: It has failed.
    """
    process = subprocess.Popen([sys.executable, "-m", *module])
    # Snakemake gets Ctrl-C from the terminal and ends by itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    if process.wait():
        raise UserError(
            "the demo failed; the logs of its jobs are in results/demo/logs/; to go on, type "
            "lmscaling demo again"
        )
