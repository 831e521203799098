"""The page: sections in order, every number behind its query, nothing that needs a network."""

import base64
import copy
import csv
import html
import json
import re
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from conftest import ROOT, STUDY, refused, sentence
from page_text import seen
from test_figures import cells_of, fill, finish, lay_out, tell, write_study
from test_store import end, header, live, log, record, update, validation

from lmscaling import registry, report
from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.fits import final_loss
from lmscaling.report import checklist
from lmscaling.report import tables as report_tables
from lmscaling.store import build as store

ONE = {"attention": ["linear"], "size": ["s"], "context": [16], "seed": [0, 1]}

PRINTED = re.compile(
    r'<details class="query">\s*<summary>Query \(([\d,]+) rows\)</summary>\s*<pre>(.*?)</pre>',
    re.DOTALL,
)


@pytest.fixture
def study(tmp_path, values):
    return write_study(tmp_path, values)


@pytest.fixture(scope="module")
def half_done(tmp_path_factory):
    """Done, running, diverged and pending cells, and one branch planned: folder and page."""
    study = write_study(tmp_path_factory.mktemp("half_done"), copy.deepcopy(STUDY))
    cells = cells_of(study)
    fill(study, cells[:10])
    live(study, cells[10].run, log(header(cells[10].run), update(1), validation(1)))
    record(study, cells[11].run, log(header(cells[11].run), update(1)), "diverged")
    known = replace(header(cells[20].run), bytes_per_token=2.5)
    live(study, cells[20].run, log(known, update(1), validation(1, loss=np.log(16))))
    held = cells[24].run
    live(study, held, log(header(held), update(1), end(1, status="held")))
    return study, tell(study)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The page of the published numbers alone."""
    folder = tmp_path_factory.mktemp("results") / "published"
    skipped = shutil.ignore_patterns("store", "figures")
    shutil.copytree(ROOT / "results" / "published", folder, ignore=skipped)
    return tell(folder, blank=False)


def test_pages_read_as_reviewed_with_an_answer_of_at_most_1200_words(half_done, published, golden):
    for name, text in (("report_half_done", half_done[1]), ("report", published)):
        lines, first = seen(text)
        golden(f"{name}.txt", lines)
        assert len(first) <= 1200


def test_the_map_shows_one_gap_of_each_cell_and_copies_are_on_the_page(published):
    text = published
    shown = re.findall(r'name="cell" value="(\d+)"[^>]*?( checked)?>', text)
    assert len(shown) == 24
    assert [cell for cell, checked in shown if checked] == ["21"]  # the largest gap
    (chart,) = re.findall(r'<script type="application/json" id="chart">(.*?)</script>', text)
    chart = json.loads(chart)
    gaps = chart["gaps"]["hours"]["linear"]
    places = re.findall(r"<td>(?:\s*)<label>.*?</td>", text, re.DOTALL)
    for (cell, _), place in zip(shown, places, strict=True):
        (value,) = re.findall(r'<span class="value[^>]*>([^<]*)<', place)
        assert value == gaps[int(cell)]["text"]
        assert len(chart["cells"][int(cell)]["runs"]) == 2
    assert [*chart["axes"]] == ["hours", "updates", "tokens", "flops"]
    ((table,),) = [re.findall(r'<pre id="csv" hidden>(.*?)</pre>', text, re.DOTALL)]
    rows = list(csv.DictReader(html.unescape(table).splitlines()))
    assert len(rows) == 24 * 4
    assert {row["noise"] for row in rows} == {"assumed"}
    assert "@misc{buckman2024linear" in text
    for name in re.findall(r'data-copy="([^"]+)"', text):
        assert f'<pre id="{name}"' in text


def test_bits_per_byte_and_held_runs_are_in_the_tables_and_empty_columns_are_not(half_done):
    """A loss of ln 16 nats is 4 bits; a token has 2.5 bytes."""
    folder, page = half_done
    with store.connect(folder / "store") as db:
        tables = {t.name: t for t in report_tables.tables(db)}
    for name in ("cells", "final_losses"):
        (at,) = (i for i, text in enumerate(tables[name].head) if "per byte" in text)
        assert [row[at] for row in tables[name].rows if row[at]] == ["1.6000"], name
    assert [row[1] for row in tables["cells"].rows].count("held") == 1
    assert "lmscaling reset --go-on --status held" in tables["cells"].note
    table = page.partition('id="final_losses"')[2].partition("</table>")[0]
    heads = re.findall("<th .*?>[^<]*</th>", table)
    row = re.findall(r"<td[^>]*>", table.partition("<tbody>")[2].partition("</tr>")[0])
    assert [("text" in cell) for cell in row] == ['"text' in head for head in heads]
    assert "training loss" in str(tables["final_losses"].head)
    assert "training loss" not in table  # which is empty in every row


def headings(page):
    return re.findall(r'<h2 id="section-(\w+)">', page)


def blocks(page):
    """Anchor, rows and text of every query that is printed."""
    parts = re.split(r'<(?:figure|div class="table") id="', page)[1:]
    for part in parts:
        name = part.partition('"')[0]
        ((n, query),) = PRINTED.findall(part)
        yield name, int(n.replace(",", "")), html.unescape(query)


def test_every_query_runs_again_with_as_many_rows(half_done):
    folder, page = half_done
    found = list(blocks(page))
    assert len(found) == page.count("<figure id=") + page.count('<div class="table" id=') > 10
    with store.connect(folder / "store") as db:
        db.execute(f"SET file_search_path = '{folder}'")
        for name, n, query in found:
            assert len(db.sql(query)) == n > 0, name
            if name in registry.figures():
                with (folder / "figures" / f"{name}.csv").open(newline="") as file:
                    assert len(list(csv.reader(file))) == n + 1
            if name in {"cells", "crossings", "sizes"}:
                part = page.partition(f'<div class="table" id="{name}"')[2]
                assert part.partition("</table>")[0].count("<tr") == n + 1


def test_the_page_asks_no_network_for_anything(half_done, published):
    for text in (half_done[1], published):
        loading = r"(?:src|href|srcset|action|poster)\s*=\s*[\"'](?!data:|#)|url\(|@import"
        assert not re.findall(loading, text)
        for tag in ("<link", "<iframe", "<object", "http-equiv"):
            assert tag not in text
        scripts = dict(re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL))
        script = scripts.pop("")
        assert all('type="application/json"' in attributes for attributes in scripts)
        for word in ("fetch", "XMLHttpRequest", "import", "WebSocket", "sendBeacon", "http"):
            assert word not in script
        for svg in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", text):
            drawn = base64.b64decode(svg).decode()
            assert not re.findall(r'(?:src|href)="(?!#|data:)', drawn)


def test_sections_and_figures_with_nothing_are_left_out_and_words_are_escaped(study):
    skip = [{"seed": 1, "reason": "<b>not wanted</b>"}]
    finish(study, list(lay_out(study, axes=ONE, skip=skip).cells.values()))
    page = tell(study)
    assert headings(page) == ["question", "grid", "learning", "laws", "audit"]
    assert 'id="learning_curves"' in page
    for absent in ("learning_rates", "rates", "endpoints"):
        assert f'id="{absent}"' not in page
    assert "&lt;b&gt;not" in page
    assert "<b>not" not in page
    assert html.escape("--cores <all>") in page
    (study / "figures" / "step_time.svg").unlink()
    with refused(UserError, study / "figures" / "step_time.svg"):
        report.write(study)


def test_the_switch_is_of_radio_buttons_long_tables_are_folded_and_images_have_a_text(half_done):
    page = half_done[1]
    part = page.partition('<div class="switch">')[2].partition('<div class="table"')[0]
    shown = re.findall(r'<figure id="(learning_curves\w*)"', part)
    assert len(shown) == 4
    buttons = re.findall(r'<input type="radio" name="(\S+)" id="show-(\w+)"( checked)?>', part)
    assert [name for _, name, _ in buttons] == shown
    assert len({group for group, _, _ in buttons}) == 1
    assert [bool(checked) for *_, checked in buttons] == [True, False, False, False]
    assert len(re.findall(r'<input type="radio"', part)) == 5  # and one for all
    assert "hidden" not in part
    rules = re.findall(r"\.switch:has\(#show-(\w+):checked\) > figure:not\(#(\w+)\)", page)
    assert rules == [(name, name) for name in shown]
    part = page.partition('<div class="table" id="cells"')[2].partition("<table")[0]
    assert '<details class="rows"><summary>32 rows</summary>' in part
    assert 'class="rows"' not in page.partition('id="sizes"')[2].partition("<table")[0]
    images = re.findall(r"<img [^>]*>", page)
    assert all(len(re.findall(r'alt="([^"]+)"', image)[0]) > 20 for image in images)
    levels = [int(level) for level in re.findall(r"<h([1-6])\b", page)]
    assert levels[0] == levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def ends(study):
    store.build(study)
    with store.connect(study / "store") as db:
        table = next(t for t in report_tables.tables(db) if t.name == "final_losses")
    shown = [i for i, head in enumerate(table.head) if "bits" not in head]
    return [tuple(row[i] for i in shown) for row in table.rows]


def test_a_final_loss_has_the_interval_of_its_seeds(study):
    """Two seeds, one degree of freedom: 12.706 standard errors."""
    runs = list(lay_out(study, axes=ONE | {"seed": [0, 1, 2]}).cells)
    found = []
    for i, run in enumerate(runs[:2]):
        loss = 3 + i / 10 + np.random.default_rng(i).normal(0, 0.03, 3000)
        loss[2990] = 9.0
        rows = [update(n + 1, loss=float(x)) for n, x in enumerate(loss)]
        made = log(header(run), *rows, validation(3000, loss=3.0 + i / 10), end(3000))
        record(study, run, made, updates=3000)
        found.append(final_loss.fit(loss).loss)
        if i == 0:
            ((*_, counted, validated, trained, sd, _),) = ends(study)
            assert counted == "1 / 1"
            assert re.fullmatch(r"3\.0000 \(\S+ to \S+ if .* 0\.0\d+\)", validated)
            assert trained.startswith(f"{found[0]:.4f} (")
            assert not re.search("own", sd)
    live(study, runs[2], log(header(runs[2]), update(1), validation(1, loss=9.0)))
    ((*_, counted, validated, trained, sd, remarks),) = ends(study)
    for told, mean, se in (
        (validated, 3.05, 0.05), (trained, np.mean(found), abs(found[1] - found[0]) / 2),
    ):  # fmt: skip
        assert told == f"{mean:.4f} ({mean - 12.7062 * se:.4f} to {mean + 12.7062 * se:.4f})"
    assert sd.startswith("0.071")
    assert re.search("own 2", sd)
    assert (counted, remarks) == ("2 / 3", "running")  # which enters no mean


def test_a_range_for_assumed_seeds_says_the_sd_that_it_is_made_of(study):
    axes = ONE | {"attention": ["softmax", "linear"], "seed": [0, 1, 2]}
    for i, run in enumerate(list(lay_out(study, axes=axes).cells)[:4]):
        rows = [update(n, loss=3 + 0.01 * i) for n in range(1, 3001)]
        made = log(header(run), *rows, validation(3000, loss=3 + 0.1 * i), end(3000))
        record(study, run, made, updates=3000)
    *_, (name, *_, counted, validated, trained, _, _) = ends(study)
    assert (name, counted) == ("linear", "1 / 1")
    for told in (validated, trained):
        low, high, sd = map(float, re.findall(r"[\d.]+", told)[1:])
        assert (high - low) / 2 == pytest.approx(1.96 * sd, rel=0.05)


def test_a_cell_whose_runs_all_failed_is_in_the_table(study):
    for run in lay_out(study, axes=ONE).cells:
        made = log(header(run), update(1), end(1, status="diverged"))
        record(study, run, made, status="diverged")
    ((*_, counted, validated, trained, sd, remarks),) = ends(study)
    assert (counted, validated, trained, sd, remarks) == ("0 / 2", "", "", "", "2 failed")


def test_a_recovery_is_on_the_page_and_one_that_never_came_is_said(study):
    for cell, last in zip(cells_of(study), (3.0, 4.0), strict=False):
        rows = [update(n, loss=4.0 if n in (80, 81) else 3.0) for n in range(1, 100)]
        rows += [update(n, loss=last) for n in range(100, 103)]
        rows = rows[:79] + rows[90:] if last > 3 else rows
        record(study, cell.run, log(header(cell.run), *rows, validation(102), end(102)))
    store.build(study)
    with store.connect(study / "store") as db:
        table = next(t for t in report_tables.tables(db) if t.name == "cells")
    first, second = (dict(zip(table.head, row, strict=True)).values() for row in table.rows[:2])
    assert {"1.00", "2"} <= {*first}
    assert any("no" in value.split() for value in second)


def checked(study):
    record = study_file.read_record(study / "study.json").grid
    store.build(study)
    with store.connect(study / "store") as db:
        made = checklist.table(db, record.study, study, [])
    for _, question, answer in made.rows:
        sentence("checklist", f"{question}: {answer}")
    return {question: answer for _, question, answer in made.rows}


def test_a_finished_study_answers_every_question(study):
    lay_out(study, budget="50 updates")
    finish(study, cells_of(study))
    found = checked(study)
    assert all(found.values())
    assert found["models with softmax"].startswith("16 of 16 done, N 100, ")
    words = found["optimizer"].replace(",", "").split()
    assert {"AdamW", "0.9", "0.95", "1e-08", "0.1"} <= {*words}
    assert found["learning-rate schedule"] == "constant"
    assert found["batch"].startswith("64 tokens")
    assert (found["seeds"].split()[:3], found["code"].split()[-1]) == (["8", "of", "8"], "abc")


def test_before_the_first_run_nothing_is_claimed_and_exceptions_are_said(study):
    part = {"size": "m", "update_tokens": 128, "reason": "large"}
    sizes = json.loads((study / "study.json").read_text())["study"]["sizes"]
    sizes["s"]["lr"] = {"softmax": 1e-3, "linear": 2e-3}
    lay_out(study, sizes=sizes, exceptions=[part], budget="50 updates")
    found = checked(study)
    assert found["models with linear"].startswith("0 of 16")
    assert found["points that laws are fitted to"] == "none"
    assert found["runs without a point"] == "32 runs pending"
    assert (found["seeds"].split()[:3], found["code"].split()[-1]) == (["0", "of", "0"], "none")
    assert found["batch"].endswith("update_tokens 128 (large)")
    words = re.split("[,; ]+", found["learning rates"])
    assert {"0.001", "0.002", "0.005"} <= {*words}
