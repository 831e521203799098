"""Brings the workflow, the studies and the published numbers into the wheel.

A checkout has them where people look for a Snakemake workflow. A wheel has the same files, in the
same places, in ``lmscaling/project/``. The wheel and the source distribution also name the commit
that they were built from.
"""

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent

PROJECT = (
    "workflow/**/*",
    "profiles/*/config.yaml",
    "config/*",
    "results/published/*.csv",
    "results/published/README.md",
)
"""Files of ``lmscaling/project/``."""

COMMIT = "git_commit"


def project_files() -> list[str]:
    """The files of ``PROJECT``; of a repository those that are under version control."""
    files = {p for pattern in PROJECT for p in ROOT.glob(pattern) if p.is_file()}
    names = {path.relative_to(ROOT).as_posix() for path in files}
    tracked = git("ls-files").splitlines()
    return sorted(names.intersection(tracked) if tracked else names)


def commit() -> str:
    """The commit of the sources, with ``+`` if they differ from it; empty if it is unknown."""
    if (ROOT / COMMIT).is_file():  # a source distribution
        return (ROOT / COMMIT).read_text()
    return git("describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*")


def git(*words: str) -> str:
    """What git says of this folder; empty if it is no repository."""
    if not (ROOT / ".git").exists():
        return ""
    done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


class BuildWithProject(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib, "lmscaling", "project")
        shutil.rmtree(folder, ignore_errors=True)
        for name in project_files():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)  # with its mode, for a program
        (folder / COMMIT).write_text(commit())

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *project_files()]


class SourceWithCommit(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        Path(base_dir, COMMIT).write_text(commit())


setup(cmdclass={"build_py": BuildWithProject, "sdist": SourceWithCommit})
