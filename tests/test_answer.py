"""The words of the report: who is ahead, how sure that is, what would decide, what is not told."""

import re
import shlex
from dataclasses import replace
from itertools import chain, pairwise, product
from math import exp
from pathlib import Path

import pytest
from conftest import ROOT
from snakemake.cli import parse_config

from lmscaling.config import grid, study_file
from lmscaling.report import answer, chart, contest, timing
from lmscaling.report.contest import Evidence
from snakemake_logger_plugin_lmscaling import rewritten

SEEDS = (0, 1, 2, 3)
NOISE = (0.01, -0.01, 0.004, -0.004)
"""What the seeds of a pair add to its gap, nats."""


def made(gaps, seeds=(0,), baseline="softmax", status=None, budget_hours=None):
    """Evidence of a study in which each candidate has a gap in each cell: finals and curves."""
    status = status or {}
    cells, curves, losses, paths = [], [], [], []
    places = sorted({place for of in gaps.values() for place in of})
    shapes = {size: i + 1 for i, size in enumerate(dict.fromkeys(size for size, _ in places))}
    for i_place, (size, context) in enumerate(places):
        params = 10_000 * shapes[size]
        for i_name, name in enumerate((baseline, *gaps)):
            for seed in seeds:
                state = status.get((name, size, context), "done")
                gap = 0.0 if name == baseline else gaps[name].get((size, context), 0.0)
                gap += NOISE[(seed + i_name + i_place) % 4] if i_name else 0.0
                head = {"attention": name, "size": size, "context": context, "seed": seed}
                is_done = state == "done"
                run = f"{name}-{size}-{context}-{seed}"
                cells.append(
                    head
                    | {
                        "status": state, "message": "", "skipped": None, "params": params,
                        "n_layer": shapes[size], "d_model": 8, "update_tokens": 64,
                        "flops_per_token": 100.0, "budget": "100 updates",
                        "budget_hours": budget_hours, "hours": 2.0 if is_done else None,
                        "updates": 100 if is_done else 3, "baseline": baseline, "place": len(cells),
                        "name": run, "lr_scale": 1.0, "loss": 3.0 + gap if is_done else None,
                        "is_final": is_done, "spikes": 0, "highest_spike": None,
                    }
                )  # fmt: skip
                if state == "pending":
                    continue
                for i in range(1, 41):
                    spent = 100 * i / 40
                    loss = 3.0 + gap + 1.5 / i**0.5 - 1.5 / 40**0.5
                    numbers = {
                        "updates": spent, "tokens": 64 * spent, "hours": spent / 50,
                        "flops": 6400 * spent,
                    }  # fmt: skip
                    spike = 9.5 if (name, i) == ("softmax", 30) else None
                    curves.append(head | numbers | {"run": run, "loss": loss, "spike": spike})
                    if is_done:
                        paths.append((
                            "measured", size, params, context, name == baseline, name, seed,
                            spent, spent / 50, 6400 * spent, loss,
                        ))  # fmt: skip
                if is_done:
                    losses.append((
                        "measured", size, params, context, name == baseline, name, seed,
                        3.0 + gap, None,
                    ))  # fmt: skip
    return Evidence(
        source="measured", cells=cells, curves=curves, losses=losses, paths=paths, speeds=[]
    )


def said(evidence, command="snakemake --cores all --configfile my.yaml"):
    return answer.write(contest.judge(evidence), evidence, "100 updates", command)


def everything(words):
    tiles = [f"{t.title}: {t.says}. {t.text}" for _, tiles in words.tiles for t in tiles]
    return "\n".join([words.heading, *words.lede, *words.next, *tiles, *map(str, words.untold)])


BEHIND = {("s", 64): 0.2, ("s", 256): 0.3, ("m", 64): 0.25, ("m", 256): 0.35}


def test_one_seed_gives_a_range_that_says_what_it_assumes_and_asks_for_seeds():
    words = said(made({"linear": BEHIND}))
    assert words.heading == (
        "After equal updates, linear is behind softmax in all four cells, by one seed each."
    )
    text = everything(words)
    assert re.search(r"\+0\.\d\d nats \(\+0\.\d\d to \+0\.\d\d if seeds differ by 0\.0\d", text)
    assert "nothing measures the noise of a gap" in text
    assert "95 %" not in text
    assert "One more seed in every cell would measure the noise" in text
    assert words.command == ("snakemake --cores all --configfile my.yaml --set 'axes.seed=[0,1]'")


