"""The page in a browser: every view can be chosen, nothing fails, nothing is asked of a network."""

import html
import json
import re
import shutil
import subprocess

import pytest
from test_answer import BEHIND, SEEDS, made, said

from lmscaling import report
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
  const found = { faults, views: [], read: [] };
  const shown = () => [...document.querySelectorAll(".view")].filter(one => one.offsetParent);
  const choose = (name, value) => {
    const one = document.querySelector(`input[name="${name}"][value="${value}"]`);
    one.checked = true; one.dispatchEvent(new Event("change", { bubbles: true }));
  };
  const values = name => [...document.getElementsByName(name)].map(one => one.value);
  for (const axis of values("axis")) for (const range of values("range"))
    for (const cell of values("cell")) {
      choose("axis", axis); choose("range", range); choose("cell", cell);
      found.views.push(shown().map(one => one.dataset.axis === axis &&
        one.dataset.range === range && one.parentElement.dataset.cell === cell).join());
      found.read.push(document.querySelector(".reading").textContent);
    }
  const box = document.querySelector("#show-1");
  box.checked = false; box.dispatchEvent(new Event("change", { bubbles: true }));
  found.hidden = document.querySelector(".reading").textContent;
  document.querySelector(".score th:nth-child(3) button").click();
  const rows = [...document.querySelectorAll(".score tbody tr")];
  found.sorted = rows.map(row => row.cells[2].textContent);
  found.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
  found.asked = performance.getEntriesByType("resource").map(one => one.name.slice(0, 40))
    .filter(name => !name.startsWith("data:"));
  const out = document.createElement("pre");
  out.id = "found"; out.textContent = JSON.stringify(found);
  document.body.replaceChildren(out);
});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    evidence = made({"linear": BEHIND, "other": {("s", 64): -0.2}}, SEEDS)
    text = report.page(
        contest.judge(evidence), evidence, said(evidence), title="tiny", commands="snakemake"
    )
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text.replace("<head>", f"<head>{BEFORE}") + AFTER)
    return path


@pytest.mark.ci
@pytest.mark.parametrize("width", [400, 1600])
def test_each_view_can_be_chosen_and_read_at_every_width(page, width):
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={page.parent / 'chrome'}"]
    command += [f"--window-size={width},900", f"file://{page}"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', text, re.DOTALL)
    found = json.loads(html.unescape(found))
    assert found["faults"] == []
    assert found["asked"] == []
    assert found["views"] == ["true"] * 4 * 2 * 4
    assert all("softmax" in text and "linear" in text for text in found["read"])
    assert "linear" not in found["hidden"]
    assert found["sorted"] == sorted(found["sorted"])
    assert not found["wide"]
