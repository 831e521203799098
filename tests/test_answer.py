"""The words of the report: who is ahead, how sure that is, what would decide, what is not told."""

import json
import re
import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from conftest import ROOT
from snakemake.cli import parse_config

from lmscaling.config import grid, study_file
from lmscaling.fits import comparisons
from lmscaling.report import answer, contest, timing
from lmscaling.report.contest import Evidence

SEEDS = (0, 1, 2, 3)
NOISE = (0.01, -0.01, 0.004, -0.004)
"""What the seeds of a pair add to its gap, nats."""


def made(
    gaps, seeds=(0,), status=None, budget_hours=None, places=(), baseline="softmax", shares=None
):
    """A study in which candidates have gaps in cells; seeds are those of all cells, or of some, and
    shares those of the budget that runs of an attention spent."""
    cells, curves, losses, paths = [], [], [], []
    places = sorted({*places, *(place for of in gaps.values() for place in of)})
    shapes = {size: i + 1 for i, size in enumerate(dict.fromkeys(size for size, _ in places))}
    every = product(enumerate(places), enumerate((baseline, *gaps)))
    for (i_place, (size, context)), (i_name, name) in every:
        params = 10_000 * shapes[size]
        own = seeds if isinstance(seeds, tuple) else seeds.get((size, context), (0,))
        for seed in own:
            state = (status or {}).get((name, size, context), "done")
            is_done = state == "done"
            gap = gaps[name].get((size, context), 0.0) if i_name else 0.0
            gap += NOISE[(seed + i_name + i_place) % 4] if i_name else 0.0
            head = {"attention": name, "size": size, "context": context, "seed": seed}
            run = f"{name}-{size}-{context}-{seed}"
            cells.append(head | {
                "status": state, "message": "", "skipped": None, "params": params,
                "n_layer": shapes[size], "d_model": 8, "update_tokens": 64,
                "flops_per_token": 100.0, "budget": "100 updates", "budget_hours": budget_hours,
                "hours": 2.0 if is_done else None, "updates": 100 if is_done else 3,
                "baseline": baseline, "place": len(cells), "name": run, "lr_scale": 1.0,
                "loss": 3.0 + gap if is_done else None, "is_final": is_done, "spikes": 0,
                "highest_spike": None,
            })  # fmt: skip
            known = "measured", size, params, context, name == baseline, name, seed
            share = None if shares is None else shares.get(name, 1.0)
            losses += [(*known, 3.0 + gap, share)] * is_done
            for i in range(1, 41) if state != "pending" else ():
                spent, loss = 100 * i / 40, 3.0 + gap + 1.5 / i**0.5 - 1.5 / 40**0.5
                curves.append(head | {
                    "updates": spent, "tokens": 64 * spent, "hours": spent / 50,
                    "flops": 6400 * spent, "run": run, "loss": loss,
                    "spike": 9.5 if (name, i) == ("softmax", 30) else None,
                })  # fmt: skip
                paths += [(*known, spent, spent / 50, 6400 * spent, loss)] * is_done
    tables = comparisons.tables(losses, paths)
    found = {
        name: [row for row in tables[name] if row["with_baseline"]]
        for name in ("gaps", "curve_gaps", "multipliers")
    }
    return Evidence(source="measured", cells=cells, curves=curves, speeds=[], **found)


def said(evidence, command="snakemake --cores all --configfile my.yaml", **facts):
    return answer.write(contest.judge(evidence), evidence, "100 updates", command, **facts)


def everything(words):
    tiles = [f"{t.title}: {t.says}. {t.text}" for t in words.tiles]
    return "\n".join([words.heading, *words.lede, *words.next, *tiles, *map(str, words.untold)])


BEHIND = {("s", 64): 0.2, ("s", 256): 0.3, ("m", 64): 0.25, ("m", 256): 0.35}
PLACE = ("s", 64)
THREE = {
    "worse": BEHIND,
    "better": {place: -gap for place, gap in BEHIND.items()},
    "mixed": {place: gap if place[0] == "s" else -gap for place, gap in BEHIND.items()},
}
MANY = {f"v{i}": {place: gap + i / 10 for place, gap in BEHIND.items()} for i in range(5)}


def pending(*names):
    return {(name, *place): "pending" for name in names for place in BEHIND}


