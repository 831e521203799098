"""A real Slurm for tests, and studies whose workflow runs on it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from conftest import ROOT, STUDY, write_tokens
from product import PARTS, copied

from lmscaling.config import grid, study_file
from lmscaling.data import verify
from lmscaling.files import write_json

NEEDED = ("slurmctld", "slurmd", "munged", "ip", "unshare", "nsenter")
PATIENCE_SECONDS = 400.0
"""Nothing here takes a tenth of it, on a machine with nothing else to do."""
T = TypeVar("T")


def missing() -> str:
    """Why there can be no Slurm here; empty if there can."""
    places = f"{os.environ['PATH']}:/sbin:/usr/sbin"
    if lacking := [name for name in NEEDED if not shutil.which(name, path=places)]:
        return f"{', '.join(lacking)} not installed (apt-get install slurm-wlm munge iproute2)"
    if " " in sys.executable:
        return f"Snakemake's plugin for Slurm cannot start {sys.executable}, which has a space"
    if os.getuid():
        return "only root can make the namespaces that Slurm's daemons run in"
    probe = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], check=False)
    return "namespaces are not allowed here" if probe.returncode else ""


def eventually(found: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline, f"still no {what}"
        time.sleep(0.2)
    return value


def program(folder: Path, name: str, script: str) -> None:
    """Put a program into a folder, at once where it may be running."""
    made = folder / f"{name}.new"
    made.write_text(f"#!/bin/bash\n{script}\n")
    made.chmod(0o755)
    made.rename(folder / name)


class Cluster:
    """One node with Slurm; commands run inside."""

    def __init__(self, folder: Path, init: int) -> None:
        self.folder, self.init = folder, init

    def command(self, folder: Path, *command: str) -> list[str]:
        inside = ["nsenter", "--all", "--target", str(self.init), "env", "--chdir", str(folder)]
        return [*inside, *command]

    def run(self, *command: str, check: bool = True) -> str:
        """What a command says that must succeed, or may fail."""
        words = self.command(self.folder, *command)
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert not (check and done.returncode), f"{command}: {done.stderr}"
        return done.stdout

    def kill(self, *pids: str) -> None:
        """End processes without a warning, some of which may be ending by themselves."""
        self.run("kill", "-KILL", *pids, check=False)

        def gone() -> bool:
            states = self.run("ps", "-o", "stat=", "-p", ",".join(pids), check=False)
            return all(state.startswith("Z") for state in states.split())

        eventually(gone, f"end of {pids}")

    def heal(self) -> None:
        """A node that takes jobs, whatever a test that failed has left."""
        if not self.run("pgrep", "-x", "slurmd", check=False):
            self.run("slurmd")

        def well() -> bool:
            state = self.run("sinfo", "--noheader", "--format=%T", "--partition=main").strip()
            if state.startswith("drain"):
                self.run("scontrol", "update", "NodeName=node1", "State=RESUME")
            return not state.endswith("*") and not state.startswith(("down", "drain", "unk"))

        eventually(well, "node that takes jobs")

    def jobs(self, what: str, **only: str) -> list[str]:
        """Something of every job that has not ended, as ``squeue --format`` names it."""
        options = [f"--{key}={value}" for key, value in only.items()]
        return self.run("squeue", "--noheader", f"--format={what}", *options).splitlines()


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    folder.mkdir(parents=True)
    box = subprocess.Popen(
        [ROOT / "tests" / "slurm_box", folder], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(folder / "box.log").open("w"),
    )  # fmt: skip
    try:
        assert box.stdout
        said = box.stdout.readline()
        logs = [p.read_text()[-2000:] for p in folder.glob("*.log")]
        assert said == "ready\n", "\n".join(logs)
        children = Path(f"/proc/{box.pid}/task/{box.pid}/children").read_text()
        yield Cluster(folder, int(children.split()[0]))
    finally:
        box.kill()  # the namespaces die with it, and all that runs in them
        box.wait()


class Study:
    """A copy of the product whose cells differ by their seed, with its tokens made."""

    def __init__(self, cluster: Cluster, root: Path, seeds: int = 1, **changes: Any) -> None:
        self.cluster, self.root, self.results = cluster, root, root / "results" / "tiny"
        root.parent.mkdir(parents=True, exist_ok=True)
        copied(root, *PARTS)
        values = STUDY | {
            "calibrate": None, "branches": None, "evaluate": None, "speed": None,
            "published": False, "protocol": {"all": 1, "linear": 1},
            "axes": STUDY["axes"] | {
                "attention": ["softmax"], "lr_scale": [1.0], "seed": list(range(seeds)),
            },
            "validation": {"tokens": 128, "every_tokens": 64_000},
        }  # fmt: skip
        (root / "tiny.yaml").write_text(yaml.safe_dump(values | changes))
        files = [root / "config/study.yaml", root / "tiny.yaml"]
        laid_out = grid.expand(study_file.read_study(files))
        self.runs, self.branches = list(laid_out.cells), list(laid_out.branches)
        self.targets = [f"results/tiny/runs/{run}.json" for run in self.runs]
        for name in laid_out.checked:  # as if their kernels had passed, for there is no GPU
            write_json(self.results / "checks" / f"{name}.json", {})
        tokens = self.results / "tokens" / laid_out.tokens
        tokens.mkdir(parents=True)
        row = laid_out.study.datasets[laid_out.study.dataset]
        verify.verify(write_tokens(tokens, [3_000_000], [1000], row), tokens / "verified.json")

    @property
    def pid(self) -> str:
        return (self.root / "pid").read_text().strip()

    def start(self, *arguments: str, partition: str = "main") -> "subprocess.Popen[str]":
        """Snakemake as a user types it, with short waits; all records unless told otherwise."""
        words = ["snakemake", "--profile", "slurm", "--configfile", "tiny.yaml"]
        words += ["--latency-wait", "5", "--slurm-init-seconds-before-status-checks", "2"]
        words += ["--default-resources", f"slurm_partition={partition}"]
        words += arguments or ["--", *self.targets]
        path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
        source = f"PYTHONPATH={ROOT / 'src'}:{ROOT / 'tests' / 'slurm_polls'}"
        typed = ["bash", "-c", 'echo $$ > pid; exec "$@"', "-", *words]
        self.last = subprocess.Popen(
            self.cluster.command(self.root, path, source, *typed),
            stdout=(self.root / "said").open("a"), stderr=subprocess.STDOUT, text=True,
            # Tests that run in the background of a script have been told to ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        return self.last

    def said(self) -> str:
        return (self.root / "said").read_text()

    def logged(self) -> str:
        """What Snakemake itself says, of which the terminal shows a few lines."""
        logs = sorted((self.root / ".snakemake" / "log").glob("*.log"))
        return "".join(path.read_text() for path in logs)

    def lose_tokens(self) -> Path:
        """The folder of its tokens, of which nothing is left."""
        (folder,) = self.results.glob("tokens/*")
        for path in folder.iterdir():
            path.unlink()
        return folder

    def finish(self, snakemake: "subprocess.Popen[str]", code: int = 0) -> None:
        with suppress(subprocess.TimeoutExpired):
            snakemake.wait(PATIENCE_SECONDS)
        assert snakemake.poll() == code, self.said()  # None while it runs

    def scratch(self, run: str) -> Path:
        return self.results / "scratch" / run

    def waiting(self, **only: str) -> str:
        """Number of the job of this study that waits; empty if there is none."""
        lines = self.cluster.jobs("%i|%Z", states="PENDING", **only)
        of = (line.split("|") for line in lines)
        return next((number for number, folder in of if folder == str(self.root)), "")

    def lock(self, run: str) -> dict[str, Any]:
        path = self.scratch(run) / "lock"
        eventually(path.is_file, f"{path} in {self.said()}")
        return json.loads(path.read_text())

    def go_on(self, run: str) -> None:
        self.cluster.run("kill", "-CONT", str(self.lock(run)["pid"]), check=False)

    def go_on_once_asked_to_stop(self, run: str) -> None:
        """Let a run go on that stands still, when the signal that asks it to stop is there."""
        pid = str(self.lock(run)["pid"])

        def asked() -> bool:
            text = self.cluster.run("cat", f"/proc/{pid}/status", check=False)
            masks = re.findall(r"^(?:Sig|Shd)Pnd:\s+(\w+)", text, re.MULTILINE)
            pending = any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)
            return pending or "State:\tT" not in text  # Slurm may wake it by itself

        eventually(asked, f"signal for {run} in {self.said()}")
        self.cluster.run("kill", "-CONT", pid, check=False)

    def record(self, run: str) -> dict[str, Any]:
        return json.loads((self.results / "runs" / run / "run.json").read_text())

    def log(self, run: str) -> list[dict[str, Any]]:
        lines = (self.results / "runs" / run / "log.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]


def stand_still(*trained: tuple[Study, str], attempt: int = 1) -> None:
    """Wait until each of these runs has made some hundred updates, and stop it there.

    What a test does to them hits them in the middle, however fast they are.
    """
    waiting = list(trained)

    def all_stand() -> bool:
        for study, run in list(waiting):
            log = study.scratch(run) / f"attempt-{attempt:03d}.jsonl"
            assert study.last.poll() is None, f"snakemake has ended: {study.said()}"
            if log.is_file() and log.stat().st_size > 30_000:
                study.cluster.run("kill", "-STOP", str(study.lock(run)["pid"]))
                waiting.remove((study, run))
        return not waiting

    eventually(all_stand, f"updates of {[run for _, run in waiting]}")
