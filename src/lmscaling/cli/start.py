"""Verbs to begin with: a folder for a study of your own, and the demo."""

import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import yaml

from lmscaling import files, registry
from lmscaling.cli.verb import argument, verb
from lmscaling.errors import UserError

STUDY = registry.PROJECT / "config" / "my_attention.yaml"
"""The study that ``new`` copies; its name is in the other templates, too."""

OWN = Path(__file__).parent / "new_study"
"""Files that only a folder of studies has."""

PROFILES = "profiles/default/config.yaml", "profiles/slurm/config.yaml"
CONFIG = "config/study.yaml", "config/study.schema.json"
FILES = "Snakefile", *PROFILES, *CONFIG, "attention/mine.py", "README.md"
"""What a folder of studies has, beside its studies: of ``OWN``, else of the package."""


@verb(argument("name", "name of the study; its results are in results/<name>/"))
def new(args: Namespace) -> str:
    """Write a study of your own into this folder, and what it needs to run."""
    from lmscaling.store import published

    study = Path("config", f"{args.name}.yaml")
    _check(args.name, study)
    own = {name: OWN / Path(name).name for name in FILES}
    sources = {name: p if p.is_file() else registry.PROJECT / name for name, p in own.items()}
    sources[str(study)] = STUDY
    missing = {name: path for name, path in sources.items() if not Path(name).exists()}
    for name, path in missing.items():
        files.write_text(Path(name), path.read_text().replace(STUDY.stem, args.name))
    if not Path("slurm").exists():
        Path("slurm").symlink_to("profiles/slurm")  # for `snakemake --profile slurm`
    published.lay_out(Path("results"))
    return f"new: {', '.join(missing)}\nnext: snakemake -n --configfile {study}"


def _check(name: str, study: Path) -> None:
    """Refuse a name that cannot be that of a new study, before anything is written.

    Raises:
        UserError: The file exists, the package has a study of this name, or it is no legal name.
    """
    from lmscaling.config import grid, study_file

    if study.exists():
        raise UserError(f"{study} exists and stays as it is; type lmscaling new with another name")
    base = [registry.project_file("config/study.yaml")]
    grid.expand(study_file.read_study(base, yaml.safe_load(STUDY.read_text()) | {"study": name}))
    is_taken = STUDY.with_stem(name).is_file()
    if is_taken or yaml.safe_load(name) != name:
        reason = "is a study of the package" if is_taken else "is no text in YAML"
        raise UserError(f"{name} {reason}; type lmscaling new with another name, such as my_{name}")


@verb()
def demo(args: Namespace) -> str:
    """Train tiny models on this CPU and draw every figure, in results/demo/."""
    words = ["-m", "snakemake", "--snakefile", registry.PROJECT / "workflow/Snakefile"]
    words += ["--workflow-profile", registry.PROJECT / "profiles/default"]
    words += ["--configfile", registry.PROJECT / "config/demo.yaml", "--cores", "all"]
    process = subprocess.Popen([sys.executable, *words])
    # Snakemake gets Ctrl-C from the terminal and ends by itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    if process.wait():
        raise UserError(
            "the demo failed; the logs of its jobs are in results/demo/logs/; to go on, type "
            "lmscaling demo again"
        )
    return f"report: {Path('results/demo/report.html').absolute()}"
