"""The law study: its records are kept in git, and what is published follows from them."""

import json
import re
import shutil

import law_answers
import pytest
from conftest import ROOT

from lmscaling import Study
from lmscaling.status import sealing


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The study of the repository, without the store and the figures that others may have made."""
    place = tmp_path_factory.mktemp("kept") / "law"
    clean = shutil.ignore_patterns("store", "figures")
    return Study(shutil.copytree(law_answers.FOLDER, place, ignore=clean))


def test_the_answers_are_those_of_the_records(kept):
    assert law_answers.page(kept) + "\n" == law_answers.PAGE.read_text()


def test_the_readme_and_the_page_say_what_the_records_say(kept):
    pages = (ROOT / "README.md", ROOT / "docs" / "law_study.md")
    readme, page = (" ".join(path.read_text().split()) for path in pages)
    ends = kept.query(law_answers.ENDS)
    whole = ends[ends.share == 1.0].groupby(["attention", "size"]).loss.mean()
    rows = kept.query(law_answers.MULTIPLIERS).set_index(["attention", "size"])
    for text in (readme, page):
        for name in law_answers.OTHERS:
            one = rows.loc[(name, law_answers.LARGE)]
            said = f"{name} {one.flops:.2f} ({one.flops_low:.2f} to {one.flops_high:.2f})"
            assert said in text
        losses = ", ".join(
            f"{name} {whole[name, law_answers.LARGE]:.2f}"
            for name in ("softmax", *law_answers.OTHERS)
        )
        assert losses in text
    loss, one = whole["linear", law_answers.HELD_OUT], rows.loc[("linear", law_answers.HELD_OUT)]
    assert f"{loss:.2f} nats" in page
    assert f"risen to {one.flops:.2f}" in page
    floors = kept.query(law_answers.FLOORS).set_index("name").loss
    assert f"{floors['5-gram']:.2f} nats" in readme
    n = len(kept.query("SELECT DISTINCT attention, size, seed FROM endpoints WHERE share = 1"))
    assert re.search(rf"\b{n} runs\b", page)


def test_the_page_says_which_laws_are_refused_and_how_the_gaps_grow(kept):
    page = " ".join((ROOT / "docs" / "law_study.md").read_text().split())
    laws = kept.fit("surface").query("schedule == 'decayed'").set_index("attention").status
    assert laws.to_dict() == {
        "softmax": "interaction", "retention": "interaction", "linear": "no_floor"
    }  # fmt: skip
    ends = kept.query(law_answers.ENDS)
    for name, change in (("linear", "shrinks"), ("retention", "grows")):
        places = (law_answers.SMALL, 0.25), (law_answers.LARGE, 1.0)
        small, large = (
            sum(gaps.values()) / len(gaps)
            for gaps in (law_answers.gaps(ends, name, *place) for place in places)
        )
        assert (large > small) == (change == "grows")
        assert change in page
        assert f"from {small:.3f} to {large:.3f}" in page
    losses = ends.groupby(["attention", "size", "share"]).loss.mean()
    for size in ("55k", "100k"):
        first, second, third = losses["linear", size].diff().dropna()
        assert third < second < first < 0


def test_an_attention_whose_law_is_refused_is_drawn_as_points_and_said(kept):
    (axes,) = kept.figure("loss_over_compute").axes
    told = {text.get_text().partition(":")[0]: text.get_text() for text in axes.texts}
    assert {*told} == {"softmax", "retention", "linear"}
    assert len(axes.lines) == 2
    assert not re.search(r"\d", told["linear"])
    assert re.search(r"\d", told["retention"])


def test_the_seal_was_made_before_what_it_predicts_and_has_its_hash(kept):
    assert sealing.verify(kept.folder)
    (seal,) = (kept.folder / "forecasts").glob("*.json")
    made = json.loads(seal.read_text())
    sealed = {row["name"]: row for row in made["forecasts"]}
    held_out = [name for name in sealed if f"-{law_answers.HELD_OUT}-" in name]
    assert len(held_out) == len(sealed)
    known = {row["name"]: row for row in kept.runs().to_dict("records")}
    for name in held_out:
        assert known[name]["status"] == "pending" or known[name]["started"] > made["sealed"]


def test_the_readme_and_the_page_say_how_far_the_seal_and_the_line_missed(kept):
    told = law_answers.sealed(kept, kept.query(law_answers.ENDS))
    seal, line, verdict = re.findall(
        r"errors: ([\d.]+) nats of the seal, ([\d.]+) of the line. The forecast is ([\w ]+)\.", told
    )[0]
    readme, page = (ROOT / name for name in ("README.md", "docs/law_study.md"))
    for text in (" ".join(path.read_text().split()) for path in (readme, page)):
        assert f"{seal} nats" in text
        assert line in text
    assert f"the forecast is {verdict}" in page.read_text()
