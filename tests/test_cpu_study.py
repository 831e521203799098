"""The study on CPU cores: its records are kept in git, and what is published follows from them."""

import shutil

import cpu_answers as rules
import cpu_study
import numpy as np
import pytest
from conftest import ROOT

from lmscaling import Study

CONTEXTS = (128, 512, 2048, 8192)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The study of the repository, without the store and the figures that others may have made."""

    place, clean = tmp_path_factory.mktemp("kept"), shutil.ignore_patterns("store", "figures")
    folders = cpu_study.FOLDER, cpu_study.ENGLISH
    return [Study(shutil.copytree(each, place / each.name, ignore=clean)) for each in folders]


def test_the_page_says_what_the_records_say(kept):
    assert cpu_study.page(*kept) in cpu_study.PAGE.read_text()


def test_the_readme_and_the_prose_of_the_page_say_what_the_records_say(kept):
    text = " ".join((ROOT / "README.md").read_text().split())
    found = cpu_study.Finished(kept[0])
    at = {c: [*rules.gaps(found.losses, "linear", "100k", c).values()] for c in CONTEXTS}
    assert {len(values) for values in at.values()} == {3}
    numbers = ", ".join(f"{np.mean(values):.2f}" for values in at.values())
    assert f"by {numbers} nats".replace(", 0.15", " and 0.15") in text
    rows = [row.split(" | ") for row in rules.closing(found.losses).splitlines()]
    closing = {row[0].strip("| ") for row in rows if row[-1].strip(" |") == "closes"}
    assert closing == {"retention", "gated", "gated_delta", "local.window128"}
    hybrid = rules.gaps(found.losses, "linear_x3.softmax", "100k", 2048)
    assert 0.4 < np.mean([*hybrid.values()]) / np.mean(at[2048]) < 0.5
    winners = rules.winners(found.at_equal_seconds(), found.pace).splitlines()
    best = [row.split("|")[4:8:2] for row in winners if "| 100k |" in row]
    assert {name.strip() for name, _ in best} == {"retention"}
    assert ["softmax" in tied for _, tied in best] == [True, False, False, False]
    page = " ".join((ROOT / "docs" / "cpu_study.md").read_text().split())
    floors = {
        row.name: row for row in kept[0].query("FROM floor_counts WHERE cells > 0").itertuples()
    }
    known = "In {0.above} of {0.cells} cells the loss is above {0.loss:.2f} nats"
    for said in (text, page):
        assert known.format(floors["3-gram"]) in said
    four = floors["4-gram"]
    assert four.above == four.cells
    assert f"{four.loss:.2f} nats" in page
    losses = kept[0].query("SELECT loss FROM final WHERE size = '2700k' ORDER BY attention DESC")
    for loss, name in zip(losses.loss, ("softmax", "linear"), strict=True):
        assert f"{loss - rules.line(found.sizes)[name][0]:.3f}" in page
    one, other = found.losses["softmax", "800k", 512].values()
    assert f"{other - one:.3f} nats" in page
    rates = Study(ROOT / "results" / "measured" / "cpu-python-rates", fresh=True)
    hours = [cpu_study.query(one, cpu_study.PROGRESS) for one in (kept[0], rates, kept[1])]
    study, search, english = (sum(row["hours"] for row in rows) for rows in hours)
    assert round(study) == 7
    assert f"{search:.1f} CPU hours" in page
    assert f"English {english:.1f}" in page
