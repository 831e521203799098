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


@pytest.fixture
def cells():
    return grid.expand(STUDY | {"branches": {"attention": "linear", "shares": [0.5, 1.0]}}).runs


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("-f -- {x}", "x"), ("{x} -f", "x"), ("-f ./{x} -n", "x"), ("--forcerun {x} -- {y}", "x"),
        ("-R={x}", "x"), ("--forcerun={x}", "x"), ("-nf {x} {y}", "xy"), ("-R train", "xyb"),
        ("-R branch evaluate", "b"), ("-F", "xyb"), ("--forceall -- {x}", "xyb"), ("-R all", ""),
        ("--until train -f -- {x}", "x"), ("{x} {y} -R evaluate", ""), ("{x}", ""), ("-p -n", ""),
        ("-f results/other/runs/{x}", ""), ("-f -- results/tiny/report.html", ""), ("", ""),
        ("--omit-from train -R calibrate verify -- {x}", ""), ("-sSnakefile {x}", ""),
        ("-f -- {b}", "b"),
    ],
)  # fmt: skip
def test_a_command_line_forces_the_runs_that_it_names_and_no_others(cells, typed, found):
    groups = planned.groups(cells)
    names = dict(zip("xyb", groups, strict=True))
    paths = {key: f"results/tiny/runs/{name}.json" for key, name in names.items()}
    words = [word.format(**paths) for word in typed.split()]
    outputs = planned.Outputs(Path("results/tiny"), groups)
    meant = {run for key in found for run in groups[names[key]]}
    assert planned.forced(words, outputs, cells) == meant


def test_an_output_that_was_seen_and_is_gone_was_deleted_by_a_user_and_another_is_copied(tmp_path):
    for run in ("a", "b", "c"):
        leave(tmp_path / "runs" / run / "run.json", f'"{run}"')
    groups = {"a": ["a"], "a-branches-1": ["b", "c"], "d": ["d"]}

    def outputs(**more):
        return planned.Outputs(tmp_path, groups | more)

    assert outputs().deleted == set()
    one, two = (tmp_path / "runs" / f"{name}.json" for name in ("a", "a-branches-1"))
    assert (one.read_text(), json.loads(two.read_text())) == ('"a"', {"b": "b", "c": "c"})
    one.unlink()
    assert outputs().deleted == {"a"}
    two.unlink()
    assert outputs().deleted == {"a", "b", "c"}
    leave(tmp_path / "runs" / "a" / "run.json", "1")  # another job has ended it meanwhile
    os.utime(tmp_path / "runs" / "a" / "run.json", (1e9, 1e9))
    assert outputs().deleted == {"b", "c"}
    assert one.read_text() == "1"
    made = outputs(**{"a-branches-2": ["b", "c", "e"]})  # with a branch that has not ended
    assert (made.deleted, made.path("a-branches-2").exists()) == ({"b", "c"}, False)


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
    own = (path for path in (tmp_path, *tmp_path.parents) if path.owner() == "root")
    for folder in own:
        folder.chmod(folder.stat().st_mode | 0o055)
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


@pytest.mark.parametrize(("folder", "code"), [("a b", 1), ("ab", 0)])
def test_a_python_whose_path_has_a_space_is_told_before_it_is_submitted(tmp_path, folder, code):
    program(tmp_path, "sbatch", f"touch {tmp_path}/asked; echo 7")
    done = subprocess.run(
        [ROOT / "workflow" / "bin" / "sbatch", "--parsable", "/dev/stdin"],
        input=f"#!/bin/sh\n\n\ncd /x && A=/y /tmp/{folder}/bin/python -m snakemake --cores 1\n",
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, (tmp_path / "asked").exists()) == (code, not code)
    assert bool(done.stderr) == bool(code)
    if code:
        sentence("error", done.stderr.removeprefix("error: ").strip())


def test_branches_forced_alone_are_refused_where_their_trunk_keeps_nothing(cells, tmp_path):
    branches = {run for run, cell in cells.items() if cell.branch}
    trunk = cells[min(branches)].trunk
    for each in (trunk, *branches):
        leave(tmp_path / "runs" / each / "run.json", json.dumps({"run": each}))
    outputs = planned.Outputs(tmp_path, planned.groups(cells))
    with refused(UserError, f"{trunk}-branches-", "snakemake -f"):
        planned.again(outputs, branches, cells)
    assert planned.again(outputs, {trunk}, cells) == {trunk, *branches}
