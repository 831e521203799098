"""What `doctor` finds on machines that lack something, and what it says to type."""

import re
import sys
from pathlib import Path

import pytest
from conftest import sentence
from slurm_cluster import program

from lmscaling.runtime import doctor


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that makes a machine of some programs, and of this Python's packages but others.

    A package without a version is missing.
    """
    (tmp_path / "bin").mkdir()
    (tmp_path / "home").mkdir()
    for name in ("CC", "TRITON_CACHE_DIR", "HF_HOME", "TIKTOKEN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)

    def make(programs, **versions):
        for name, script in programs.items():
            program(tmp_path / "bin", name, script)
        versions = {"torch": "2.12.0"} | versions
        (tmp_path / "packages").mkdir()
        for path in (p for place in sys.path for p in Path(place).glob("*.dist-info")):
            made = tmp_path / "packages" / path.name
            if path.name.partition("-")[0] not in versions and not made.exists():
                made.symlink_to(path)
        for name, version in versions.items():
            if version:
                text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                made = tmp_path / "packages" / f"{name}-{version}.dist-info"
                made.mkdir()
                (made / "METADATA").write_text(text)
        monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])

    return make


def examine(results="results"):
    """Lines by what they are about, the verdict, and whether the demo can run."""
    text, can_run = doctor.examine(Path(results))
    *lines, _, verdict = text.splitlines()
    told, last = {}, ""
    for line in lines[1:]:
        if line.startswith(" "):
            told[last] += f" {line.strip()}"
        else:
            state, last, *found = re.split(r" {2,}", line)
            told[last] = f"{state}: {' '.join(found)}"
    return {what: text.replace(":  ", ": ") for what, text in told.items()}, verdict, can_run


def test_a_bare_machine_can_run_the_demo_and_is_told_what_it_lacks(machine):
    machine({})
    told, verdict, can_run = examine()
    assert can_run
    assert verdict.endswith("lmscaling demo")
    assert not [what for what, text in told.items() if text.startswith("wrong")]
    assert told["torch"].split() == ["ok:", "2.12.0;", "allowed", "<2.14,>=2.11"]
    assert "results: " in told["results folder"]
    assert "/s; " in told["results folder"]
    for what in ("GPU", "C compiler", "Slurm"):
        assert told[what].startswith("absent: ")
        sentence("doctor", f"{what}  {told[what]}")


H100 = "echo NVIDIA H100, 81559 MiB"
UP = 'test "$1" = ping && echo "Slurmctld(primary) at node0 is UP"'
FOUND = [
    # Programs, what the line is about, its state, and what it names.
    ({"nvidia-smi": f"{H100}; {H100}"}, "GPU", "ok", "2 x NVIDIA H100"),
    ({"gcc": "echo gcc 12.2.0"}, "C compiler", "ok", "gcc 12.2.0"),
    ({"sbatch": "", "squeue": "", "scontrol": UP}, "Slurm", "ok", "UP"),
    ({"nvidia-smi": "exit 9"}, "GPU", "wrong", "nvidia-smi"),
    ({"gcc": "exit 1"}, "C compiler", "wrong", "CC=gcc"),
    ({"sbatch": ""}, "Slurm", "wrong", "squeue, scontrol"),
    ({"sbatch": "", "squeue": "", "scontrol": "echo at node0 is DOWN"}, "Slurm", "wrong", "DOWN"),
    # Its child holds the pipe when it is killed.
    pytest.param(
        {"nvidia-smi": "/bin/sleep 9999; true"}, "GPU", "wrong", "0.5 s", marks=pytest.mark.race
    ),
]


@pytest.mark.parametrize(("programs", "what", "state", "named"), FOUND)
def test_a_program_is_found_or_wrong_and_the_demo_runs_without_it(
    machine, monkeypatch, programs, what, state, named
):
    if named == "0.5 s":
        monkeypatch.setattr(doctor, "SECONDS", 0.5)
    machine(programs)
    told, _, can_run = examine()
    assert can_run
    assert told[what].startswith(f"{state}: ")
    assert named in told[what]
    sentence("doctor", f"{what}  {told[what]}")


@pytest.mark.parametrize(
    ("versions", "what", "state", "named"),
    [
        ({"torch": "2.12.0+cpu"}, "GPU", "wrong", ["2.12.0+cpu"]),
        ({"triton": ""}, "triton", "absent", []),
        ({"torch": "2.9.1"}, "torch", "stops", ["2.9.1", "<2.14,>=2.11"]),
        ({"torch": ""}, "torch", "stops", ["pip install 'torch<2.14,>=2.11'"]),
        ({"duckdb": ""}, "other packages", "stops", ["duckdb"]),
        ({"snakemake": "8.0.0"}, "snakemake", "stops", ["pip install 'snakemake>=9.20'"]),
    ],
)
def test_a_package_that_the_demo_needs_stops_it_and_pip_is_named(
    machine, versions, what, state, named
):
    machine({"nvidia-smi": H100}, **versions)
    told, verdict, can_run = examine()
    assert can_run == (state != "stops")
    assert what in verdict if state == "stops" else told[what].startswith(f"{state}: ")
    assert [word for word in named if word not in told[what]] == []


def test_folders_that_cannot_be_written_are_named_and_a_full_disk_stops_the_demo(
    machine, tmp_path, monkeypatch
):
    machine({})
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "triton"))
    told, _, can_run = examine()
    assert can_run
    assert "export TRITON_CACHE_DIR=" in told["TRITON_CACHE_DIR"]
    told, verdict, can_run = examine(tmp_path / "file" / "results")
    assert not can_run
    assert "results folder" in verdict
    assert "--results" in told["results folder"]
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    told, _, can_run = examine()
    assert not can_run
    assert "1 MB free" in told["results folder"]