CASES = {
    "one seed": made({"linear": BEHIND}),
    "four seeds": made({"linear": BEHIND}, SEEDS),
    "seeds in one cell of four": made({"linear": BEHIND}, {PLACE: SEEDS}),
    "one gap within the noise": made({"linear": BEHIND | {PLACE: -0.009}}, SEEDS),
    "a gap as good as zero": made({"linear": {PLACE: 0.0001, ("m", 64): 0.3}}, SEEDS),
    "three candidates": made(THREE, SEEDS),
    "five candidates": made(MANY, SEEDS),
    "five candidates, all ahead": made(
        {name: {place: -gap for place, gap in of.items()} for name, of in MANY.items()}, SEEDS
    ),
    "as many wins as losses": made({"linear": {PLACE: 0.3, ("m", 64): -0.3}}, SEEDS),
    "all runs failed": made({"linear": {PLACE: 0.1}}, SEEDS, {("linear", *PLACE): "diverged"}),
    "a failed cell": made({"linear": BEHIND}, SEEDS, {("linear", "s", 64): "diverged"}),
    "nothing finished": made({"linear": BEHIND}, status=pending("softmax", "linear")),
    "no baseline": made({"linear": BEHIND}, status=pending("softmax")),
    "a baseline alone": made({}, places=[PLACE]),
}
"""Evidence of each kind, by what it shows."""


@pytest.fixture(scope="module")
def answers():
    return {name: said(evidence) for name, evidence in CASES.items()}


def test_the_answers_read_as_reviewed(answers, golden):
    parts = (f"# {name}\n{everything(words)}\n{words.command}\n" for name, words in answers.items())
    golden("answers.txt", "\n".join(parts))


def test_an_attention_that_was_trained_alone_has_its_best_size():
    row = {"budget": 4.2e15, "best": 23_100.0, "p": 0.82, "p_low": 0.4, "p_high": 1.24}
    alone = CASES["a baseline alone"]
    heading = said(alone, optimum=row | {"p_assumed": 0.017}).heading
    assert {"4.2e+15", "23.1k", "0.82", "0.40", "1.24", "0.017"} <= {
        *re.findall(r"[\w.+]*\d[\w+]*", heading)
    }
    assert "0.40" not in said(alone, optimum=row | {"p_low": None, "p_assumed": None}).heading


def test_a_seed_that_the_study_skips_is_not_advised():
    evidence = made({"linear": BEHIND | {PLACE: -0.009}}, SEEDS)
    words = said(evidence)
    advised = seeds_in(words.command)
    assert max(advised) >= max(SEEDS) + 1
    first = next(seed for seed in advised if seed not in SEEDS)
    row = next(row for row in evidence.cells if (row["size"], row["context"]) == PLACE)
    skipped = row | {"seed": first, "skipped": "no", "status": "skipped", "loss": None}
    again = seeds_in(said(replace(evidence, cells=[*evidence.cells, skipped])).command)
    assert set(advised) < set(again)
    assert len(again) == len(advised) + 1


def test_more_seeds_than_twenty_are_counted_and_not_advised():
    words = said(made({"linear": {PLACE: 0.004}}, SEEDS))
    assert not words.command
    (advice,) = words.next
    assert "20" in advice


def test_an_attention_that_the_study_skips_everywhere_is_no_candidate():
    evidence = made({"linear": BEHIND, "mine": BEHIND}, SEEDS)
    skipped = [
        row | {"skipped": "no", "status": "skipped", "loss": None}
        if row["attention"] == "mine" else row
        for row in evidence.cells
    ]  # fmt: skip
    found = {
        name: [row for row in getattr(evidence, name) if row["attention"] != "mine"]
        for name in ("curves", "gaps", "curve_gaps", "multipliers")
    }
    words = said(replace(evidence, cells=skipped, **found))
    assert "mine" not in everything(words)


def seeds_in(command):
    (found,) = re.findall(r"axes\.seed=(\[[\d,]+\])", command)
    return json.loads(found)


