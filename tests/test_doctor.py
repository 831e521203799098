"""What `doctor` finds on machines that lack something, and what it says to type."""

import re
import sys
from pathlib import Path

import pytest
from conftest import sentence

from lmscaling.runtime import doctor


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without GPU, compiler and Slurm; a function that gives it a program."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "home").mkdir()
    for name in ("CC", "TRITON_CACHE_DIR", "HF_HOME", "TIKTOKEN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)

    def add(name, script):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    return add


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that installs what this Python has, but other versions; empty ones are missing."""

    def install(**versions):
        folder = tmp_path / "-".join(["packages", *versions])
        folder.mkdir()
        for path in (p for place in sys.path for p in Path(place).glob("*.dist-info")):
            name = path.name.partition("-")[0]
            if name not in versions and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
        for name, version in versions.items():
            if version:
                text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                (folder / f"{name}-{version}.dist-info").mkdir()
                (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(text)
        monkeypatch.setattr(sys, "path", [str(folder)])

    return install


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


def test_a_bare_machine_can_run_the_demo_and_is_told_what_it_lacks(machine, installed):
    installed(torch="2.12.0")
    told, verdict, can_run = examine()
    assert can_run
    assert verdict.endswith("lmscaling demo")
    states = {what: text.split(":")[0] for what, text in told.items()}
    assert {what for what, state in states.items() if state == "absent"} >= {
        "GPU", "C compiler", "Slurm",
    }  # fmt: skip
    assert "wrong" not in states.values()
    assert told["torch"].split() == ["ok:", "2.12.0;", "allowed", "<2.14,>=2.11"]
    assert "results: " in told["results folder"]
    assert "/s; " in told["results folder"]
    for what in ("GPU", "C compiler", "Slurm"):
        sentence("doctor", f"{what}  {told[what]}")


def test_a_complete_machine_has_no_finding(machine, installed):
    installed(torch="2.12.0")
    machine("nvidia-smi", "echo NVIDIA H100, 81559 MiB; echo NVIDIA H100, 81559 MiB")
    machine("gcc", "echo gcc 12.2.0")
    machine("scontrol", 'test "$1" = ping && echo "Slurmctld(primary) at node0 is UP"')
    machine("sbatch", "")
    machine("squeue", "")
    told, _, can_run = examine()
    assert can_run
    for what, found in (("GPU", "2 x NVIDIA H100"), ("C compiler", "gcc 12.2.0"), ("Slurm", "UP")):
        assert told[what].startswith("ok: ")
        assert found in told[what]
        sentence("doctor", f"{what}  {told[what]}")


@pytest.mark.parametrize(
    ("programs", "what", "named"),
    [
        ({"nvidia-smi": "exit 9"}, "GPU", "nvidia-smi"),
        ({"gcc": "exit 1"}, "C compiler", "CC=gcc"),
        ({"sbatch": ""}, "Slurm", "squeue, scontrol"),
        ({"sbatch": "", "squeue": "", "scontrol": "echo at node0 is DOWN"}, "Slurm", "DOWN"),
        # Its child holds the pipe when it is killed.
        ({"nvidia-smi": "/bin/sleep 9999; true"}, "GPU", "0.5 s"),
        ({"nvidia-smi": "echo NVIDIA H100, 81559 MiB"}, "GPU", "2.12.0+cpu"),
    ],
    ids=["no GPU named", "compiler", "half of Slurm", "Slurm is down", "hangs", "torch for CPUs"],
)
def test_a_broken_program_is_wrong_and_the_demo_runs_without_it(
    machine, installed, monkeypatch, programs, what, named
):
    installed(torch="2.12.0+cpu")
    if named == "0.5 s":
        monkeypatch.setattr(doctor, "SECONDS", 0.5)
    for name, script in programs.items():
        machine(name, script)
    told, _, can_run = examine()
    assert can_run
    assert told[what].startswith("wrong: ")
    assert named in told[what]
    sentence("doctor", f"{what}  {told[what]}")


@pytest.mark.parametrize(
    ("versions", "what", "named"),
    [
        ({"torch": "2.9.1"}, "torch", ["2.9.1", "<2.14,>=2.11"]),
        ({"torch": ""}, "torch", ["pip install 'torch<2.14,>=2.11'"]),
        ({"duckdb": "", "torch": "2.12.0"}, "other packages", ["duckdb"]),
        ({"snakemake": "8.0.0"}, "snakemake", ["pip install 'snakemake>=9.20'"]),
    ],
)
def test_a_package_that_the_demo_needs_stops_it_and_pip_is_named(
    machine, installed, versions, what, named
):
    installed(**versions)
    told, verdict, can_run = examine()
    assert not can_run
    assert what in verdict
    assert [word for word in named if word not in told[what]] == []


def test_without_triton_the_demo_runs(machine, installed):
    installed(triton="", torch="2.12.0")
    told, _, can_run = examine()
    assert can_run
    assert told["triton"].startswith("absent: ")


def test_folders_that_cannot_be_written_are_named(machine, installed, tmp_path, monkeypatch):
    installed(torch="2.12.0")
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "triton"))
    told, _, can_run = examine()
    assert can_run
    assert "export TRITON_CACHE_DIR=" in told["TRITON_CACHE_DIR"]
    told, verdict, can_run = examine(tmp_path / "file" / "results")
    assert not can_run
    assert "results folder" in verdict
    assert "--results" in told["results folder"]


def test_a_full_disk_stops_the_demo(machine, installed, monkeypatch):
    installed(torch="2.12.0")
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    told, _, can_run = examine()
    assert not can_run
    assert "1 MB free" in told["results folder"]