def cells_of(command):
    """What a command plans, read as Snakemake and the workflow do."""
    program, *words = rewritten(shlex.split(command))
    assert program == "snakemake"
    options, i = words[words.index("--cores") :], words.index("--config")
    files = [ROOT / "config/study.yaml"]
    files += [ROOT / word for word in options if word.endswith(".yaml")]
    overrides = study_file.passed(parse_config([words[i + 1]])["set"])
    return list(grid.expand(study_file.read_study(files, overrides=overrides)).cells.values())


def test_the_advised_command_plans_the_same_study_with_more_seeds():
    files, own = [Path("config/demo.yaml")], ["budget=20 updates", "axes.seed=[0]", "skip=[]"]
    command = study_file.command("snakemake --cores all", files, {}, own)
    before = cells_of(command)
    advised = said(made({"linear": BEHIND}), command).command
    assert advised.startswith(command)
    after = cells_of(advised)
    assert {cell.seed for cell in before} == {0}
    assert {cell.name for cell in before} < {cell.name for cell in after}
    assert {cell.name.replace("-s1", "-s0") for cell in after} == {cell.name for cell in before}


def test_the_command_of_the_published_numbers_trains_the_closest_contest_alone():
    evidence = replace(made({"linear": {("124M", 256): 0.01}}), source="published")
    known = [("published", *row[1:]) for row in evidence.losses]
    paths = [("published", *row[1:]) for row in evidence.paths]
    cells = cells_of(said(replace(evidence, losses=known, paths=paths), "").command)
    found = [(cell.attention, cell.size, cell.context, cell.seed) for cell in cells]
    seeds = range(len(cells) // 2)
    assert len(seeds) > 1
    assert sorted(found) == list(product(("linear", "softmax"), ("124M",), (256,), seeds))


def test_several_seeds_give_intervals_of_95_percent_and_no_assumption():
    words = said(made({"linear": BEHIND}, SEEDS))
    assert words.heading == "After equal updates, linear is behind softmax in all four cells."
    text = everything(words)
    assert "if seeds differ" not in text
    assert "95 % intervals from 4 paired seeds a cell; verdicts are corrected for 4 gaps." in text
    assert not words.command
    assert "loses 4 of 4" in text


def test_beside_gaps_with_seeds_those_that_assume_noise_are_counted():
    contests = [contest.judge(made({"linear": BEHIND}, seeds)) for seeds in ((0,), SEEDS)]
    edges = [edge for one in contests for edge in one.edges["updates"]["linear"].values()]
    first, second = answer._sure(edges)
    assert first.startswith("95 % intervals from 4 paired seeds a cell")
    assert second.startswith("Nothing measures the noise of four other gaps; 0.0")
    assert "At that, 4 of 4 gaps exceed chance" in second


def test_a_gap_within_the_noise_is_undecided_with_the_seeds_that_would_decide():
    place = ("s", 64)
    words = said(made({"linear": BEHIND | {place: -0.009}}, SEEDS))
    assert words.heading == (
        "After equal updates, linear is behind softmax in three and undecided in one of four cells."
    )
    (sentence,) = words.next
    assert re.match(r"\w+ more seeds? would decide s at context 64 of linear", sentence)
    wanted = [int(n) for n in re.findall(r"\d+", words.command.partition("seed")[2])]
    assert wanted == list(range(len(wanted)))
    assert len(wanted) > len(SEEDS)


def test_the_noise_of_one_gap_is_not_asked_for_before_open_contests_are_decided():
    place = ("s", 64)
    evidence = made({"linear": BEHIND | {place: -0.009}}, SEEDS)
    found = contest.judge(evidence)
    (alone,) = (
        contest.judge(made({"linear": {("m", 256): 0.35}})).edges["updates"]["linear"].values()
    )
    assert not alone.is_tested
    edges = {"linear": found.edges["updates"]["linear"] | {("m", 256): alone}}
    found = replace(found, edges=found.edges | {"updates": edges})
    (sentence,) = answer.write(found, evidence, "100 updates", "snakemake").next
    assert "would decide s at context 64 of linear" in sentence


def test_a_gap_as_good_as_zero_takes_more_seeds_than_are_advised():
    words = said(made({"linear": {("s", 64): 0.0001, ("m", 64): 0.3}}, SEEDS))
    assert "would take more than 20 seeds" in everything(words)
    assert not words.command


def test_the_better_of_three_candidates_is_named_first():
    gaps = {
        "worse": BEHIND,
        "better": {place: -gap for place, gap in BEHIND.items()},
        "mixed": {place: gap if place[0] == "s" else -gap for place, gap in BEHIND.items()},
    }
    words = said(made(gaps, SEEDS))
    assert words.heading == (
        "After equal updates, better is ahead of softmax in all four cells; mixed is ahead of "
        "softmax in two and behind in two of four cells; worse is behind softmax in all four cells."
    )
    assert [name for name, _ in words.tiles] == ["better", "mixed", "worse"]
    for _, tiles in words.tiles:  # nothing was timed, so no tile says that for each of three
        assert not [tile.says for tile in tiles if "not timed" in tile.says]
    assert len(words.scores) == 2 * 4


def test_of_many_candidates_the_two_best_are_in_the_heading():
    gaps = {f"v{i}": {place: gap + i / 10 for place, gap in BEHIND.items()} for i in range(5)}
    words = said(made(gaps, SEEDS))
    assert words.heading == (
        "After equal updates, v0 is behind softmax in all four cells; v1 is behind softmax in all "
        "four cells; three others below."
    )
    assert len(words.lede) == 3 + 1  # a range each, and what the noise rests on
    assert len(words.tiles) == 5


def test_as_many_wins_as_losses_have_no_leader():
    words = said(made({"linear": {("s", 64): 0.3, ("m", 64): -0.3}}, SEEDS))
    ((_, (tile, *_)),) = words.tiles
    assert (tile.side, tile.says) == ("undecided", "wins 1, loses 1 of 2")


def test_a_failed_cell_is_counted_and_has_no_verdict():
    words = said(made({"linear": BEHIND}, SEEDS, status={("linear", "s", 64): "diverged"}))
    assert "in all three cells" in words.heading
    untold = dict(words.untold)
    assert "linear 4 of 16 diverged or exploded" in untold["What failed runs would have reached"]
    assert untold["Cells without a comparison"] == "1 linear diverged."
    failed = words.score_head.index(("failed", "runs"))
    assert [s.cells[failed][0] for s in words.scores if s.attention == "linear"] == ["", "4"]


def test_without_a_finished_run_there_is_no_verdict():
    pending = {(name, *place): "pending" for name in ("softmax", "linear") for place in BEHIND}
    words = said(made({"linear": BEHIND}, status=pending))
    assert words.heading == "No run has finished: 8 pending."
    assert words.command == "snakemake --cores all --configfile my.yaml"
    assert not words.scores
    assert not words.tiles


def test_without_the_baseline_no_candidate_is_compared():
    missing = {("softmax", *place): "pending" for place in BEHIND}
    words = said(made({"linear": BEHIND}, status=missing))
    assert words.heading == "linear is not yet compared with softmax."
    assert "Four cells to be trained (4 pending): the command below goes on." in words.next


def test_a_baseline_alone_is_said_to_be_alone():
    evidence = made({"linear": {("s", 64): 0.1}})
    alone = Evidence(
        source="measured", cells=[r for r in evidence.cells if r["attention"] == "softmax"],
        curves=evidence.curves[:40], losses=[], paths=[], speeds=[],
    )  # fmt: skip
    assert said(alone).heading == ("softmax was trained alone: there is nothing to compare.")


def test_runs_of_unequal_hours_are_compared_by_their_curves():
    evidence = made({"linear": BEHIND}, budget_hours=2.0)
    losses = [(*row[:-1], 1.0 if row[5] == "softmax" else 0.5) for row in evidence.losses]
    judged = contest.judge(replace(evidence, losses=losses))
    edges = judged.edges["hours"]["linear"]
    assert [edge.spent for edge in edges.values()] == pytest.approx([2.0] * 4)
    assert edges["s", 64].gap == pytest.approx(0.2, abs=0.011)


def test_a_view_is_the_same_path_under_another_transformation():
    evidence = made({"linear": BEHIND}, SEEDS)
    judged = contest.judge(evidence)
    drawn = chart.draw(judged, evidence.curves, ["softmax", "linear"])
    assert len(drawn.paths) == 2 * 2 * 4 * 4  # hours and updates, of each run
    seen = [(view.axis, view.range) for view in drawn.views[0]]
    assert seen == list(product(("hours", "updates", "tokens", "flops"), ("end", "whole")))
    paths = {path.name: path for path in drawn.paths}
    for view in chain(*drawn.views.values()):
        for use in view.uses:
            a, _, _, d, e, f = map(float, re.findall(r"[-\d.e]+", use.transform))
            x, y = map(int, paths[use.path].line.rpartition("L")[2].split())
            assert a * x + e == pytest.approx(1000, abs=1)  # all runs end together here
            assert f + d * y == pytest.approx(
                1000 * (view.top - y / 1000) / (view.top - view.bottom), abs=0.1
            )
            assert -1 < f + d * y < 1001


def test_labels_of_curves_never_cover_each_other_and_spikes_above_the_frame_are_named():
    evidence = made({"linear": {("s", 64): 0.0001}, "other": {("s", 64): 0.0002}})
    drawn = chart.draw(contest.judge(evidence), evidence.curves, ["softmax", "linear", "other"])
    for view in chain(*drawn.views.values()):
        at = sorted(mark.at for mark in view.ends)
        assert all(b - a >= chart.LETTERS - 1e-9 for a, b in pairwise(at))
        assert [(mark.text, mark.attention) for mark in view.spikes] == [("9.5", "softmax")]


def test_the_first_view_is_the_closest_contest():
    evidence = made({"linear": BEHIND | {("m", 64): 0.002}}, SEEDS)
    judged = contest.judge(evidence)
    drawn = chart.draw(judged, evidence.curves, ["softmax", "linear"])
    titles = {place.cell: place.title for _, row in drawn.rows for place in row}
    assert titles[drawn.first] == "m at context 64"


def test_a_whole_run_is_shown_from_its_first_loss_and_its_end_over_a_factor_of_16():
    evidence = made({"linear": {("s", 64): 0.1}})
    drawn = chart.draw(contest.judge(evidence), evidence.curves, ["softmax", "linear"])
    for end, whole in zip(drawn.views[0][::2], drawn.views[0][1::2], strict=True):
        assert exp(end.high - end.low) == pytest.approx(16)
        assert exp(whole.high - whole.low) == pytest.approx(40)
        assert whole.high == end.high
        assert whole.top > end.top


def test_a_run_that_ended_before_the_range_leaves_the_view_of_the_others():
    evidence = made({"linear": {("s", 64): 0.1}})
    curves = [row for row in evidence.curves if row["attention"] != "linear" or row["updates"] < 6]
    drawn = chart.draw(contest.judge(evidence), curves, ["softmax", "linear"])
    assert all(len(view.uses) == 2 for view in drawn.views[0])


@pytest.mark.parametrize("colour", ["#0173B2", "#DE8F05", "#000000", "#ffffff", "#949494"])
def test_colours_of_text_are_readable_in_both_themes(colour):
    ((light, dark),) = chart.colours(["one"], {"one": colour}).values()
    assert chart._contrast(chart._rgb(light), chart._rgb("#eef0f2")) >= 4.5
    assert chart._contrast(chart._rgb(dark), chart._rgb("#272b31")) >= 4.5


def test_steps_of_constant_tokens_are_one_comparison_and_batches_of_sampling_are_several():
    times = {("time_step", 4, 64): 2.0, ("time_step", 1, 256): 8.0}
    times |= {("time_decode", 1, 64): 3.0, ("time_decode", 4, 64): 5.0}
    rows = [
        {
            "source": "measured", "setup": "a", "kind": kind, "attention": name, "method": name,
            "size": "s", "batch": batch, "context": context, "seconds": seconds,
            "lower_seconds": None, "upper_seconds": None,
        }
        for (kind, batch, context), ratio in times.items()
        for name, seconds in (("softmax", ratio), ("linear", 1.0))
    ]  # fmt: skip
    for kind, expected in (
        ("time_step", {("s", 64): 2.0, ("s", 256): 8.0}),
        ("time_decode", {("s", 64): 3.0}),  # the smallest batch
    ):
        found = timing.compare(rows, kind, "linear", "softmax")
        assert found
        assert {cell: ratio.value for cell, ratio in found.ratios.items()} == expected
