"""Jobs that Slurm has already for the runs of a study, whoever submitted them.

A Snakemake that was killed leaves its jobs running, and the next one submits every open cell once
more; so does a second user of the same results. Slurm can make the second job of a run wait,
without a GPU, until the first has ended.
"""

import getpass
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from functools import cached_property
from pathlib import Path

from lmscaling.runtime import lock

FRESH_SECONDS = 5.0
"""An answer of ``squeue`` is used for so long, and for ``FRESH_SHARE`` times what it took."""

FRESH_SHARE = 10.0
"""A tenth of the time at most is spent on asking a controller that is slow."""


def run_of(comment: str, rules: Collection[str]) -> str:
    """The run that a job trains, by the comment that Snakemake's plugin gives it; or empty."""
    rule, _, run = comment.removeprefix("rule_").partition("_wildcards_")
    return run if rule in rules else ""


class Queue:
    """Jobs with Slurm that train the runs of one results folder."""

    def __init__(self, results: Path, rules: Collection[str]) -> None:
        """Nothing is asked yet.

        Args:
            results: Folder of the study, ``results/<study>``; other checkouts may link to it.
            rules: Rules whose jobs train a run.
        """
        self.results = results
        self.rules = rules
        self.complaint = ""
        """Why Slurm did not answer when it was asked last; empty if it did."""
        self._jobs: dict[str, list[tuple[str, str]]] = {}
        self._until = 0.0
        self._told: set[tuple[str, ...]] = set()
        self._turn = threading.Lock()

    def refresh(self) -> None:
        """Ask Slurm, unless its last answer is only seconds old."""
        with self._turn:
            if (now := time.monotonic()) < self._until:
                return
            listing, self.complaint = asked("squeue --noheader --format=%i|%u|%Z|%k")
            took = time.monotonic() - now
            self._until = now + took + FRESH_SECONDS
            if not self.complaint:
                self._until = max(self._until, now + FRESH_SHARE * took)
                self._jobs = self._ours(listing)

    def dependency(self, *runs: str) -> str:
        """The option of ``sbatch`` that queues a job behind earlier ones of its runs; or empty."""
        self.refresh()
        users: dict[str, str] = {}
        for run in runs:
            jobs = self._jobs.get(run, []) + [(job, "") for job in self._trainer(run)]
            new = {job: user for job, user in jobs if job not in users}
            if new:
                self._tell(run, new)
            users |= new
        return f"--dependency=afterany:{':'.join(users)}" if users else ""

    def _ours(self, listing: str) -> dict[str, list[tuple[str, str]]]:
        """Jobs of each run with their users. A line has number, user, folder and comment."""
        jobs: dict[str, list[tuple[str, str]]] = {}
        same: dict[str, bool] = {}
        for line in listing.splitlines():
            job, user, folder, comment = (line.split("|", 3) + 4 * [""])[:4]
            if run := run_of(comment, self.rules):
                if folder not in same:
                    same[folder] = self._is_same(Path(folder, self.results))
                if same[folder]:
                    jobs.setdefault(run, []).append((job, user))
        return jobs

    def _is_same(self, results: Path) -> bool:
        try:
            return os.path.samefile(results, self.results)
        except OSError:
            return False  # a folder that we may not read, or that is on another machine

    def _trainer(self, run: str) -> list[str]:
        """The job that holds the lock of a run, if it is a job of this cluster."""
        who = lock.holder(self.results / "scratch" / run)
        return [who.job] if who and who.job and who.cluster == self._cluster else []

    @cached_property
    def _cluster(self) -> str:
        listing, _ = asked("scontrol show config")
        words = [line.split("=", 1) for line in listing.splitlines() if "=" in line]
        return next((value.strip() for key, value in words if key.strip() == "ClusterName"), "")

    def _tell(self, run: str, jobs: dict[str, str]) -> None:
        """Say once that a job will wait for these; of others, with their user."""
        if (run, *jobs) in self._told:
            return
        self._told.add((run, *jobs))
        mine = ("", getpass.getuser())
        names = [job if user in mine else f"{job} of {user}" for job, user in jobs.items()]
        say(
            f"{run} is with Slurm already, as job {', '.join(names)}: "
            "a new job waits for it and trains what it leaves unfinished"
        )


def asked(command: str) -> tuple[str, str]:
    """What a command of Slurm prints; and why it does not answer, or empty."""
    words = shlex.split(command)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{words[0]} does not answer ({error})"
    if done.returncode:
        return "", done.stderr.strip() or f"{words[0]} ended with code {done.returncode}"
    return done.stdout, ""


def say(message: str) -> None:
    """All that the submission tells a user, one line at a time."""
    print(message, file=sys.stderr, flush=True)
