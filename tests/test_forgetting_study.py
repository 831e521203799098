"""The study of forgetting: its runs are those that its questions ask for."""

import pytest
from conftest import ROOT
from pandas import read_csv

from lmscaling.config import grid, study_file

RATES = read_csv(ROOT / "results" / "measured" / "forgetting" / "rates.csv")


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
