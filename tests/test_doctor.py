"""What `doctor` finds on machines that lack something, and what it says to type."""

import re
import time

import pytest

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
def installed(monkeypatch):
    """A function that pretends versions of packages; an empty one is not installed."""
    found = doctor._installed

    def pretend(**versions):
        monkeypatch.setattr(doctor, "_installed", lambda name: versions.get(name, found(name)))

    pretend(torch="2.12.0")
    return pretend


def examine(results="results"):
    """Lines by what they are about, the verdict, and whether the demo can run."""
    text, can_run = doctor.examine(doctor.Path(results))
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
    told, verdict, can_run = examine()
    assert can_run
    assert verdict.endswith("type lmscaling demo")
    assert told["GPU"].startswith("absent: no nvidia-smi: CPU only; the demo and studies")
    assert told["C compiler"].startswith("absent: ")
    assert told["Slurm"].startswith("absent: no sbatch; jobs run on this machine")
    assert told["torch"] == "ok: 2.12.0; allowed <2.14,>=2.11"
    assert told["results folder"].startswith("ok: results: ")
    assert "/s; " in told["results folder"]
    assert told["HF_HOME"].startswith("ok: ")


def test_a_complete_machine_has_no_finding(machine, installed):
    machine("nvidia-smi", "echo NVIDIA H100, 81559 MiB; echo NVIDIA H100, 81559 MiB")
    machine("gcc", "echo gcc 12.2.0")
    machine("scontrol", 'test "$1" = ping && echo "Slurmctld(primary) at node0 is UP"')
    machine("sbatch", "")
    machine("squeue", "")
    told, _, can_run = examine()
    assert can_run
    assert told["GPU"].startswith("ok: 2 x NVIDIA H100, 81559 MiB; studies with gpus: work")
    assert told["C compiler"].startswith("ok: gcc 12.2.0")
    assert told["Slurm"] == (
        "ok: Slurmctld(primary) at node0 is UP; type snakemake --profile slurm"
    )


@pytest.mark.parametrize(
    ("programs", "what", "sentence"),
    [
        ({"nvidia-smi": "exit 9"}, "GPU", "nvidia-smi names no GPU; type nvidia-smi to see why"),
        ({"gcc": "exit 1"}, "C compiler", "does not run; type export CC=gcc, or install"),
        ({"sbatch": ""}, "Slurm", "no squeue, scontrol; snakemake --profile slurm needs it"),
        (
            {"sbatch": "", "squeue": "", "scontrol": "echo Slurmctld at node0 is DOWN"},
            "Slurm", "Slurmctld at node0 is DOWN; no job can start",
        ),
    ],
)  # fmt: skip
def test_a_broken_program_is_wrong_and_the_demo_runs_without_it(
    machine, installed, programs, what, sentence
):
    for name, script in programs.items():
        machine(name, script)
    told, _, can_run = examine()
    assert can_run
    assert told[what].startswith("wrong: ")
    assert sentence in told[what]


def test_a_gpu_that_torch_cannot_use_is_wrong(machine, installed):
    machine("nvidia-smi", "echo NVIDIA H100, 81559 MiB")
    installed(torch="2.12.0+cpu")
    assert "torch 2.12.0+cpu cannot use it; install a build" in examine()[0]["GPU"]


def test_a_program_that_hangs_is_a_finding_and_delays_nothing(machine, installed, monkeypatch):
    monkeypatch.setattr(doctor, "SECONDS", 0.5)
    machine("nvidia-smi", "/bin/sleep 10; true")  # its child holds the pipe when it is killed
    began = time.monotonic()
    told, _, can_run = examine()
    assert time.monotonic() - began < 8
    assert can_run
    assert "gives no answer in 0.5 s; ask" in told["GPU"]


@pytest.mark.parametrize(
    ("versions", "what", "sentence"),
    [
        ({"torch": "2.9.1"}, "torch", "2.9.1, allowed <2.14,>=2.11; type "),
        ({"torch": ""}, "torch", "-m pip install 'torch<2.14,>=2.11'"),
        ({"duckdb": "", "torch": "2.12.0"}, "other packages", "duckdb is not installed; type "),
        ({"snakemake": "8.0.0"}, "snakemake", "-m pip install 'snakemake>=9.20'"),
    ],
)  # fmt: skip
def test_a_package_that_the_demo_needs_stops_it_and_pip_is_named(
    machine, installed, versions, what, sentence
):
    installed(**versions)
    told, verdict, can_run = examine()
    assert not can_run
    assert verdict.startswith("the demo cannot run before this is mended: ")
    assert what in verdict
    assert sentence in told[what]


def test_without_triton_the_demo_runs(machine, installed):
    installed(triton="")
    told, _, can_run = examine()
    assert can_run
    assert told["triton"].startswith("absent: not installed; ")


def test_folders_that_cannot_be_written_are_named(machine, installed, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "triton"))
    told, _, can_run = examine()
    assert can_run
    assert "cannot be written; type export TRITON_CACHE_DIR=" in told["TRITON_CACHE_DIR"]
    told, verdict, can_run = examine(tmp_path / "file" / "results")
    assert not can_run
    assert "results folder" in verdict
    assert told["results folder"].endswith("or name another by --results")


def test_a_full_disk_stops_the_demo(machine, installed, monkeypatch):
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    told, _, can_run = examine()
    assert not can_run
    assert "1 MB free" in told["results folder"]
    assert "make room" in told["results folder"]
