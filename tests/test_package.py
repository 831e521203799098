"""The wheel: what it holds, and what it does in a folder that has nothing else of this project."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from lmscaling import __version__

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="it is no repository")

PROJECT = ("workflow/", "profiles/", "config/", "results/published/")
"""What stands in ``lmscaling/project/`` of the wheel as in a checkout."""


def git(folder, *words):
    command = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_all(folder):
    for words in (["init"], ["add", "."], ["commit", "-m", "all"]):
        git(folder, *words)


def built(source, kind, out):
    build = f"from setuptools import build_meta as made; made.build_{kind}({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (path,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


@pytest.fixture(scope="module")
def tracked():
    """Files of this repository, with those that are about to be committed."""
    names = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    return [name for name in names if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


@pytest.fixture(scope="module")
def source(tracked, tmp_path_factory):
    """A repository with what is committed, in which somebody has also worked."""
    folder = tmp_path_factory.mktemp("source")
    for name in tracked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    commit_all(folder)
    (folder / "results/demo").mkdir()
    for name in ("config/secret.yaml", "results/published/extra.csv", "results/demo/report.html"):
        (folder / name).write_text("of a user")
    return folder


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return built(source, "wheel", tmp_path_factory.mktemp("wheel"))


def contents(wheel):
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.mark.ci
def test_the_wheel_holds_the_package_and_what_a_project_needs_and_nothing_else(tracked, wheel):
    expected = {name.removeprefix("src/") for name in tracked if name.startswith("src/")}
    expected |= {f"lmscaling/project/{name}" for name in tracked if name.startswith(PROJECT)}
    expected |= {"lmscaling/project/git_commit"}
    found = contents(wheel)
    assert {name for name in found if ".dist-info/" not in name} == expected
    for name in (
        "workflow/Snakefile",
        "workflow/bin/sbatch",
        "config/demo.yaml",
        "results/published/curves.csv",
    ):
        assert found[f"lmscaling/project/{name}"] == (ROOT / name).read_bytes()
    assert sum(map(len, found.values())) < 3e6


@pytest.mark.ci
def test_the_source_distribution_builds_the_same_wheel(source, wheel, tmp_path):
    with tarfile.open(built(source, "sdist", tmp_path)) as file:
        file.extractall(tmp_path, filter="data")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    again = contents(built(folder, "wheel", tmp_path))
    assert again == contents(wheel)
    assert again["lmscaling/project/git_commit"].decode() == git(source, "rev-parse", "HEAD")
    names = {path.name for path in folder.iterdir()}
    assert {"CITATION.cff", "CHANGELOG.md", "LICENSE", "constraints.txt"} <= names


@pytest.mark.ci
def test_an_installed_wheel_plans_a_study_in_an_empty_folder_with_a_space(wheel, source, tmp_path):
    other, installed = tmp_path / "other", tmp_path / "other" / "site"
    other.mkdir()
    (other / "file").touch()
    commit_all(other)  # the repository of somebody else
    options = ["--quiet", "--no-deps", "--no-compile", "--no-index", "--target"]
    command = [sys.executable, "-m", "pip", "install", *options, installed, wheel]
    subprocess.run(command, check=True, capture_output=True)
    folder = tmp_path / "an empty folder"
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"}

    def type_(*words, check=True):
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert not check or done.returncode == 0, said
        assert str(ROOT) not in said.replace(sys.prefix, "")  # Snakemake says where it is
        return said

    python = (
        "import lmscaling\n"
        "from lmscaling import registry\n"
        "from lmscaling.runtime import commit\n"
        "print(lmscaling.__file__, registry.PROJECT, commit.commit(), sep='\\n')"
    )
    *places, commit = type_(sys.executable, "-c", python).splitlines()
    assert all(Path(place).is_relative_to(installed) for place in places)
    assert commit == git(source, "rev-parse", "HEAD")

    lmscaling = str(installed / "bin" / "lmscaling")
    assert "config/first.yaml" in type_(lmscaling, "new", "first")
    study = folder / "config" / "first.yaml"
    study.write_text(study.read_text().replace("linear] # mine", "linear, mine]"))
    table = type_(lmscaling, "plan", "config/study.yaml", "config/first.yaml")
    assert "mine-25k-ctx64-s0" in table
    asked = (sys.executable, "-m", "snakemake", "--configfile", "config/first.yaml", "-n")
    plan = type_(*asked)
    assert len(re.findall(r"^    output: results/first/runs/mine-25k-ctx", plan, re.MULTILINE)) == 2
    for said in (plan, type_(*asked, "--profile", "slurm"), type_(*asked[:3], "-n")):
        assert set(re.findall(r"^total +(\d+)", said, re.MULTILINE)) == {"16"}
    assert "results/published/claims.json" in type_(lmscaling, "claims", "results/published")
    (folder / "Snakefile").unlink()
    assert "No Snakefile" in type_(*asked, check=False)


def test_the_citation_names_this_version_and_the_study_that_it_follows():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    names = [author["family-names"] for author in cited["references"][0]["authors"]]
    assert (cited["version"], names) == (__version__, ["Buckman", "Gelada"])


def test_the_public_checks_pin_their_actions_may_only_read_and_know_every_python():
    checks = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert checks["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in checks["jobs"].values())
    steps = [step for job in checks["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action) for action in used)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(declared["classifiers"]))
    assert checks["jobs"]["test"]["strategy"]["matrix"]["python"] == versions
    assert declared["requires-python"] == ">=3.11,<3.14"
    makefile = (ROOT / "Makefile").read_text()
    targets = {step["run"].split()[1] for step in steps if step.get("run", "").startswith("make ")}
    assert targets == {"lint", "test", "demo"} & set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    # A commit is checked by what `make lint` runs, with no second version of a tool.
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = makefile.partition("\nlint:")[2].partition("\n\n")[0]
    for hook in hooks:
        assert f"$(BIN)/{hook['entry'].split()[0].removeprefix('.venv/bin/')} " in lint
        assert hook["language"] == "system"


def test_the_container_gets_all_that_the_wheel_is_made_of(tracked):
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    brought = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    needed = [name for name in tracked if name.startswith((*PROJECT, "src/", "requirements/"))]
    needed += ["constraints.txt", "pyproject.toml", "setup.py", "README.md", "LICENSE"]
    for name in needed:
        assert any(Path(name).match(line) or name.startswith(f"{line}/") for line in brought), name
