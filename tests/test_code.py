"""What the code of an attention is, when it is another one, and who says so."""

import re
import shutil
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

DRAWN = ("grid_status", "learning_curves")

MINE = "import torch\nfrom lmscaling.kernels import decode\n\n\nclass Attention:\n    width = 16\n"


@pytest.fixture
def mine(package, cell):
    package.write("mine", MINE)
    return replace(cell, attention="mine")


WORDS = (
    f'"""What it is."""\n\n# Why.\n{MINE}',
    MINE.replace("16", '16  # two tiles\n    """Why."""'),
    MINE.replace("    width", '    """A class."""\n\n    width'),
    MINE.replace("\n\n\n", "\n\n\n\n\n") + "\n",
)
CODE = (
    ("mine", MINE.replace("16", "17")),
    ("mine", MINE.replace("width = 16", 'width = "# 16"')),
    ("mine", f"{MINE}\n    name = '''\n# no comment\n'''"),
    ("kernels/decode", "x = 1\n"),  # imported
    ("kernels/mine/fast", "x = 1\n"),  # of its family
)
OTHERS = ("softmax", "other", "kernels/linear/forms", "train/loop", "kernels/cross_entropy")


def test_what_a_variant_runs_is_its_code_and_words_and_other_files_are_none(package, mine, cell):
    before, other = code.present(mine), code.present(cell)
    for text in WORDS:
        package.write("mine", text)
        assert code.present(mine) == before, text
    for file in OTHERS:
        package.write(file, "x = 1\n")
    assert code.present(mine) == before
    assert code.present(cell) != other
    (package.package / "kernels" / "mine").mkdir()
    for file, text in CODE:
        known = code.present(mine)
        package.write(file, text)
        assert code.present(mine) not in (before, known), file
    package.write("mine", MINE).unlink()
    assert code.present(mine) == ""
    assert not code.is_stale(mine, {"code": before})


def test_an_edit_of_the_model_of_training_or_of_a_helper_is_another_program(package, mine, cell):
    package.write("./_helper", "scale = 2.0\n")
    package.write("mine", f"from lmscaling import _helper\n{MINE}")
    record = {"code": code.present(mine), "program": code.program(mine)}
    assert code.program(cell) != record["program"]  # it has no helper
    old = {"code": record["code"]}  # of before 28 November 2026
    for file in (
        "model/gpt",
        "train/module",
        "config/schedule",
        "kernels/cross_entropy",
        "./_helper",
    ):
        text = (package.package / f"{file}.py").read_text()
        package.write(file, f"{text}\n# Why.\n")
        assert not code.is_stale(mine, record), file
        package.write(file, f"{text}\nX = 1\n")
        assert code.is_stale(mine, record), file
        assert not code.is_stale(mine, old)
        package.write(file, text)
    for file in ("plan/jobs", "store/build", "train/attempt", "config/grid"):
        package.write(file, "x = 1\n")
    assert not code.is_stale(mine, record)


def test_the_files_of_a_variant_are_its_bases_and_kernels_however_they_are_named(package, cell):
    def files(*lines, name="mine"):
        if lines:
            package.write(name, "\n".join(["from lmscaling import kernels", *lines]))
        found = registry.attention_sources([name])
        return {path.relative_to(registry.PACKAGE).as_posix() for path in found}

    package.write("_base", "from .linear import Attention\n")
    mine, linear = files("from . import _base", "FAMILY = 'softmax'"), files(name="linear")
    assert linear < mine
    assert {"attention/_base.py", "kernels/softmax/_pytorch.py"} <= mine
    assert {"kernels/linear/forms.py", "kernels/chunked_triton/forward.py"} < linear
    assert "kernels/cross_entropy.py" not in linear
    package.write("kernels/linear/own", "attend = print\n")
    assert {"own", "state", "chunked"} < set(registry.implementations("linear"))
    for line in ("FAMILY: str = 'softmax'", "attend = kernels.load('softmax', name)"):
        found = files("name = 'flash'", line)
        assert found >= {"kernels/softmax/forms.py", "attention/mine.py"}
        assert "kernels/linear/forms.py" not in found