def test_the_best_candidate_is_first_and_equal_wins_and_losses_have_no_leader(answers):
    three, five = answers["three candidates"], answers["five candidates"]
    assert len(three.scores) == 2 * 4
    assert len(five.lede) == 1  # what the noise rests on; the figure has the gaps
    assert not three.tiles
    told = [three.heading.index(name) for name in ("better", "ahead", "behind", "worse")]
    assert told[0] < told[1] < told[2]
    assert "mixed" in three.heading
    even = answers["as many wins as losses"]
    assert even.tiles[0].side == "undecided"
    assert not answers["nothing finished"].scores
    words = answers["a failed cell"]
    failed = words.score_head.index(("failed", "runs"))
    assert [s.cells[failed][0] for s in words.scores if s.attention == "linear"] == ["", "4"]


def cells_of(command):
    """What a command plans, read as Snakemake and the workflow do."""
    program, *words = shlex.split(command)
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
    assert advised.startswith(command.removesuffix("'"))
    after = cells_of(advised)
    assert {cell.seed for cell in before} == {0}
    assert {cell.name for cell in before} < {cell.name for cell in after}
    assert {cell.name.replace("-s1", "-s0") for cell in after} == {cell.name for cell in before}


def test_the_command_of_the_published_numbers_trains_the_closest_contest_alone():
    evidence = replace(made({"linear": {("124M", 256): 0.01}}), source="published")
    cells = cells_of(said(evidence, "").command)
    found = [(cell.attention, cell.size, cell.context, cell.seed) for cell in cells]
    seeds = range(len(cells) // 2)
    assert len(seeds) > 1
    assert sorted(found) == list(product(("linear", "softmax"), ("124M",), (256,), seeds))


def test_the_noise_of_one_gap_is_not_asked_for_before_open_contests_are_decided():
    evidence = made({"linear": BEHIND | {PLACE: -0.009}}, SEEDS)
    found, other = contest.judge(evidence), contest.judge(made({"linear": {("m", 256): 0.35}}))
    (alone,) = other.edges["updates"]["linear"].values()
    assert not alone.is_tested
    edges = {"linear": found.edges["updates"]["linear"] | {("m", 256): alone}}
    found = replace(found, edges=found.edges | {"updates": edges})
    (told,) = answer.write(found, evidence, "100 updates", "snakemake").next
    assert re.search("s at context 64", told)


def test_runs_of_unequal_hours_are_compared_by_their_curves():
    judged = contest.judge(made({"linear": BEHIND}, budget_hours=2.0, shares={"linear": 0.5}))
    edges = judged.edges["hours"]["linear"]
    assert [edge.spent for edge in edges.values()] == pytest.approx([2.0] * 4)
    assert edges["s", 64].gap == pytest.approx(0.2, abs=0.011)


def test_steps_of_constant_tokens_are_one_comparison_and_batches_of_sampling_are_several():
    times = {("time_step", 4, 64): 2.0, ("time_step", 1, 256): 8.0}
    times |= {("time_decode", 1, 64): 3.0, ("time_decode", 4, 64): 5.0}
    rows = [
        {"source": "measured", "setup": "a", "kind": kind, "attention": name, "method": name,
         "size": "s", "batch": batch, "context": context, "seconds": seconds,
         "lower_seconds": None, "upper_seconds": None}
        for (kind, batch, context), ratio in times.items()
        for name, seconds in (("softmax", ratio), ("linear", 1.0))
    ]  # fmt: skip
    ratios_of = {"time_step": {("s", 64): 2.0, ("s", 256): 8.0}}
    ratios_of["time_decode"] = {("s", 64): 3.0}  # the smallest batch
    for kind, expected in ratios_of.items():
        found = timing.compare(rows, kind, "linear", "softmax")
        assert found
        assert {cell: ratio.value for cell, ratio in found.ratios.items()} == expected


def test_what_is_damaged_was_mixed_or_stood_still_is_said():
    evidence = CASES["one seed"]
    mixed = [{"size": "s", "context": 64, "found": ["A100", "H100"]}]
    own = {"damaged": ["no log"], "mixed": mixed, "stalled": {"runs": 2, "hours": 1.5}}
    told = answer.write(contest.judge(evidence), evidence, "100 updates", "", **own)
    assert "no log" in told.lede[0]
    assert "A100 and H100" in told.lede[1]
    assert told.lede[2:] == said(evidence).lede
    assert any("two runs" in what and "1.5 hours" in why for what, why in told.untold)
