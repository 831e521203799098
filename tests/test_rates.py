"""Best learning rates: found with an interval that covers, warned of where unfair, and usable."""

import json

import numpy as np
import pytest
from test_store import end, header, log, record, validation

from lmscaling.config import grid, lr_law, study_file
from lmscaling.errors import UserError
from lmscaling.fits import lr_law as law_fit
from lmscaling.fits import lr_optimum
from lmscaling.report import rates
from lmscaling.store import build as store

FIVE = 2.0 ** np.arange(-2, 3)
SEVEN = 2.0 ** np.arange(-3, 4)


def rows_of(rng, scales, seeds, sd, cubic=0.0, groups=6):
    """Rows of ``QUERY`` of sweeps whose optima are known, with noise that seeds share in part."""
    truth = dict(zip("abcdefgh"[:groups], rng.uniform(-0.3, 0.3, groups), strict=True))
    rows = []
    for attention, best in truth.items():
        u = np.log(scales) - best
        shared = rng.normal(0, 2 * sd, seeds)
        for seed in range(seeds):
            loss = 3 + 0.035 * u**2 * (1 + cubic * u) + shared[seed] + rng.normal(0, sd, len(u))
            for scale, value in zip(scales.tolist(), loss.tolist(), strict=True):
                rows.append((attention, "s", 1024, 6e-4, 786432, 1e6, seed, scale, value))
    return rows, truth


def covered(count, scales, seeds, sd, cubic):
    rng, held = np.random.default_rng(0), []
    for _ in range(count):
        rows, truth = rows_of(rng, scales, seeds, sd, cubic)
        for group in lr_optimum.groups(rows):
            if group.optimum.interval:
                assert group.optimum.interval.assumed is None
                held.append(np.exp(truth[group.attention]) in group.optimum.interval)
    return held


def test_intervals_of_optima_cover_them():
    held = covered(10, FIVE, seeds=3, sd=0.004, cubic=0.15)
    assert len(held) > 50
    assert np.mean(held) >= 0.92


@pytest.mark.ci
@pytest.mark.parametrize("sd", [0.002, 0.01])
@pytest.mark.parametrize("cubic", [0.0, 0.15])
@pytest.mark.parametrize(("scales", "seeds"), [(FIVE, 3), (SEVEN, 2)])
def test_intervals_of_optima_cover_them_in_95_of_100_studies(scales, seeds, sd, cubic):
    held = covered(84, scales, seeds, sd, cubic)  # of six sweeps each
    assert len(held) > 400
    assert 0.92 <= np.mean(held) <= 0.98


def test_one_seed_gives_a_range_that_says_what_it_assumes():
    rows, _ = rows_of(np.random.default_rng(0), SEVEN, seeds=1, sd=0.002)
    for group in lr_optimum.groups(rows):
        assert group.interval is not None
        assert group.interval.assumed


def test_one_rate_on_a_side_gives_an_optimum_without_interval():
    rows, _ = rows_of(np.random.default_rng(0), FIVE[1:4], seeds=3, sd=1e-4)
    for group in lr_optimum.groups(rows):
        assert group.optimum.status == "thin"
        assert group.rate is not None
        assert group.interval is None


def test_it_warns_where_one_attention_was_tuned_and_another_was_not():
    rows, _ = rows_of(np.random.default_rng(0), FIVE[1:4], seeds=1, sd=1e-5, groups=2)
    rows = [row for row in rows if row[0] == "a" or row[7] == 1]
    assert lr_optimum.warnings(lr_optimum.groups(rows)) == [
        "rates: a tuned over 3, b not tuned (s at context 1,024)"
    ]


def test_it_warns_where_the_best_rate_is_the_last_that_was_tried():
    rows, _ = rows_of(np.random.default_rng(0), FIVE[2:] * 4, seeds=1, sd=1e-5, groups=1)
    assert lr_optimum.warnings(lr_optimum.groups(rows)) == [
        "rates: a has its lowest loss at the edge of the rates tried (s at context 1,024)"
    ]


def test_a_study_without_sweeps_is_not_warned_of():
    rows, _ = rows_of(np.random.default_rng(0), np.array([1.0]), seeds=3, sd=0.01)
    assert lr_optimum.groups(rows) == []


def test_the_exponent_of_a_law_is_found_and_its_interval_covers_it():
    n, rng, held = np.geomspace(1e6, 1e9, 4), np.random.default_rng(0), []
    for _ in range(500):
        found = law_fit.fit(n, 3.0 * n**-0.4 * np.exp(rng.normal(0, 0.1, 4)))
        assert found.interval is not None
        held.append(0.4 in found.interval)
    assert 0.92 <= np.mean(held) <= 0.975
    exact = law_fit.fit(n[:2], 3.0 * n[:2] ** -0.4)
    assert (exact.coefficient, exact.exponent) == (pytest.approx(3.0), pytest.approx(0.4))
    assert exact.interval is None


