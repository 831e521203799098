"""The study of forgetting: its runs are those that its questions ask for, its records are kept in
git, and what is published follows from them."""

import json
import shutil

import divisor_answers
import forgetting_answers as answers
import forgetting_page
import pytest
from conftest import ROOT
from pandas import read_csv

from lmscaling import Study
from lmscaling.config import grid, study_file
from lmscaling.fits import seeds

RATES = read_csv(ROOT / "results" / "measured" / "forgetting" / "rates.csv")

FORMS_OF_SPIKES = ("rounded, sum", "elu+1, sum", "softplus, sum", "elu+1, rms", "softplus, rms")


@pytest.mark.parametrize(
    ("files", "study"),
    [([], "forgetting_rates"), (["forgetting_reset"], "forgetting_reset_rates")],
)
def test_each_form_learns_with_the_best_rate_of_the_search_at_its_context(files, study):
    names = ["study", "forgetting", *files]
    laid_out = study_file.read_study([ROOT / "config" / f"{name}.yaml" for name in names])
    searched = RATES.loc[RATES.study == study].sort_values("loss")
    best = searched.drop_duplicates(["attention", "context"]).set_index(["attention", "context"]).lr
    for cell in grid.expand(laid_out).cells.values():
        form = "softmax" if cell.attention.startswith("local") else cell.attention
        assert cell.lr == pytest.approx(best[form, cell.context]), cell.name


@pytest.fixture(scope="module")
def prose():
    return " ".join((ROOT / "docs" / "forgetting.md").read_text().split())


def test_the_answers_are_those_of_the_records():
    assert forgetting_page.page() + "\n" == forgetting_page.PAGE.read_text()


def test_the_runs_whose_logs_are_kept_have_the_losses_of_the_answers(tmp_path):
    names = ["study.json", "runs", "floors", "checks"]
    for name in names:
        copy = shutil.copytree if (answers.HERE / name).is_dir() else shutil.copy
        copy(answers.HERE / name, tmp_path / name)
    kept = Study(tmp_path).query(answers.QUERIES["validations"])
    known = answers.read("validations", "", None)
    both = kept.merge(known, on=["run", "step"], validate="one_to_one")
    assert len(both) == len(kept) > 0
    assert (both.loss_x == both.loss_y).all()


def test_the_page_says_what_the_records_say(prose):
    of, longer = answers.losses(None), answers.losses_of("longer", None)
    along = answers.read("validations", "", None)
    for form in ("sum", "emptied sum", "gate", "decay 64", "decay 256"):
        assert f"{of.mean(form, 2048):.2f}" in prose, form
    assert f"{of.lag(2048):.2f}" in prose
    sums, rms = (of.excess(form, 2048) for form in ("sum", "rms"))
    emptied, window = (of.excess(form, 2048) for form in ("emptied sum", "window 32"))
    gaps = {
        "another norm": seeds.differences(rms, sums),
        "window": seeds.differences(window, emptied),
        "softmax is ahead": answers.equal_flops(along, "sum", "softmax"),
        "gate ahead": answers.equal_flops(along, "softmax", "gate"),
    }
    for words, sample in gaps.items():
        assert f"{abs(seeds.mean(sample)[0]):.2f}" in prose, words
    for form, rises in answers.rises().items():
        assert f"{seeds.mean(rises[3584])[0]:.2f}" in prose, form
    two = answers.losses_of("two_longer", None).mean("sum", 2048)
    misled, _ = seeds.mean(answers.rises(forgetting_page.TWO)["sum"][3584])
    assert f"ends {two:.2f} above, and 3,584" in prose
    assert f"by {misled:.2f}." in prose
    contexts = forgetting_page.LONGER
    means = {c: longer.mean("sum", c) + longer.floors["exact", c] for c in contexts}
    assert f"lowest at {min(means, key=means.__getitem__):,} tokens" in prose


def test_the_page_has_the_verdicts_and_the_seal(prose):
    for one in answers.verdicts(None):
        assert f"{one.name} {one.verdict}" in prose
    told = dict(line.split(": ", 1) for line in divisor_answers.said())
    for name in ("S1", "S2", "S3", "S4"):
        assert f"{name} {told[name]}" in prose
    spikes = [told[f"S1, {form}"].partition(" (")[0] for form in FORMS_OF_SPIKES]
    assert spikes[1:] == ["0 of 60", "0 of 60", "2 of 60", "2 of 60"]
    assert f"in {spikes[0]} branches" in prose
    with_it, without = told["S3, with 1e-6"].split("; without: ")
    assert (with_it[:7], without[:8]) == ("6 of 24", "13 of 24")
    added = told["S4, 4,096 minus 256, with 4,096 tokens a step"].partition(", ")[0]
    assert f"add {added.replace('+', '')} to" in prose
    longer = answers.losses_of("longer", None)
    assert json.loads(answers.SEAL.read_text()) == answers.predicted(longer)
    *errors, verdict = answers.sealed(longer).splitlines()[1:]
    assert f"H6 {verdict}" in prose
    for line in errors:
        if answers.READER in line or line.startswith("4096: a"):
            assert line.rpartition(" ")[2].lstrip("+-") in prose, line
