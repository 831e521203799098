"""Verbs of a workflow in forks of one server: a job on a CPU does not load torch again.

To load torch takes two CPU seconds, most of what a tiny cell needs. A workflow on a workstation
starts the server and names its socket in the environment of its jobs. The process of a job passes
its words, environment and open files on, and ends as the fork does. A signal reaches the fork, and
neither outlives the other. Where there is no server, or the source code has changed since it
started, a job runs its verb itself.

The module imports little: it is what a job loads.
"""

import atexit
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from lmscaling.runtime import rank

SOCKET = "LMSCALING_FORKS"
"""Variable with the path of the server's socket."""

WAITING = 128
"""Jobs that can wait for the server while it loads torch."""

END_SECONDS = 2.0
"""How long a workflow waits for its server to end; one with forks that still run goes on."""


def start() -> None:
    """Start the server of the jobs of this process, with which it ends."""
    folder = tempfile.mkdtemp(prefix="lmscaling-")  # nobody else may enter
    path = f"{folder}/socket"
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(path)
        except OSError:  # longer than the path of a socket may be
            os.rmdir(folder)
            return
        listener.listen(WAITING)
        # Threads would not outlive a fork, which asks for as many as its job may have.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment.pop(SOCKET, None)
        server = subprocess.Popen(
            [sys.executable, "-m", "lmscaling", "fork", str(listener.fileno())],
            stdin=subprocess.PIPE,  # its end tells the server that this process has ended
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C reaches a fork once, from its job
        )
    os.environ[SOCKET] = path
    atexit.register(_end, server)


def _end(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin
    server.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        server.wait(END_SECONDS)


def ask(words: list[str]) -> None:
    """Let the server run a verb, and exit as its fork does; returns if the verb must run here."""
    if SOCKET not in os.environ or rank.number():
        return
    rank.die_with_parent()
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(os.environ[SOCKET])
            socket.send_fds(server, [b"\n"], [0, 1, 2])
            request = words, dict(os.environ), os.getcwd(), os.umask(0o77)
            os.umask(request[-1])
            server.sendall(json.dumps(request).encode() + b"\n")
            answers = server.makefile()
            fork = int(answers.readline() or 0)
        except OSError:
            return
        if not fork:
            return

        def forward(number: int, frame: object) -> None:
            with suppress(ProcessLookupError):
                os.kill(fork, number)

        for number in rank.REQUESTS:
            signal.signal(number, forward)
        code = int(answers.readline() or 1)
    if code < 0:  # as the fork did
        with suppress(OSError):  # nobody may handle SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def sources(package: Path) -> dict[Path, int]:
    """When each source file of the package has changed."""
    return {path: path.stat().st_mtime_ns for path in package.rglob("*.py")}


class Server:
    """What waits for jobs, and forks."""

    def __init__(self, listener: socket.socket, package: Path, loaded: dict[Path, int]) -> None:
        """Serve the jobs that connect to a socket.

        Args:
            listener: The socket.
            package: Folder of the source code.
            loaded: ``sources`` before what forks need was loaded.
        """
        self.listener, self.package, self.loaded = listener, package, loaded
        self.path = listener.getsockname()
        self.poll = select.poll()
        self.jobs: dict[int, tuple[int, socket.socket]] = {}
        """Process number of the fork and the job, by the descriptor that tells the fork's end."""

    def serve(self) -> list[str] | None:
        """Fork for each job until standard input ends and no fork is left.

        Returns:
            In a fork, the words of its verb. In the server None, at its end.
        """
        is_open = True
        self.poll.register(0, select.POLLIN)
        self.poll.register(self.listener, select.POLLIN)
        while is_open or self.jobs:
            number, _ = self.poll.poll()[0]  # what it calls for may reuse the number of another
            if number == 0:
                is_open = False
                self.poll.unregister(0)
                self.poll.unregister(self.listener)
                self.listener.close()
                shutil.rmtree(os.path.dirname(self.path), ignore_errors=True)
            elif number == self.listener.fileno():
                if (words := self._accept()) is not None:
                    return words
            elif number in self.jobs:
                self._finish(number)
            else:
                self._abandon(number)
        return None

    def _accept(self) -> list[str] | None:
        """Fork for a job, whose words are returned in the fork."""
        job, _ = self.listener.accept()
        if sources(self.package) != self.loaded:  # its record would name code that did not run
            job.close()
            return None
        server = os.getpid()
        fork = os.fork()
        if not fork:
            return self._become(job, server)
        end = os.pidfd_open(fork)
        self.jobs[end] = fork, job
        self.poll.register(end, select.POLLIN)
        self.poll.register(job, 0)  # tells that the job has ended, and not that it has written
        with suppress(OSError):
            job.sendall(f"{fork}\n".encode())
        return None

    def _become(self, job: socket.socket, server: int) -> list[str]:
        """Take the place of a job in this fork."""
        os.environ[rank.PARENT] = str(server)
        rank.die_with_parent()
        self.listener.close()
        for end, (_, other) in self.jobs.items():
            os.close(end)
            other.close()
        with job:
            _, files, _, _ = socket.recv_fds(job, 1, 3)
            request = job.makefile().readline()
        if not request:  # the job has ended
            os._exit(1)
        words, environment, folder, mask = json.loads(request)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=stream.isatty())  # pyright: ignore[reportAttributeAccessIssue]
        os.umask(mask)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update({**environment, rank.PARENT: str(server)})
        return words

    def _finish(self, end: int) -> None:
        """Tell a job how its fork has ended."""
        fork, job = self.jobs.pop(end)
        self.poll.unregister(end)
        with suppress(KeyError):
            self.poll.unregister(job)
        os.close(end)
        code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        with suppress(OSError), job:
            job.sendall(f"{code}\n".encode())

    def _abandon(self, number: int) -> None:
        """End the fork of a job that has ended."""
        for fork, job in self.jobs.values():
            if job.fileno() == number:
                self.poll.unregister(number)
                os.kill(fork, signal.SIGKILL)
