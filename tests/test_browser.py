"""The page in a browser: every view can be chosen, nothing fails, nothing is asked of a network."""

import html
import json
import re
import shutil
import subprocess
from itertools import pairwise, product

import pytest
from test_answer import BEHIND, SEEDS, made, said

from lmscaling import report
from lmscaling.figures.shared import style
from lmscaling.report import contest

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), "")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
    "--disable-background-networking", "--virtual-time-budget=3000", "--dump-dom",
)  # fmt: skip

BEFORE = """<script>
window.faults = [];
addEventListener("error", event => faults.push(event.message));
console.error = (...words) => faults.push(words.join(" "));
</script>"""

AFTER = """<script>
addEventListener("load", () => {
  const found = { faults, views: [], read: [], spikes: [], marks: [] };
  const view = document.querySelector(".view"), reading = document.querySelector(".reading");
  const every = (query, of = document) => [...of.querySelectorAll(query)];
  const texts = (query, of) => every(query, of).map(one => one.textContent);
  found.first = document.querySelector(".cell-name").textContent;
  const choose = (name, value) => {
    const one = document.querySelector(`input[name="${name}"][value="${value}"]`);
    one.checked = true; one.dispatchEvent(new Event("change", { bubbles: true }));
  };
  const slide = (query, value) => {
    const one = document.querySelector(query);
    one.value = value; one.dispatchEvent(new Event("input"));
  };
  const values = name => [...document.getElementsByName(name)].map(one => one.value);
  for (const axis of values("axis")) for (const range of values("range"))
    for (const cell of values("cell")) {
      choose("axis", axis); choose("range", range); choose("cell", cell);
      const { dataset } = view;
      found.views.push(view.offsetParent && [dataset.axis, dataset.range, dataset.cell]);
      found.read.push([0, 1000].map(at => { slide(".read", at); return texts("b", reading)[0]; }));
      const tops = every(".last", view).map(one => parseFloat(one.style.top));
      const points = every(".line", view).map(one => one.getAttribute("d").split(/[L,]/));
      const [ends, heights] = [-2, -1].map(i => points.map(own => +own.at(i)));
      const map = texts(".map .value").map(text => text.split(" ")[0]);
      const [last, gap] = [".last", ".gap"].map(query => texts(query, view));
      found.marks.push({ tops, ends, heights, map, last, gap });
      found.spikes.push(texts(".spike", view));
    }
  const box = document.querySelector("[name=show][value=linear]");
  box.checked = false; box.dispatchEvent(new Event("change", { bubbles: true }));
  found.hidden = reading.textContent;
  found.lines = every(".line", view).filter(one => one.style.display !== "none").length;
  slide("[data-of=size]", 1);
  found.moved = document.querySelector(".cell-name").textContent;
  document.querySelector(".score th:nth-child(3) button").click();
  found.sorted = every(".score tbody tr").map(row => row.cells[2].textContent);
  found.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
  found.asked = performance.getEntriesByType("resource").map(one => one.name.slice(0, 40))
    .filter(name => !name.startsWith("data:"));
  const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = colour => {
    pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1);
    return [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  found.colours = ["light", "dark"].map(theme => {
    document.documentElement.style.colorScheme = theme;
    const one = document.createElement("p"), well = document.createElement("p");
    document.body.append(one, well); one.dataset.attention = "linear";
    one.style.color = "var(--own)"; well.style.color = "var(--well)";
    return TONES.map(tone => {
      one.style.setProperty("--tone", tone);
      return [one, well].map(each => rgb(getComputedStyle(each).color));
    });
  });
  const out = document.createElement("pre");
  out.id = "found"; out.textContent = JSON.stringify(found);
  document.body.replaceChildren(out);
});
</script>"""
TONES = (*style.COLOURS.values(), *style.OTHERS, "#000000", "#ffffff", "#ffff00", "#0000ff")


