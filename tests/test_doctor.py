"""What `doctor` finds on machines that lack something, and what it says to type."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from conftest import sentence
from slurm_cluster import program

from lmscaling.runtime import doctor


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes one of some programs and other packages, of which those without a version miss."""
    programs, home, packages = (tmp_path / name for name in ("bin", "home", "packages"))
    for folder in (programs, home, packages):
        folder.mkdir()
    for name in ("CC", "TRITON_CACHE_DIR", "HF_HOME", "TIKTOKEN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.chdir(tmp_path)

    def make(scripts, **versions):
        for name, script in scripts.items():
            program(programs, name, script)
        versions = {"torch": "2.12.0"} | versions
        for path in (p for place in sys.path for p in Path(place).glob("*.dist-info")):
            made = packages / path.name
            if path.name.partition("-")[0] not in versions and not made.exists():
                made.symlink_to(path)
        for name, version in versions.items():
            if version:
                made = packages / f"{name}-{version}.dist-info"
                made.mkdir()
                text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                (made / "METADATA").write_text(text)
        monkeypatch.setattr(sys, "path", [str(packages)])

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
    assert re.match(r"ok: torch 2\.12\.0, snakemake 9\S+ and \d\d more; ", told["packages"])
    assert re.search(r"results: .*B free; ", told["results folder"])
    for what in ("GPU", "C compiler", "Slurm"):
        assert told[what].startswith("absent: ")
        sentence("doctor", f"{what}  {told[what]}")


H100 = "echo 2, NVIDIA H100, 81559 MiB"
UP = 'test "$1" = ping && echo "Slurmctld(primary) at node0 is UP"'
TORCH = "<2.14,>=2.11"
# Its child holds the pipe when it is killed.
SLEEPS = {"nvidia-smi": "/bin/sleep 9999 & echo $! >child; wait"}
FOUND = [
    # Programs, versions of packages, what the line is about, its state, and what it names.
    ({"nvidia-smi": f"{H100}; {H100}"}, {}, "GPU", "ok", "2, NVIDIA H100"),
    ({"gcc": "echo gcc 12.2.0"}, {}, "C compiler", "ok", "gcc 12.2.0"),
    ({"scontrol": UP}, {}, "Slurm", "ok", "UP"),
    ({"nvidia-smi": "exit 9"}, {}, "GPU", "wrong", "nvidia-smi"),
    ({"gcc": "exit 1"}, {}, "C compiler", "wrong", "CC=gcc"),
    ({"scontrol": "echo at node0 is DOWN"}, {}, "Slurm", "wrong", "DOWN"),
    ({"nvidia-smi": H100}, {"torch": "2.12.0+cpu"}, "GPU", "wrong", "2.12.0+cpu"),
    ({"nvidia-smi": H100}, {"triton": ""}, "GPU", "wrong", "pip install triton"),
    ({}, {"torch": "2.9.1"}, "packages", "stops", f"2.9.1; type {sys.executable} -m pip install"),
    ({}, {"torch": ""}, "packages", "stops", f"pip install 'torch{TORCH}'"),
    ({}, {"duckdb": ""}, "packages", "stops", "duckdb is not installed"),
    ({}, {"snakemake": "8.0.0"}, "packages", "stops", "pip install 'snakemake<9.28,>=9.20'"),
    ({}, {"lmscaling": ""}, "packages", "absent", "lmscaling"),
    pytest.param(SLEEPS, {}, "GPU", "wrong", "0.5 s", marks=pytest.mark.race),
]


@pytest.mark.parametrize(("programs", "versions", "what", "state", "named"), FOUND)
def test_what_is_absent_or_wrong_is_named_and_a_package_that_the_demo_needs_stops_it(
    machine, monkeypatch, programs, versions, what, state, named
):
    if named == "0.5 s":
        monkeypatch.setattr(doctor, "SECONDS", 0.5)
    machine(programs, **versions)
    told, verdict, can_run = examine()
    if named == "0.5 s":
        os.kill(int(Path("child").read_text()), signal.SIGKILL)
    assert can_run == (state != "stops")
    assert what in verdict if state == "stops" else told[what].startswith(f"{state}: ")
    assert named in told[what]
    if not versions:
        sentence("doctor", f"{what}  {told[what]}")


def test_folders_without_permission_are_named_and_a_full_disk_stops(machine, tmp_path, monkeypatch):
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
