"""What the code of an attention is, when it is another one, and who says so."""

import json
import re
from dataclasses import replace

import pytest
from conftest import refused
from test_store import end, header, log, record, update, validation

from lmscaling import figures, registry, report
from lmscaling.config import code, study_file
from lmscaling.errors import UserError
from lmscaling.files import write_json
from lmscaling.status import reset, stale, table
from lmscaling.store import build

DRAWN = ("grid_status", "learning_curves_tokens")

MINE = "import torch\nfrom lmscaling.kernels import decode\n\n\nclass Attention:\n    width = 16\n"


@pytest.fixture
def mine(package, cell):
    package.write("mine", MINE)
    return replace(cell, attention="mine")


def names(files):
    return {path.relative_to(registry.PACKAGE).as_posix() for path in files}


WORDS = (
    f'"""What it is."""\n\n# Why.\n{MINE}',
    MINE.replace("16", "16  # two tiles"),
    MINE.replace("    width", '    """A class."""\n\n    width').replace(
        "16", '16\n    """Why."""'
    ),
    MINE.replace("\n\n\n", "\n\n\n\n\n") + "\n",
)
CODE = (
    ("mine", MINE.replace("16", "17")),
    ("mine", MINE.replace("width = 16", 'width = "# 16"')),
    ("mine", f"{MINE}\n    name = '''\n# no comment\n'''"),
    ("kernels/decode", "x = 1\n"),  # imported
    ("kernels/mine/fast", "x = 1\n"),  # of its family
)


def test_what_runs_is_code_and_words_are_none(package, mine):
    before = code.present(mine)
    for text in WORDS:
        package.write("mine", text)
        assert code.present(mine) == before, text
    (package.package / "kernels" / "mine").mkdir()
    for file, text in CODE:
        known = code.present(mine)
        package.write(file, text)
        assert code.present(mine) not in (before, known), file


def test_files_that_a_variant_does_not_use_are_not_its_code(package, mine, cell):
    before = code.present(mine)
    for file in ("softmax", "other", "kernels/linear/chunked", "train/loop", "kernels/functional"):
        package.write(file, "x = 1\n")
    assert code.present(mine) == before
    assert code.present(cell) != before


def test_the_files_of_a_variant_are_its_bases_and_kernels_however_they_are_named(package, cell):
    package.write("_base", "from .linear import Attention\n")
    package.write(
        "mine", "from lmscaling import kernels\nfrom . import _base\n\nFAMILY = 'softmax'\n"
    )
    mine = names(code.attention_files(replace(cell, attention="mine")))
    linear = names(code.attention_files(replace(cell, attention="linear")))
    assert linear < mine
    assert {"attention/_base.py", "kernels/softmax/_pytorch.py"} <= mine
    assert {"kernels/linear/chunked.py", "kernels/chunked_triton/forward.py"} < linear
    assert "kernels/functional.py" not in linear
    for line in ("FAMILY: str = 'softmax'", "attend = kernels.load('softmax', name)"):
        package.write("mine", f"from lmscaling import kernels\n\nname = 'flash'\n{line}\n")
        files = names(code.attention_files(replace(cell, attention="mine")))
        assert files >= {"kernels/softmax/flash.py", "attention/mine.py"}
        assert "kernels/linear/chunked.py" not in files
    package.write("mine", "from lmscaling import kernels\nattend = kernels.linear_attention\n")
    files = names(code.attention_files(replace(cell, attention="mine")))
    assert {"kernels/functional.py", "kernels/chunked_triton/gates.py"} < files
    assert "attention/linear.py" not in files


def test_a_file_that_is_no_python_is_named_with_its_line(package, mine):
    package.write("mine", "x = 1\nclass Attention(:\n")
    with refused(UserError, "attention/mine.py, line 2", "invalid syntax"):
        code.present(mine)
    (package.package / "attention" / "mine.py").write_bytes(b"x = '\xff'\n")
    with refused(UserError, "attention/mine.py", "byte 5"):
        code.present(mine)


def test_a_variant_whose_file_is_gone_has_no_code(package, mine):
    was = code.present(mine)
    package.write("mine", MINE).unlink()
    assert code.present(mine) == ""
    assert not code.is_stale(mine, {"code": was})


@pytest.fixture
def study(package, values):
    """A study of four cells, of which two of ``mine`` and one of softmax are trained."""
    package.write("mine", MINE)
    values["axes"] |= {"attention": ["softmax", "mine"], "context": [16, 32]}
    folder = package.src.parent / "results" / "tiny"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps({"command": "", "study": values}))
    return folder


