"""Two folders on one page: the same cells are paired, and what differs is listed."""

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
    values = STUDY | {"axes": STUDY["axes"] | {"seed": [0, 1]}} | changes
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps({"command": "", "study": values}))
    for cell in study_file.read_record(folder / "study.json").grid.cells.values():
        more = loss + 0.5 * (cell.attention == "linear") + 0.001 * cell.seed
        rows = [update(n, loss=more + 1 / n) for n in range(1, 5)]
        ends = [validation(n, loss=more + 1 / n) for n in (2, 4)]
        record(folder, cell.run, log(header(cell.run), *rows, *ends, end(4)), updates=4)
    store.build(folder)
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A study and the same with another clipping of gradients, which is better by 0.2 nats."""
    place = tmp_path_factory.mktemp("results")
    clipped = {"warmup_updates": 2, "clip_norm": 0.5}
    return study(place / "old"), study(place / "new", 2.8, optimizer=clipped)


def test_cells_of_two_studies_are_paired_by_seed_and_what_differs_is_listed(both, tmp_path):
    page, heading = side_by_side.write(both[0], both[1], tmp_path / "page.html")
    sentence("answer", heading)
    assert re.search("new is ahead of old", heading)
    text = page.read_text()
    assert f"<h1>{heading}</h1>" in text
    assert {"linear s", "softmax s"} == set(re.findall(r'data-size="([^"]+)"', text))
    assert f"{words.MINUS}0.20" in text
    part = text.partition('id="differences"')[2].partition("</table>")[0]
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
    (tmp_path / "study.json").write_text(json.dumps({"command": "", "study": STUDY | changes}))
    with refused(UserError, *said):
        side_by_side.write(both[0], tmp_path)


def test_losses_are_compared_with_no_published_ones_and_only_at_common_cells(both, tmp_path):
    with refused(UserError, "published", both[0].name):
        side_by_side.write(tmp_path / "published", both[0])
    axes = {"attention": ["softmax"], "size": ["s"], "context": [32]}
    with refused(UserError, "context 16", "context 32"):
        side_by_side.write(both[0], study(tmp_path / "other", axes=axes))
