"""What a command line forces, who may write, shards that studies share, an sbatch that waits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, STUDY, refused, sentence
from product import leave
from slurm_cluster import program

from lmscaling.config import grid
from lmscaling.data.tokenize import borrowed
from lmscaling.errors import UserError
from lmscaling.runtime import planned

RUNS = Path("results/tiny/runs")


@pytest.fixture
def cells():
    return grid.expand(STUDY | {"branches": {"attention": "linear", "shares": [0.5]}}).runs


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("-f -- {x}", "x"), ("{x} -f", "x"), ("-f ./{x} -n", "x"), ("--forcerun {x} -- {y}", "x"),
        ("-R={x}", "x"), ("--forcerun={x}", "x"), ("-nf {x} {y}", "xy"), ("-R train", "xyb"),
        ("-R branch evaluate", "b"), ("-F", "xyb"), ("--forceall -- {x}", "xyb"), ("-R all", ""),
        ("--until train -f -- {x}", "x"), ("{x} {y} -R evaluate", ""), ("{x}", ""), ("-p -n", ""),
        ("-f results/other/runs/{x}", ""), ("-f -- results/tiny/report.html", ""), ("", ""),
        ("--omit-from train -R calibrate verify -- {x}", ""), ("-sSnakefile {x}", ""),
    ],
)  # fmt: skip
def test_a_command_line_forces_the_runs_that_it_names_and_no_others(cells, typed, found):
    trunks = [run for run, cell in cells.items() if not cell.branch]
    (branch,) = (run for run, cell in cells.items() if cell.branch)
    names = {"x": trunks[0], "y": trunks[1], "b": branch}
    paths = {key: f"{RUNS}/{run}.json" for key, run in names.items()}
    words = [word.format(**paths) for word in typed.split()]
    assert planned.forced(words, RUNS, cells) == {names[key] for key in found}


def test_an_output_that_was_seen_and_is_gone_was_deleted_by_a_user_and_another_is_copied(tmp_path):
    for run in ("a", "b"):
        leave(tmp_path / "runs" / run / "run.json", f'"{run}"')
    outputs = planned.Outputs(tmp_path)
    assert (outputs.deleted, set(outputs.ended)) == (set(), {"a", "b"})
    assert (tmp_path / "runs" / "a.json").read_text() == '"a"'
    (tmp_path / "runs" / "a.json").unlink()
    assert planned.Outputs(tmp_path).deleted == {"a"}
    leave(tmp_path / "runs" / "a" / "run.json", "1")  # another job has ended it meanwhile
    os.utime(tmp_path / "runs" / "a" / "run.json", (1e9, 1e9))
    assert planned.Outputs(tmp_path).deleted == set()
    assert (tmp_path / "runs" / "a.json").read_text() == "1"


def test_plans_that_no_job_can_need_are_deleted(tmp_path):
    paths = [planned.new_path(tmp_path) for _ in range(planned.MOST_PLANS + 5)]
    for path in paths:
        planned.write(path, planned.Plan("results", {}, {}, []))
    assert len(list((tmp_path / "plans").iterdir())) == len(paths)
    for path in paths:
        os.utime(path, (1e9, 1e9))
    planned.write(paths[0], planned.Plan("results", {}, {}, []))
    assert len(list((tmp_path / "plans").iterdir())) == planned.MOST_PLANS


AS_OTHER = """
import os, sys
from pathlib import Path
from lmscaling.errors import UserError
from lmscaling.runtime import planned

os.setuid(65534)
try:
    planned.check_access(Path(sys.argv[1]))
except UserError as error:
    print(error)
except PermissionError as error:
    print(planned.refused(Path(error.filename).parent))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("mask", "is_named"), [(0o000, False), (0o022, True), (0o077, True)])
def test_a_folder_that_another_user_keeps_for_himself_is_named(tmp_path, mask, is_named):
    top = tmp_path / "top"
    for folder in (tmp_path, tmp_path.parent, tmp_path.parents[1]):
        folder.chmod(0o755)
    before = os.umask(mask)
    (top / "tiny" / "runs").mkdir(parents=True)
    os.umask(before)
    words = [sys.executable, "-c", AS_OTHER, str(top / "tiny")]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert not done.returncode, done.stderr
    assert bool(done.stdout) == is_named
    if is_named:
        assert "umask 002" in done.stdout
        sentence("snakemake", done.stdout.strip())


def test_shards_of_another_study_are_linked_and_not_made_again(tmp_path):
    here, there = (tmp_path / name / "tokens" / "text-1" for name in ("here", "there"))
    for i, ends in enumerate((("bin", "json"), ("bin",))):
        for end in ends:
            leave(there / f"train-{i:05d}.{end}", f"{i}")

    def is_missing(folder, i):
        return not all((folder / f"train-{i:05d}.{end}").exists() for end in ("bin", "json"))

    assert borrowed("train", range(3), here, is_missing) == 1
    assert {path.name for path in here.iterdir()} == {"train-00000.bin", "train-00000.json"}
    assert (here / "train-00000.bin").samefile(there / "train-00000.bin")
    assert borrowed("train", range(3), here, is_missing) == 0


BUSY = "sbatch: error: Batch job submission failed: Unable to contact slurm controller"
NOWHERE = "sbatch: error: invalid partition specified: nowhere"


@pytest.mark.parametrize(("said", "n_asked", "code"), [(BUSY, 2, 0), (NOWHERE, 1, 1)])
def test_sbatch_waits_while_slurm_takes_no_job_and_not_for_what_a_user_must_change(
    tmp_path, said, n_asked, code
):
    """The script comes on standard input, and is given again with each try."""
    script = f"""cat > {tmp_path}/script
echo . >> {tmp_path}/asked
[ $(wc -l < {tmp_path}/asked) -lt 2 ] && {{ echo '{said}' >&2; exit 1; }}
echo 7"""
    program(tmp_path, "sbatch", script)
    program(tmp_path, "sleep", "true")
    path = f"{ROOT / 'workflow' / 'bin'}:{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sbatch", "--parsable", "/dev/stdin"], input="#!/bin/sh\n",
        env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, len((tmp_path / "asked").read_text().split())) == (code, n_asked)
    assert (done.stdout.strip(), said in done.stderr) == (("7", False) if not code else ("", True))
    assert (tmp_path / "script").read_text() == "#!/bin/sh\n"


def test_a_branch_that_is_forced_alone_is_refused_where_its_trunk_keeps_nothing(cells, tmp_path):
    (run,) = (run for run, cell in cells.items() if cell.branch)
    for each in (run, cells[run].trunk):
        leave(tmp_path / "runs" / each / "run.json", json.dumps({"run": each}))
    outputs = planned.Outputs(tmp_path)
    with refused(UserError, run, cells[run].trunk, "snakemake -f"):
        planned.again(outputs, {run}, cells)
    assert planned.again(outputs, {cells[run].trunk}, cells) == {run, cells[run].trunk}