def trained(study, which, by=None):
    """Leave the record of a run, of the present code or of another one."""
    laid_out = study_file.read_record(study / "study.json").grid
    run, cell = next((r, c) for r, c in laid_out.cells.items() if c.name == which)
    write_json(study / "cells" / f"{run}.json", json.loads(cell.to_json()))
    record(study, run, log(header(run), update(1), validation(1), update(2), validation(2), end(2)))
    path = study / "runs" / run / "run.json"
    own = code.present(cell) if by is None else by
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code": own}))
    (study / "code").mkdir(exist_ok=True)
    (study / "code" / f"{own}.json").touch()
    return run


def test_an_edit_is_said_by_status_and_plan_and_trains_nothing(study, package):
    trained(study, "mine-s-ctx16-s0")
    trained(study, "softmax-s-ctx16-s0")
    trained(study, "softmax-s-ctx32-s0", by="")
    laid_out = study_file.read_record(study / "study.json").grid
    assert stale.runs(study, laid_out) == []
    assert "other code" not in table.progress(study)
    package.write("mine", MINE.replace("16", "17"))
    lines = table.progress(study).splitlines()
    said = [line.split()[0] for line in lines if line.endswith("by other code")]
    assert said == ["mine-s-ctx16-s0"]
    assert lines[-1].split() == ["lmscaling", "reset", "--study", "tiny", "--stale"]
    package.write("mine", MINE)
    assert stale.runs(study, laid_out) == []


def test_a_reset_of_stale_runs_takes_exactly_these(study, package, capsys):
    kept = [trained(study, "softmax-s-ctx16-s0"), trained(study, "mine-s-ctx16-s0")]
    gone = trained(study, "mine-s-ctx32-s0", by="0123456789ab")
    unknown = trained(study, "softmax-s-ctx32-s0", by="")
    assert reset.select(study.parent, None, None, None, stale=True) == (study, [gone])
    reset.move(study, [gone])
    assert {path.name for path in (study / "runs").iterdir()} == {*kept, unknown}
    with refused(UserError, "tiny"):
        reset.select(study.parent, None, None, None, stale=True)


def series(study):
    build.build(study)
    with build.connect(study / "store") as db:
        return dict(db.sql("SELECT name, attention FROM cells").fetchall())


def test_runs_of_several_codes_are_several_series(study, package):
    trained(study, "mine-s-ctx16-s0", by="0123456789ab")
    trained(study, "softmax-s-ctx16-s0", by="")
    trained(study, "softmax-s-ctx32-s0")
    assert set(series(study).values()) == {"mine", "softmax"}  # one code, and an unknown one
    trained(study, "mine-s-ctx32-s0")
    assert series(study) == {
        "mine-s-ctx16-s0": "mine (code 0123)",
        "mine-s-ctx32-s0": "mine",
        "softmax-s-ctx16-s0": "softmax",
        "softmax-s-ctx32-s0": "softmax",
    }


def test_without_a_run_of_the_present_code_the_latest_keeps_the_name(study, package):
    for name, by in (("mine-s-ctx16-s0", "0123456789ab"), ("mine-s-ctx32-s0", "abcd+0123")):
        path = study / "runs" / trained(study, name, by=by) / "run.json"
        started = {"started": "2026-01-02" if "+" in by else "2026-01-03"}
        path.write_text(json.dumps(json.loads(path.read_text()) | started))
    named = series(study)
    assert named["mine-s-ctx16-s0"] == "mine"
    assert named["mine-s-ctx32-s0"] == "mine (code abcd+0123)"


def test_the_report_says_which_runs_are_of_other_code_and_figures_split(study, package):
    for path in (package.package / "figures").glob("[a-z]*.py"):
        if path.stem not in DRAWN:
            path.unlink()
    trained(study, "mine-s-ctx16-s0", by="0123456789ab")
    trained(study, "mine-s-ctx32-s0")
    build.build(study)
    for name in DRAWN:
        figures.save(name, study / "store", study / "figures")
        assert "mine (code 0123)" in (study / "figures" / f"{name}.csv").read_text()
    page = report.write(study).read_text()
    assert "--stale" in page
    assert len(re.findall("by other code</td>", page)) == 1
    columns = (r"mine \(code 0123\)", "0123456789ab", "another")
    assert re.search(r"</td>\s*<td[^>]*>".join(columns), page)
