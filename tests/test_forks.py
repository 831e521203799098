"""Jobs of CPU studies are forks of one process; to the workflow each is a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import ROOT
from forked import SECONDS, until

from lmscaling.runtime import forks

SERVER = """
import socket, sys
from pathlib import Path
from lmscaling.runtime import forks
loaded = forks.sources(Path(sys.argv[2]))
words = forks.Server(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]), loaded).serve()
if words is not None:
    exec(words[0])
"""
"""A server whose verbs are Python code, and which loads no torch."""
JOB = "import sys; from lmscaling.runtime import forks; forks.ask(sys.argv[1:]); print('by itself')"


pytestmark = pytest.mark.race


class Served:
    """A server of forks, and jobs that ask it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.package = folder, folder / "package"
        self.package.mkdir()
        (self.package / "code.py").write_text("")
        (folder / "s").mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            os.chdir(folder)  # the path of a socket is short
            listener.bind("s/ocket")
            listener.listen()
            words = [sys.executable, "-c", SERVER, str(listener.fileno()), str(self.package)]
            self.server = subprocess.Popen(
                words, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], start_new_session=True
            )

    def job(self, code: str, **changes: str) -> subprocess.Popen[str]:
        environment = os.environ | {forks.SOCKET: str(self.folder / "s/ocket")} | changes
        return subprocess.Popen(
            [sys.executable, "-c", JOB, code], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def done(self, code: str, text: str = "", **changes: str) -> tuple[int, str, str]:
        """Exit code and what a job has written."""
        job = self.job(code, **changes)
        out, error = job.communicate(text, SECONDS)
        return job.returncode, out, error

    def waiting(self, code: str) -> tuple[subprocess.Popen[str], psutil.Process]:
        """A job, and its fork that has run its code and waits."""
        job = self.job(f"import os, time; {code}; print(os.getpid(), flush=True); time.sleep(3600)")
        assert job.stdout
        return job, psutil.Process(int(job.stdout.readline()))


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = Served(tmp_path)
    yield own
    if own.server.stdin:
        own.server.stdin.close()
    assert own.server.wait(SECONDS) == 0
    assert not (tmp_path / "s").exists()


def gone(process):
    with suppress(psutil.NoSuchProcess):
        process.wait(SECONDS)
    return not process.is_running()


def test_a_fork_has_the_files_the_folder_and_the_environment_of_its_job(served, tmp_path):
    (tmp_path / "below").mkdir()
    os.chdir(tmp_path / "below")
    code = "import os; print(input(), os.getcwd(), os.environ['OMP_NUM_THREADS'], os.getppid());"
    code += "print('oh', file=sys.stderr)"
    answer = served.done(code, "text\n", OMP_NUM_THREADS="7")
    line = f"text {tmp_path / 'below'} 7 {served.server.pid}\n"
    assert answer == (0, line, "oh\n")


@pytest.mark.parametrize(("code", "status"), [
    ("sys.exit(75)", 75),
    ("sys.exit('error: no')", 1),
    ("import os; os.kill(os.getpid(), 9)", -9),
    ("import os; os.abort()", -signal.SIGABRT),
])  # fmt: skip
def test_a_job_ends_as_its_fork_and_its_neighbours_go_on(served, code, status):
    neighbour = served.job("import time; input(); print('whole')")
    assert served.done(code)[0] == status
    assert neighbour.communicate("\n", SECONDS)[0] == "whole\n"


def test_a_signal_to_a_job_reaches_its_fork(served):
    job, _ = served.waiting("import signal; signal.signal(15, lambda *_: sys.exit(75))")
    status = Path(f"/proc/{job.pid}/status")  # whether the job handles the signal, too
    handled = 1 << (signal.SIGTERM - 1)
    until(lambda: int(status.read_text().split("SigCgt:")[1].split()[0], 16) & handled, status)
    job.terminate()
    assert job.wait(SECONDS) == 75


def test_a_fork_ends_with_its_job_and_with_the_server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    served = Served(tmp_path)
    first, fork = served.waiting("0")
    first.kill()
    assert gone(fork)
    second, fork = served.waiting("0")
    served.server.kill()
    assert gone(fork)
    assert second.wait(SECONDS) == 1
    assert served.done("print('in a fork')") == (0, "by itself\n", "")


def test_a_workflow_that_ends_leaves_its_forks_to_end_by_themselves(served):
    job = served.job("input(); print('whole')")
    until(psutil.Process(served.server.pid).children, served.folder)
    served.server.stdin.close()
    until(lambda: served.done("print('in a fork')")[1] == "by itself\n", served.folder)
    assert job.communicate("\n", SECONDS)[0] == "whole\n"


def test_code_that_has_changed_runs_in_a_process_of_its_own(served):
    assert served.done("print('in a fork')")[1] == "in a fork\n"
    os.utime(served.package / "code.py", (1e9, 1e9))
    assert served.done("print('in a fork')")[1] == "by itself\n"
    (served.package / "code.py").unlink()
    assert served.done("print('in a fork')")[1] == "by itself\n"


@pytest.mark.ci
def test_a_run_trained_in_a_fork_is_that_of_a_process_of_its_own(cell, tokens, tmp_path):
    (tmp_path / "cell.json").write_text(cell.to_json())
    code = "import subprocess, sys; from lmscaling.runtime import forks; forks.start();"
    code += "subprocess.run(sys.argv[1:], check=True)"
    made = []
    for name, before in {"fork": [sys.executable, "-c", code], "own": []}.items():
        folder = tmp_path / name
        words = ["train", tmp_path / "cell.json", "--manifest", tokens]
        words += ["--scratch", folder / "scratch", "--record", folder / "run.json"]
        command = [*before, sys.executable, "-X", "importtime", "-m", "lmscaling", *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr
        assert f"train: {cell.name} done" in done.stdout
        assert (" torch\n" in done.stderr) == (name == "own")
        assert " torch._dynamo\n" not in done.stderr  # on the CPU nothing is compiled
        loss = json.loads((folder / "run.json").read_text())["last_val_loss"]
        made.append((loss, (folder / "model.safetensors").read_bytes()))
    assert made[0] == made[1]
