"""What Snakemake users expect of any workflow: modules, lints, environments, text with braces."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import snakemake_fork
import yaml
from conftest import ROOT, STUDY
from product import documents
from slurm_cluster import program

PYTHON = Path(sys.executable).parent
ENVS = ROOT / "workflow" / "envs"
AXES = {"attention": ["softmax"], "size": ["s"], "context": [16], "seed": [0], "lr_scale": [1]}
NONE = dict.fromkeys(("speed", "branches", "calibrate", "evaluate"))
TINY = STUDY | NONE | {"axes": AXES, "published": False}
MODULE = """\
configfile: "mine.yaml"

rule all:
    input: "mine.txt"

module lms:
    snakefile: {snakefile!r}
    config: config["scaling"]

use rule * from lms {names}

rule mine:
    output: "mine.txt"
    shell: "echo $PATH > {{output}}"
"""


def snakemake(folder, *words, python=sys.executable, check=True, **changes):
    """Snakemake with nothing of this environment on the path."""
    env = os.environ | {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")} | changes
    if {"-n", "--lint", "--containerize"} & {*words}:
        done = snakemake_fork.snakemake(folder, env, *words)
    else:
        words = (python, "-m", "snakemake", *words)
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def jobs(text):
    table = text.rpartition("Job stats:")[2]
    return {rule: int(n) for rule, n in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)}


def project(folder, names="as lms_*", **changes):
    """A workflow of somebody else that uses this one as a module."""
    snakefile = str(ROOT / "workflow" / "Snakefile")
    text = MODULE.format(snakefile=snakefile, names=names)
    folder.mkdir(exist_ok=True)
    (folder / "Snakefile").write_text(text)
    (folder / "mine.yaml").write_text(yaml.safe_dump({"scaling": TINY | changes}))
    documents(folder, a=100, v=60)
    return folder


@pytest.mark.ci
def test_another_workflow_trains_into_its_folder_and_keeps_its_target_cores_and_shell(tmp_path):
    used, path = project(tmp_path / "used", results="my studies"), f"{PYTHON}:/usr/bin:/bin"
    made = "my studies/tiny"
    figure = f"{made}/figures/learning_curves.svg"
    snakemake(used, "--cores", "2", "--", figure, f"{made}/plan.json", "all", PATH=path)
    (record,) = used.glob(f"{made}/runs/*/run.json")
    assert json.loads(record.read_text())["status"] == "done"
    assert [path.name for path in (used / "my studies").iterdir()] == ["tiny"]
    assert not (used / "results").exists()
    shutil.rmtree(used / made / "tokens")
    planned = jobs(snakemake(used, "-n", "--rerun-triggers", "mtime", "--", "lms_all"))
    assert {"lms_train", "lms_report"} & planned.keys() == {"lms_report"}
    assert (used / "mine.txt").read_text() == f"{path}\n"
    assert jobs(snakemake(project(tmp_path), "-n")) == {"mine": 1, "all": 1, "total": 2}
    assert "cores" in snakemake(tmp_path, check=False)
    assert not (tmp_path / "mine.txt").exists()
    # It reports a figure without a network.
    snakemake(used, "--report", "report.html", "--", figure, http_proxy="http://127.0.0.1:9")
    assert "learning_curves" in (used / "report.html").read_text()


@pytest.mark.parametrize("folder", ["results", "made"])
def test_a_module_is_used_with_and_without_new_names_and_places(tmp_path, folder):
    project(tmp_path, names="exclude all as *", results=folder)
    text = snakemake(tmp_path, "-n", "--", "report")
    assert {"train": 1, "draw": 1, "report": 1}.items() <= jobs(text).items()
    assert f"output: {folder}/tiny/report.html" in text


def test_snakemake_has_no_remark_about_the_workflow():
    assert "good condition" in snakemake(ROOT, "--lint")


def test_braces_in_a_study_and_spaces_in_the_path_of_python_are_text(tmp_path):
    hub = {
        "kind": "hub", "repository": "o/t", "revision": "1" * 40, "shards": 2, "documents": [9],
        "train": "en/{shard:05d}.gz", "validation": "en/{shard}.gz",
    }  # fmt: skip
    skip = [{"context": 32, "reason": "wider than {d_model} {} {{x}}"}]
    axes = AXES | {"context": [16, 32]}
    project(tmp_path, datasets={"lines": hub}, skip=skip, axes=axes)
    # A Python that writes down how it was called, and says that it is at this place.
    place = tmp_path / "a b{c}" / "bin"
    place.mkdir(parents=True)
    startup = f"import sys\nsys.executable = {str(place / 'python')!r}\n"
    (place / "sitecustomize.py").write_text(startup)
    search = f'export PYTHONPATH="{place}:$PYTHONPATH"'
    script = f'echo "$*" >> "{place}/calls"\n{search}\nexec "{sys.executable}" "$@"'
    program(place, "python", script)
    words = ("--cores", "1", "--", "results/tiny/study.json")
    snakemake(tmp_path, *words, python=place / "python", PATH=f"{place}:/usr/bin:/bin")
    study = json.loads((tmp_path / "results/tiny/study.json").read_text())["study"]
    assert (study["skip"], study["datasets"]["lines"]["train"]) == (skip, hub["train"])
    assert len(list((tmp_path / "results/tiny/cells").iterdir())) == 1
    assert re.search("^-m lmscaling record ", (place / "calls").read_text(), re.MULTILINE)


CONDA = """\
case "$*" in
*"info --json"*) echo '{{"conda_prefix": "{folder}", "platform": "linux-64"}}' ;;
*--version*) echo "conda 24.9.2" ;;
*channel_priority*) echo '{{"get": {{"channel_priority": "strict"}}}}' ;;
*"env create"*)
    while [ "$1" != --prefix ]; do shift; done
    mkdir -p "$2/bin"
    printf '#!/bin/sh\\necho "$*" >> {folder}/calls\\nexec "{python}" "$@"\\n' > "$2/bin/python"
    chmod +x "$2/bin/python" ;;
