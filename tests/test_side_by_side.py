"""Two folders on one page: the same cells are paired, and what differs is listed."""

import copy
import json
import re

import pytest
from conftest import STUDY, refused, sentence
from test_store import end, header, log, record, update, validation

from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.report import side_by_side, words
from lmscaling.store import build as store


def study(folder, loss=3.0, **changes):
    """A finished study of two attentions and two seeds, whose losses are higher by ``loss``."""
    values = copy.deepcopy(STUDY)
    values["axes"] |= {"seed": [0, 1]}
    values |= changes
    folder.mkdir(parents=True)
    text = json.dumps({"command": "snakemake --cores all", "study": values})
    (folder / "study.json").write_text(text)
    cells = study_file.read_record(folder / "study.json").grid.cells.values()
    for cell in cells:
        more = 0.5 * (cell.attention == "linear") + 0.001 * cell.seed
        rows = [update(n, loss=loss + more + 1 / n) for n in range(1, 5)]
        ends = [validation(n, loss=loss + more + 1 / n) for n in (2, 4)]
        record(folder, cell.run, log(header(cell.run), *rows, *ends, end(4)), updates=4)
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A study and the same with another clipping of gradients, which is better by 0.2 nats."""
    place = tmp_path_factory.mktemp("results")
    folders = study(place / "old"), study(
        place / "new", 2.8, optimizer={"warmup_updates": 2, "clip_norm": 0.5}
    )  # fmt: skip
    for folder in folders:
        store.build(folder)
    return folders


def test_the_same_cells_of_two_studies_are_paired_by_seed(both, tmp_path):
    page, heading = side_by_side.write(both[0], both[1], tmp_path / "page.html")
    sentence("answer", heading)
    assert re.search("new is ahead of old", heading)
    text = page.read_text()
    assert f"<h1>{heading}</h1>" in text
    assert {"linear s", "softmax s"} == set(re.findall(r'data-size="([^"]+)"', text))
    assert f"{words.MINUS}0.20" in text


def test_what_differs_between_them_is_listed_and_nothing_else(both, tmp_path):
    page, _ = side_by_side.write(both[0], both[1], tmp_path / "page.html")
    part = page.read_text().partition('id="differences"')[2].partition("</table>")[0]
    rows = re.findall(r'<th scope="row">([^<]*)</th><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)', part)
    assert rows == [("optimizer.clip_norm", "not given", "0.5")]


def test_the_page_is_written_where_one_types_and_named_after_both(both, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page, _ = side_by_side.write(*both)
    assert page.name == "old-against-new.html"
    assert page.is_file()
    with refused(UserError, both[0]):
        side_by_side.write(both[0], both[0])


@pytest.mark.parametrize(("changes", "said"), [
    ({"validation": {"tokens": 64, "every_tokens": 128}}, ["tokens", 128, 64]),
    ({"documents": "masked"}, ["documents", "masked"]),
])  # fmt: skip
def test_losses_of_different_texts_are_not_compared(both, tmp_path, changes, said):
    values = copy.deepcopy(STUDY) | changes
    (tmp_path / "study.json").write_text(json.dumps({"command": "", "study": values}))
    with refused(UserError, *said):
        side_by_side.write(both[0], tmp_path)


def test_published_losses_are_not_compared_with_those_of_a_study(both, tmp_path):
    with refused(UserError, "published", both[0].name):
        side_by_side.write(tmp_path / "published", both[0])


def test_studies_without_a_common_cell_say_what_each_has(both, tmp_path):
    other = study(
        tmp_path / "other", axes={"attention": ["softmax"], "size": ["s"], "context": [32]}
    )
    store.build(other)
    with refused(UserError, "context 16", "context 32"):
        side_by_side.write(both[0], other)
