"""Claims of the literature: what the published numbers say of them, and what a study does."""

import json
import re
import shutil
from argparse import Namespace
from dataclasses import replace

import pytest
import speed_points
from conftest import ROOT, STUDY, refused, sentence
from golden import FOLDER
from speed_points import DEVICE, OTHER_DEVICE, point
from test_store import end, header, live, log, record, update, validation

from lmscaling import claims, registry
from lmscaling.cli import results
from lmscaling.config import study_file
from lmscaling.store import build as store

NAMES = claims.NAMES
MADE = shutil.ignore_patterns("store", "figures")
CONTEXTS = [1024, 2048, 4096, 8192, 16384, 32768, 65536]
JUDGED = FOLDER / "published_claims.json"
PUBLISHED: dict[str, tuple] = {
    name: (verdict.partition(" to ")[0], float(number.replace(",", "")) if number else None, why)
    for name, (verdict, number, _, why) in json.loads(JUDGED.read_text()).items()
}
"""Verdict, number and reason of the published numbers, by claim."""


@pytest.fixture(scope="module")
def published(published_study, tmp_path_factory):
    """Judgements of the published numbers by claim, and their folder."""
    folder = shutil.copytree(published_study, tmp_path_factory.mktemp("results") / "published")
    return {one.claim.name: one for one in claims.write(folder)}, folder


@pytest.fixture
def study(tmp_path, values):
    values["axes"]["context"] = [16, 32]
    folder = tmp_path / "results" / "tiny"
    folder.mkdir(parents=True)
    write(folder, values)
    return folder


def write(study, values):
    (study / "study.json").write_text(json.dumps({"command": "snakemake", "study": values}))


def judge_all(study):
    store.build(study)
    with store.connect(study / "store") as db:
        return claims.judge_all(db)


def test_the_published_numbers_say_of_each_claim(published, golden):
    found = published[0]
    assert {one.source for one in found.values()} == {"published"}
    rows = claims.format_rows(list(found.values()))
    golden(JUDGED.name, json.dumps(dict(zip(found, (r[2:] for r in rows), strict=True)), indent=1))
    for one in found.values():
        judged = one.judgement
        assert judged.rests_on or (judged.verdict, judged.number) == ("not tested", None)
        without = one.claim.number.endswith("without an interval")
        assert (judged.interval is None) == (judged.number is None or without), one.claim.name
        if judged.number is not None and judged.interval is not None:
            low, high = judged.interval.low, judged.interval.high
            assert low - 1e-9 <= judged.number <= high + 1e-9, one.claim.name


def test_published_runs_have_no_seeds_so_every_range_of_a_loss_says_what_it_assumes(published):
    """Residuals around a cubic are 0.004 to 0.05 nats, and more where linear attention spikes."""
    of_losses = [n for n in NAMES if re.search(r"\bFROM curves\b", claims.load(n).query)]
    ranges = [published[0][name].judgement.interval for name in of_losses]
    assumed = [one.assumed for one in ranges if one]
    assert len(assumed) == 4
    assert 0.01 < min(assumed) < max(assumed) < 0.05


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_is_three_paragraphs_and_a_threshold_with_its_reason(name):
    claim = claims.load(name)
    assert claim.title.endswith(".")
    assert ". " not in claim.title
    assert " 20" in claim.reference
    assert claim.judged.startswith("Judged by ")
    assert claim.number
    played = set(re.findall(r"[$]([a-z]+)", claim.query))
    assert played == set(claim.roles) <= {"candidate", "baseline"}
    if re.search(r"\bloss\b", claim.query):
        assert claim.axis
        named = claim.axis.partition(" ")[0].replace("updates", "steps")
        assert f"at equal {named}" in claim.judged
    if path := registry.sources("claims").get(name):
        assert '\n"""' in path.read_text().partition("\nTHRESHOLD = ")[2].partition("\n\n")[0]
    else:
        assert claim.because.endswith(".")


def test_a_claim_that_no_study_tests_yet_says_what_would_test_it():
    assert not claims.UNTESTED.keys() & set(NAMES)
    for row in claims.UNTESTED.values():
        assert list(row) == ["title", "reference", "test"]
        assert all(text.endswith(".") for text in row.values())


def test_an_empty_study_tests_nothing_and_says_what_is_missing(study):
    store.build(study)
    with store.connect(study / "store") as db:
        for name in NAMES:
            rows = claims.rows_of(db, name, claims.load(name).roles)
            assert rows.empty
            (one,) = claims.judge(name, rows, ["measured"])
            assert one.judgement.verdict == "not tested"
            assert re.fullmatch(r"[^{}]+[.]", one.judgement.why)