esac
"""


def test_with_conda_a_rule_runs_in_its_environment_and_one_container_has_all(tmp_path):
    """With a stand-in for conda: its environments have a Python that writes down its calls."""
    conda, used = tmp_path / "conda", project(tmp_path / "used")
    (conda / "bin").mkdir(parents=True)
    program(conda / "bin", "conda", CONDA.format(folder=conda, python=sys.executable))
    (conda / "bin" / "activate").write_text('export PATH="$1/bin:$PATH"\n')
    path = f"{conda}/bin:/usr/bin:/bin"
    words = ("--cores", "1", "--sdm", "conda", "--", "results/tiny/study.json")
    snakemake(used, *words, PATH=path)
    assert (conda / "calls").read_text() == "-m lmscaling record results/tiny/study.json\n"
    (link,) = used.glob(".snakemake/lmscaling/*/lmscaling")
    assert link.resolve() == ROOT / "src" / "lmscaling"
    text = snakemake(used, "--containerize", "--", "lms_study", PATH=path)
    for name in ("train", "analysis"):
        assert re.search(rf"^COPY .+/workflow/envs/{name}.yml ", text, re.MULTILINE)


CONDA_NAMES = {
    "torch": "pytorch", "duckdb": "python-duckdb", "xxhash": "python-xxhash",
    "snakemake": "snakemake-minimal",
}  # fmt: skip
"""Packages that conda-forge and bioconda have by another name."""


def required(*wings, without="#"):
    """Packages of files in requirements/ as conda writes them."""
    for wing in wings:
        for line in (ROOT / "requirements" / f"{wing}.txt").read_text().splitlines():
            name, more, versions = line.partition(">")
            if not line.startswith(("#", without)):
                yield f"{CONDA_NAMES.get(name, name)} {more}{versions}"


@pytest.mark.parametrize(
    ("path", "wings"),
    [("environment.yml", ("plan", "train", "analysis")), *(
        (f"workflow/envs/{wing}.yml", ("plan", wing)) for wing in ("train", "analysis"))],
)  # fmt: skip
def test_environments_of_conda_have_what_the_requirements_say(path, wings, request):
    """Those of rules have no Snakemake. ``make renew`` writes their lists anew."""
    path, own = ROOT / path, len(wings) == 3
    given = [*required(*wings, without="#" if own else "snakemake")]
    lines = ["python >=3.11,<3.14", *(["make", "git", "pip"] if own else []), *given]
    head, rest = path.read_text().split("dependencies:\n")
    tail = rest[rest.index("  - pip:\n") :] if own else ""
    made = f"{head}dependencies:\n" + "".join(f"  - {line}\n" for line in lines) + tail
    if request.config.getoption("--renew"):
        path.write_text(made)
    assert path.read_text() == made
    assert yaml.safe_load(made)["dependencies"][: len(lines)] == lines


def test_the_container_has_all_packages_and_the_versions_of_the_tests():
    text = (ENVS / "lmscaling.def").read_text()
    sections = dict(re.findall(r"^%(\w+)\n((?:    .*\n)*)", text, re.MULTILINE))
    copied = dict(line.split() for line in sections["files"].splitlines())
    assert all((ROOT / source).exists() for source in copied)
    assert re.search(r"^    pip install .*-c constraints.txt \.$", sections["post"], re.MULTILINE)
    needed = ["constraints.txt", "pyproject.toml", "setup.py", "requirements", "src", "README.md"]
    assert [copied[name] for name in needed] == [f"/opt/lmscaling/{name}" for name in needed]
    (version,) = re.findall(r"^From: python:(3\.\d+)-slim$", text, re.MULTILINE)
    assert version in ("3.11", "3.12", "3.13")


ORDERED = "snakemake", "torch", "triton", "lightning", "tiktoken", "datasets", "duckdb", "seaborn"
"""The packages that this program is to be built of."""


@pytest.mark.parametrize("package", ORDERED)
def test_what_was_ordered_is_imported_by_the_package_or_its_workflow(package):
    paths = [*(ROOT / "src").rglob("*.py"), ROOT / "workflow" / "Snakefile"]
    found = re.compile(rf"^\s*(from|import) {package}\b", re.MULTILINE)
    assert any(found.search(path.read_text()) for path in paths)


def code_of(path):
    """Its Python: of rules, the lines that are no directives."""
    return re.sub(r"(?m)^\s*#.*$", "", path.read_text())


SOURCES = sorted([*(ROOT / "workflow").rglob("*.smk"), ROOT / "workflow" / "Snakefile"])
DOCUMENTED = {
    "basedir", "current_basedir", "cores", "overwrite_configfiles", "config_settings",
}  # fmt: skip
"""Attributes of ``workflow`` that rules read."""


def test_rules_touch_nothing_private_of_snakemake():
    imports = []
    for path in [*SOURCES, *(ROOT / "src").rglob("*.py")]:
        imports += re.findall(r"(?m)^\s*(?:from|import) (snakemake\S*)", path.read_text())
    assert set(imports) == {"snakemake.utils"}
    for path in SOURCES:
        text = code_of(path)
        assert set(re.findall(r"(?<!lmscaling\.)\bworkflow\.(\w+)", text)) <= DOCUMENTED, path
        assert not re.findall(r"\.(_[a-z]\w*)", text), path
        # Nothing is assigned to an attribute, nor to one by its name.
        assert not re.findall(r"(?m)^\s*[\w.]+\.\w+ *[-+|]?= *\S", text), path
        assert not re.findall(r"\b(setattr|delattr|gc\.|monkeypatch)", text), path
    texts = [p.read_text() for p in (ROOT / "src" / "lmscaling" / "workflow").glob("*.py")]
    assert not any("sys.modules" in text or "import snakemake" in text for text in texts)


def test_no_package_of_kernels_imports_its_own_modules():
    """Callers name the module that they need."""
    for path in (ROOT / "src" / "lmscaling" / "kernels").rglob("__init__.py"):
        package = ".".join(path.parent.relative_to(ROOT / "src").parts)
        found = re.compile(rf"^\s*(from|import) ({re.escape(package)}\b|\.)", re.MULTILINE)
        assert not found.search(path.read_text()), path