def test_a_file_that_is_no_python_is_named_with_its_line(package, mine):
    package.write("mine", "x = 1\nclass Attention(:\n")
    with refused(UserError, "attention/mine.py, line 2", "invalid syntax"):
        code.present(mine)
    (package.package / "attention" / "mine.py").write_bytes(b"x = '\xff'\n")
    with refused(UserError, "attention/mine.py", "byte 5"):
        code.present(mine)


@pytest.fixture
def study(package, values):
    """A study of four cells, of which two of ``mine`` and one of softmax are trained."""
    package.write("mine", MINE)
    values["axes"] |= {"attention": ["softmax", "mine"], "context": [16, 32]}
    folder = package.src.parent / "results" / "tiny"
    study_file.write_record(folder / "study.json", {"command": "", "study": values})
    return folder


def trained(study, which, by=None, started="2026-01-01"):
    """Leave the record of a run, of the present code or of another one."""
    laid_out = study_file.read_record(study / "study.json").grid
    run, cell = next((r, c) for r, c in laid_out.cells.items() if c.name == which)
    own = code.present(cell) if by is None else by
    made = log(header(run), update(1), validation(1), update(2), validation(2), end(2))
    record(study, run, made, code=own, started=started)
    write_json(study / "code" / f"{own}.json", {})
    return run


def test_an_edit_is_said_by_status_and_a_reset_takes_exactly_the_stale_runs(study, package):
    kept = [trained(study, "softmax-s-ctx16-s0"), trained(study, "mine-s-ctx16-s0")]
    unknown = trained(study, "softmax-s-ctx32-s0", by="")
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
    gone = trained(study, "mine-s-ctx32-s0", by="0123456789ab")
    assert reset.select(study.parent, None, None, None, stale=True) == (study, [gone])
    reset.move(study, [gone])
    assert {path.name for path in (study / "runs").iterdir()} == {*kept, unknown}
    with refused(UserError, "tiny"):
        reset.select(study.parent, None, None, None, stale=True)


def series(study):
    build.build(study)
    with build.connect(study / "store") as db:
        return dict(db.sql("SELECT name, attention FROM cells").fetchall())


def test_runs_of_several_codes_are_several_series_of_store_figures_and_report(study, package):
    for path in (package.package / "figures").glob("[a-z]*.py"):
        if path.stem not in DRAWN:
            path.unlink()
    first = trained(study, "mine-s-ctx16-s0", by="0123456789ab")
    trained(study, "softmax-s-ctx16-s0", by="")
    trained(study, "softmax-s-ctx32-s0")
    assert set(series(study).values()) == {"mine", "softmax"}  # one code, and an unknown one
    present = trained(study, "mine-s-ctx32-s0")
    named = {"mine-s-ctx16-s0": "mine (code 0123)", "mine-s-ctx32-s0": "mine"}
    assert named.items() <= series(study).items()
    for name in registry.figures():
        figures.save(name, study / "store", study / "figures")
        assert "mine (code 0123)" in (study / "figures" / f"{name}.csv").read_text()
    page = report.write(study).read_text()
    assert "--stale" in page
    assert len(re.findall("by other code</td>", page)) == 1
    columns = (r"mine \(code 0123\)", "0123456789ab", "another")
    assert re.search(r"</td>\s*<td[^>]*>".join(columns), page)
    # Without a run of the present code the latest keeps the name.
    for run in (first, present):
        shutil.rmtree(study / "runs" / run)
    trained(study, "mine-s-ctx16-s0", by="0123456789ab", started="2026-01-03")
    trained(study, "mine-s-ctx32-s0", by="abcd+0123", started="2026-01-02")
    named = {"mine-s-ctx16-s0": "mine", "mine-s-ctx32-s0": "mine (code abcd+0123)"}
    assert named.items() <= series(study).items()