@pytest.fixture
def swept(tmp_path, values):
    """A finished study of three sizes: the best rate of softmax is 0.5 N^-0.3, of linear twice."""
    shapes = {"s": (1, 8), "m": (2, 16), "l": (4, 32)}
    values["sizes"] = {
        name: {"n_layer": layers, "n_head": 1, "d_model": width, "lr": 2.0**-6}
        for name, (layers, width) in shapes.items()
    }
    scales = (2.0 ** np.arange(-4, 6)).tolist()
    values["axes"] |= {"size": list(shapes), "lr_scale": scales}
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps({"command": "", "study": values}))
    for run, cell in study_file.read_record(folder / "study.json").grid.cells.items():
        n = lr_law.matrices(cell.model.n_layer, cell.model.d_model)
        best = 0.5 * n**-0.3 * (2 if cell.attention == "linear" else 1)
        loss = 3 + 0.03 * np.log(cell.lr / best) ** 2
        record(folder, run, log(header(run), validation(2, loss=loss), end(2)))
    store.build(folder)
    return folder


def test_a_fitted_law_gives_the_rates_of_another_study(swept, values, tmp_path):
    path, said = rates.write_law(swept)
    assert "softmax: 0.5 N^-0.3 (0.3 to 0.3) over 3 sizes" in said
    values |= {"lr_law": str(path), "study": "large"}
    values["sizes"]["xl"] = {"n_layer": 8, "n_head": 1, "d_model": 64, "lr": "fitted"}
    values["axes"] |= {"size": ["xl"], "lr_scale": [1.0]}
    (tmp_path / "large.yaml").write_text(json.dumps(values))
    frozen = study_file.read_study([tmp_path / "large.yaml"])
    true = 0.5 * (12 * 8 * 64**2) ** -0.3
    assert frozen["sizes"]["xl"]["lr"] == {
        "linear": pytest.approx(2 * true, rel=0.01),
        "softmax": pytest.approx(true, rel=0.01),
    }
    named = {c.attention: (c.lr, c.run) for c in grid.expand(frozen).cells.values()}
    assert named["linear"][0] == frozen["sizes"]["xl"]["lr"]["linear"]
    path.unlink()  # the record of the study has the numbers
    again = grid.expand(lr_law.filled(frozen)).cells.values()
    assert {c.attention: (c.lr, c.run) for c in again} == named


def test_rates_by_attention_reach_their_cells(values):
    values["sizes"]["s"]["lr"] = {"softmax": 1e-3, "linear": 2e-3}
    values["axes"]["lr_scale"] = {"linear": [0.5, 1.0]}
    found = {(c.attention, c.lr_scale): c.lr for c in grid.expand(values).cells.values()}
    assert found == {("softmax", 1.0): 1e-3, ("linear", 0.5): 1e-3, ("linear", 1.0): 2e-3}


@pytest.mark.parametrize(
    ("lr", "law", "sentence"),
    [
        ({"softmax": 1e-3}, "", "sizes.s.lr has no rate of attention 'linear', only of softmax"),
        ({"softmax": -1, "linear": 1}, "", "sizes.s.lr.softmax is -1; input should be greater"),
        (-1, "", "sizes.s.lr is -1; input should be greater than 0"),
        ("fitted", "", "sizes.s.lr is fitted, but lr_law names no file; write lr_law: results/"),
        (
            "fitted",
            "no.json",
            "lr_law 'no.json' does not exist; type python -m lmscaling fit-rates",
        ),
    ],
)
def test_a_rate_that_is_not_there_is_one_sentence(values, lr, law, sentence):
    values["sizes"]["s"]["lr"] = lr
    with pytest.raises(UserError, match=r"^study file: ") as caught:
        grid.expand(lr_law.filled(values | {"lr_law": law}))
    assert sentence in str(caught.value)


def test_a_damaged_law_is_one_sentence(values, tmp_path):
    values["sizes"]["s"]["lr"] = "fitted"
    path = tmp_path / "lr_law.json"
    path.write_text('{"study": "a", "laws": {"softmax": {"coefficient": -1}}}')
    with pytest.raises(UserError, match=r"lr_law.json: laws.softmax.coefficient is -1; input"):
        lr_law.filled(values | {"lr_law": str(path)})


def test_a_study_of_one_size_gives_no_law_and_says_why(swept, values):
    (swept / "lr_law.json").unlink(missing_ok=True)
    record_ = json.loads((swept / "study.json").read_text())
    record_["study"]["axes"]["size"] = ["s"]
    (swept / "study.json").write_text(json.dumps(record_))
    store.build(swept)
    with pytest.raises(UserError, match="needs the optimum of an attention at two sizes") as caught:
        rates.write_law(swept)
    assert "softmax: no law, its optimum is known at 1 of the 2 sizes needed" in str(caught.value)
    assert not (swept / "lr_law.json").exists()