def browsed(gaps, folder, width):
    """What a browser shows of a page at a width, pixels."""
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    evidence = made(gaps, SEEDS)
    text = report.page(
        contest.judge(evidence), evidence, said(evidence), title="tiny", commands="snakemake"
    )
    page = folder / "report.html"
    after = AFTER.replace("TONES", json.dumps(TONES))
    page.write_text(text.replace("<head>", f"<head>{BEFORE}") + after)
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'chrome'}"]
    command += [f"--window-size={width},900", f"file://{page}"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    (told,) = re.findall(r'<pre id="found">(.*?)</pre>', text, re.DOTALL)
    return json.loads(html.unescape(told))


@pytest.fixture(scope="module", params=[400, 1600])
def found(tmp_path_factory, request):
    gaps = {"linear": BEHIND | {("m", 64): 0.002}, "other": {("s", 64): 0.0001}}
    return browsed(gaps, tmp_path_factory.mktemp("page"), request.param)


VIEWS = list(product(("hours", "updates", "tokens", "flops"), ("end", "whole"), "0123"))


@pytest.mark.ci
def test_each_view_can_be_chosen_and_read_at_every_width(found):
    assert found["faults"] == []
    assert found["asked"] == []
    assert [tuple(view) for view in found["views"]] == VIEWS
    assert "softmax" in found["hidden"]
    assert "linear" not in found["hidden"]
    assert found["sorted"] == sorted(found["sorted"])
    assert not found["wide"]


@pytest.mark.ci
def test_the_first_view_is_the_largest_significant_gap_and_sliders_choose_others(found):
    assert found["first"] == "m at context 256"
    assert found["moved"].startswith("s at context")
    assert found["lines"] == 2  # of the two that are not hidden, each the mean of its seeds


@pytest.mark.ci
def test_a_whole_run_is_shown_from_its_first_loss_and_its_end_over_a_factor_of_16(found):
    units = {"seconds": 1 / 3600, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    for (_, shown, _), ends in zip(VIEWS, found["read"], strict=True):
        low, high = (
            float(re.findall(r"^[\d.e+]+", text)[0])
            * units.get((re.findall(r"seconds|(?<=\d)[kMBT]", text) or [""])[0], 1)
            for text in ends
        )
        assert high / low == pytest.approx(16 if shown == "end" else 40, rel=0.01)


@pytest.mark.ci
def test_labels_never_cover_each_other_spikes_are_named_and_the_map_follows_the_axis(found):
    for (axis, _, cell), marks, spikes in zip(VIEWS, found["marks"], found["spikes"], strict=True):
        tops = sorted(marks["tops"])
        assert all(b - a >= 6 - 0.02 for a, b in pairwise(tops))
        assert marks["ends"] == pytest.approx([1000] * len(marks["ends"]), abs=1)
        assert spikes == ["9.5"]
        assert any(text.startswith("softmax 3.000") for text in marks["last"])
        (gap,) = marks["gap"]
        assert gap == f"gap {marks['map'][int(cell)]}", axis


@pytest.mark.ci
def test_an_attention_that_ends_above_where_the_others_begin_is_shown(tmp_path):
    gaps = {"linear": dict.fromkeys(BEHIND, 2.0), "other": dict.fromkeys(BEHIND, 0.0)}
    for marks in browsed(gaps, tmp_path, 1600)["marks"]:
        assert len(marks["heights"]) == 3
        assert 0 <= min(marks["heights"]) < max(marks["heights"]) <= 1000


@pytest.mark.ci
def test_colours_of_text_are_readable_in_both_themes(found):
    for theme in found["colours"]:
        for tone, (text, well) in zip(TONES, theme, strict=True):
            low, high = sorted(map(brightness, (text, well)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, tone


def brightness(colour):
    """Relative luminance of WCAG 2.1."""
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4
              for x in (part / 255 for part in colour)]  # fmt: skip
    return sum(x * share for x, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))
