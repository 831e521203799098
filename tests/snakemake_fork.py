"""Snakemake in a fork of a process that has it loaded. It imports only what such a process has."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

OURS = ("lmscaling",)

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["snakemake.cli"])


def snakemake(folder, environment, *words) -> "subprocess.CompletedProcess[str]":
    """What ``snakemake WORDS`` says in a folder, at half the cost of a new process."""
    with tempfile.TemporaryDirectory() as said:
        out, err = Path(said, "out"), Path(said, "err")
        fork = FORKS.Process(target=_main, args=(folder, environment, words, out, err))
        fork.start()
        fork.join()
        code = fork.exitcode or 0
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


def _main(folder, environment, words, out, err) -> None:
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    sys.path[:0] = [str(folder), *environment.get("PYTHONPATH", "").split(os.pathsep)]

    from snakemake import __file__ as package
    from snakemake.cli import main

    sys.argv = [str(Path(package).with_name("__main__.py")), *words]
    main()