def steps(device, **seconds):
    """Steps of methods at two contexts on a device; the batch of the longer one is half."""
    return [
        point("time_step", name.replace("__", " "), c, value * 4096 / c, device, batch=4096 // c)
        for name, value in seconds.items()
        for c in (1024, 2048)
    ]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A study with one situation on each device, and its judgements that tell something."""
    folder = tmp_path_factory.mktemp("measured")
    write(folder, STUDY)
    forms = [
        point("time_step", method, c, n * (c / 1e5) ** power, "forms", batch=n)
        for method, power in (("linear attention_parallel", 2), ("linear state", 1))
        for c, n in ((4096, 4), (8192, 2), (16384, 1))
    ]
    speed_points.write(
        folder,
        *steps(DEVICE, softmax__flash=2.0, linear__chunked=1.0),
        *steps(OTHER_DEVICE, softmax__flash=0.5, linear__chunked=0.8),
        *steps("own", softmax__flash=2.0, gated=1.0, linear__mine=4.0, linear__state=1.0),
        *(point("time_decode", "softmax", c, c / 1e3, "own") for c in CONTEXTS),
        *(point("time_decode", "gated", c, 1.0, "own") for c in CONTEXTS),
        *steps("several", linear__chunked=1.0, softmax__flash=2.0),
        *steps("several", softmax__cudnn=0.8, softmax__no_flash=0.5)[::2],
        *forms,
    )
    return [one for one in judge_all(folder) if one.judgement.verdict != "not tested"]


def on(made, device):
    """By claim and players, the judgements of a device."""
    return {
        (one.claim.name, *one.roles.values()): one.judgement
        for one in made
        if one.setup.partition(",")[0] == device
    }


def test_two_setups_are_judged_apart_and_never_compared(measured):
    key = ("chunked_always_faster", "linear chunked", "softmax fused")
    found = {device: on(measured, device)[key] for device in (DEVICE, OTHER_DEVICE)}
    assert [one.verdict for one in found.values()] == ["holds", "fails"]
    assert all(len(one.rests_on) == 2 for one in found.values())
    assert f"measured: {OTHER_DEVICE}" in claims.text(measured)


def test_an_attention_and_an_implementation_of_ones_own_play_the_candidate(measured):
    found = on(measured, "own")
    assert {key: one.verdict for key, one in found.items()} == {
        ("chunked_always_faster", "gated", "softmax fused"): "holds",
        ("chunked_always_faster", "linear mine", "softmax fused"): "fails",
        ("kv_cache_linear", "softmax"): "holds",
        ("recurrent_slower", "softmax fused"): "fails",
        ("sampling_time", "gated", "softmax"): "holds",
    }
    assert "0.000" in found["sampling_time", "gated", "softmax"].why


def test_times_on_a_cpu_say_nothing_of_a_gpu_but_something_of_growth(study):
    forms = {"linear__state": 2.0, "linear__state_parallel": 0.2}
    decode = [point("time_decode", "softmax", c, c / 1e3, "a CPU") for c in CONTEXTS]
    made = [*steps("a CPU", **forms), *decode]
    speed_points.write(study, *steps(DEVICE, **forms))
    speed_points.write(study, *(replace(one, dtype="float32") for one in made))
    found = {device: on(judge_all(study), device) for device in (DEVICE, "a CPU")}
    one, other = (found[device]["state_one_order",] for device in found)
    assert (one.verdict, other.verdict, other.number) == ("holds", "not tested", None)
    sentence("claim", other.why)
    assert found["a CPU"]["kv_cache_linear", "softmax"].verdict == "holds"


def test_a_claim_about_a_form_is_judged_on_forms_of_the_same_attention_only(study):
    forms = {"linear__chunked": 1.0, "linear__attention_parallel": 2.0, "linear__mine": 3.0}
    speed_points.write(study, *steps(DEVICE, gated=0.5, **forms))
    found = {key: one.verdict for key, one in on(judge_all(study), DEVICE).items()}
    assert {key: one for key, one in found.items() if key[0] == "chunked_best"} == {
        ("chunked_best", "linear chunked"): "holds",
        ("chunked_best", "linear mine"): "fails",
    }


def test_linear_attention_is_compared_with_the_fastest_softmax_that_stores_no_matrix(measured):
    one = on(measured, "several")["chunked_always_faster", "linear chunked", "softmax fused"]
    assert (one.verdict, one.number) == ("fails", 0.8)
    assert {"cudnn", "flash."} <= set(one.why.split())


def test_the_time_of_a_form_is_that_of_a_sequence_however_many_a_step_has(measured):
    one = on(measured, "forms")["form_slopes",]
    assert one.verdict == "holds"
    assert one.number in (pytest.approx(1), pytest.approx(2))


def test_the_baseline_of_a_study_plays_the_baseline_beside_published_numbers(study, values):
    values["axes"]["attention"] = ["linear", "gated"]
    write(study, values | {"published": True})
    shutil.copytree(ROOT / "results" / "published", study.parent / "published", ignore=MADE)
    speed_points.write(study, *steps(DEVICE, linear__chunked=2.0, gated=1.0))
    made = judge_all(study)
    (one,) = [m for m in made if m.source == "measured" and m.judgement.verdict != "not tested"]
    assert (one.claim.name, one.roles) == (
        "chunked_always_faster", {"candidate": "gated", "baseline": "linear chunked"},
    )  # fmt: skip
    ((candidate, *_),) = claims.format_rows([one])
    assert all(name in candidate for name in one.roles.values())
    assert {m.claim.name: m.judgement.verdict for m in made if m.source == "published"} == {
        name: verdict for name, (verdict, *_) in PUBLISHED.items()
    }


def test_half_a_study_is_judged_by_what_it_has_and_its_spikes_are_rates(study, published):
    cells = list(study_file.read_record(study / "study.json").grid.cells)
    losses = [3.0 + n % 2 / 1000 for n in range(200)]
    losses[150] = 9.0
    rows = [update(n + 1, loss=loss) for n, loss in enumerate(losses)]
    record(study, cells[0], log(header(cells[0]), *rows, validation(200), end(200)), updates=200)
    nothing = log(header(cells[1]), update(1, loss=None), end(1, status="diverged"))
    record(study, cells[1], nothing, status="diverged", updates=1)
    speed_points.write(study, *speed_points.tiny())
    made = judge_all(study)
    assert {one.claim.name for one in made} == set(NAMES)
    assert {one.source for one in made} == {"measured"}
    decided = {one.claim.name for one in made if one.judgement.verdict != "not tested"}
    assert "chunked_always_faster" in decided
    assert "gap_grows" not in decided
    query = "SELECT spikes, spikes_per_10000_updates FROM spike_rates WHERE "
    with store.connect(study / "store") as db:
        assert db.sql(f"{query} run = '{cells[0]}'").fetchall() == [(1, 50.0)]
    with store.connect(published[1] / "store") as db:
        assert db.sql(f"{query} run = 'published/linear-124M-ctx65536'").fetchall() == [
            (130, pytest.approx(10_000 * 130 / 237_500))
        ]
        total = db.sql("SELECT count(*), sum(spikes) FROM spike_rates").fetchall()
        assert total == [(48, 386)]


def test_a_run_that_is_not_over_has_no_final_loss(study, values):
    values["axes"]["context"] = [1024, 2048, 4096]
    tokens = {"tokens": 4096, "every_tokens": 4096}
    write(study, values | {"update_tokens": 4096, "validation": tokens})
    cells = study_file.read_record(study / "study.json").grid.cells
    logs = {}
    for run, cell in cells.items():
        loss = 3.0 if cell.attention == "softmax" else 3 + cell.context / 1000
        logs[run] = log(header(run), update(1, loss=loss), validation(1, loss=loss))
    *over, last = logs
    for run in over:
        record(study, run, logs[run] + log(end(1)))
    live(study, last, logs[last])

    def number():
        store.build(study)
        with store.connect(study / "store") as db:
            rows = claims.rows_of(db, name, claims.load(name).roles)
        return claims.judge(name, rows, ["measured"])[0].judgement.number

    name = "softmax_converges"
    assert number() is None
    record(study, last, logs[last] + log(end(1)))
    assert number() == 0.0


def test_the_verb_prints_and_writes(study):
    speed_points.write(study, *steps(DEVICE, softmax__flash=2.0, linear__chunked=1.0)[::2])
    lines = results.claims(Namespace(study=study)).splitlines()
    assert lines[0].split() == ["claim", "candidate", "source", "verdict", "number", "range"]
    assert max(map(len, lines[:-1])) <= 100
    assert [line.split()[0] for line in lines[1:-1] if line[0] != " "] == NAMES
    assert re.findall(r"\d+", lines[-1].rpartition(";")[2]) == ["1", "0", "30"]
    written = json.loads((study / "claims.json").read_text())
    assert [one["name"] for one in written] == NAMES
    (held,) = [one for one in written if one["verdict"] == "holds"]
    assert (held["number"], held["interval"], held["threshold"]) == (
        2.0, {"low": 2.0, "high": 2.0, "assumed": None}, 1.0,
    )  # fmt: skip
    assert held["roles"] == {"candidate": "linear chunked", "baseline": "softmax fused"}
    assert {one["name"]: one["axis"] for one in written}["draft_wins_in_time"] == "hours"


def test_an_unknown_claim_is_named_with_the_nearest():
    with refused(claims.UserError, "gap_grow", "gap_grows"):
        claims.load("gap_grow")
