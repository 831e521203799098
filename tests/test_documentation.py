"""README and docs: links, file names, commands and numbers are those of the code."""

import re
import shlex
from functools import cache
from pathlib import Path

import fit_throughput
import pictures
import pytest
from conftest import ROOT
from test_claims import PUBLISHED

from lmscaling import cli, registry
from lmscaling.cli.verb import VERBS
from lmscaling.config import grid, study_file
from lmscaling.model import sizing
from lmscaling.plan import study_plan

README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [README, ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("*/README.md")), *PAGES]
TEXTS += [ROOT / "results" / "published" / "README.md"]

FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^|\n\n)((?: {4}.*\n|\n(?= {4}))+)")
LINK = re.compile(r"""\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)\"""")
FOLDERS = "src|config|docs|tests|benchmarks|workflow|profiles|results/published"
EXAMPLES = re.compile(r"mine|my_study|_build|report\.html|[<>*…{$]")
"""Names that stand for files of the reader."""


def name_of(path):
    return str(path.relative_to(ROOT))


def slug(heading):
    """The anchor of a heading, as GitHub and MyST make it."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors(path):
    """Anchors of a page; those of the gallery are the names of figures."""
    text = FENCE.sub("", path.read_text())
    found = {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    if path.name == "gallery.md":
        found |= {slug(figure) for figure in registry.figures()}
    return found


def commands(text):
    """Lines of code blocks that call ``lmscaling``, without prompts and comments."""
    blocks = FENCE.findall(text) + INDENTED.findall(FENCE.sub("", text))
    lines = (line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines())
    return [re.split(r"\s+# | &&", line)[0] for line in lines if line.startswith("lmscaling ")]


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_links_lead_to_files_and_headings(path):
    for groups in LINK.findall(FENCE.sub("", path.read_text())):
        target, _, anchor = "".join(groups).partition("#")
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{target} is no file"
        if anchor:
            assert anchor in anchors(file), f"{target}#{anchor} is no heading"


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_every_command_parses(path, capsys):
    parser = cli._parser()
    for span in re.findall(r"`lmscaling ([a-z][\w-]*)", path.read_text()):
        assert span in {verb.name.split()[0] for verb in VERBS}, span
    for command in commands(path.read_text()):
        words = shlex.split(re.sub(r"<[\w ]+>", "name", command))[1:]
        try:
            parser.parse_args([word for word in words if word != "--help"])
        except SystemExit:
            pytest.fail(f"{command}\n{capsys.readouterr().err}")


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_files_targets_of_make_and_study_files_that_a_text_names_exist(path):
    for span in re.findall(r"`([^`\n]+)`", path.read_text()):
        if re.fullmatch(rf"(?:{FOLDERS})/[\w./-]+", span) and not EXAMPLES.search(span):
            assert (ROOT / span).exists(), span
    makefile = (ROOT / "Makefile").read_text()
    code = "\n".join([*re.findall(r"`([^`\n]+)`", path.read_text()), path.read_text()])
    for target in re.findall(r"^(?: {4}|\$ )?make ([a-z][\w./-]*)", code, re.MULTILINE):
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), target
    for file in re.findall(r"--configfile (config/\S+)", code):
        assert EXAMPLES.search(file) or (ROOT / file).is_file(), file


def test_every_page_is_in_the_table_of_contents():
    index = (ROOT / "docs" / "index.md").read_text()
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", index, re.DOTALL | re.MULTILINE)
    listed = re.findall(r"^(?:.+<)?(\w+)>?$", "".join(blocks), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in PAGES if path.stem != "index")


def test_the_costs_of_the_readme_are_the_forecast_at_its_price():
    laid_out = grid.expand(study_file.read_study([ROOT / "config" / "study.yaml"]))
    shapes = {run: sizing.shape(cell, None) for run, cell in laid_out.cells.items()}
    plan = study_plan.make(laid_out, shapes, "NVIDIA H100", Path("nowhere"))
    (total,) = re.findall(r"72 cells: .*", plan.table())
    cells, branches = re.findall(r"([\d,]+) GPU-hours .*and ([\d,]+) for branches", total)[0]
    text = README.read_text()
    price = float(re.findall(r"\$([\d.]+) per GPU-hour", text)[0])
    for hours, row in ((cells, "the complete study"), (branches, "its decayed branches")):
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {row}"))
        assert f"{hours} GPU-hours" in line
        dollars = int(re.findall(r"\$([\d,]+) \|$", line)[0].replace(",", ""))
        assert dollars == pytest.approx(price * int(hours.replace(",", "")), rel=0.02)
    assert f"{192 * price:.0f}" in text
    running = " ".join((ROOT / "docs" / "running.md").read_text().split())
    assert re.search(rf"{cells} GPU-hours on H100 .{{0,50}} {branches} more", running)


def test_the_accuracy_of_predicted_times_is_what_the_command_prints():
    page = (ROOT / "benchmarks" / "accuracy.md").read_text()
    for row in fit_throughput.lines(fit_throughput.table()):
        assert f"| {' | '.join(row)} |" in page


def test_the_results_of_the_readme_are_those_of_the_claims_in_at_most_650_words():
    text = " ".join(README.read_text().split())
    assert text.count(" ") < 650
    verdicts = [verdict for verdict, _, _ in PUBLISHED.values()]
    counts = {each: verdicts.count(each) for each in set(verdicts)}
    for page in (text, " ".join((ROOT / "docs/claims.md").read_text().split())):
        assert re.search(rf"{counts['holds']} hold\b", page)
        assert f"{counts['fails']} fail and {counts['not tested']} are not tested" in page
    assert f"Of {len(PUBLISHED)} [claims" in text
    for name, words in {
        "draft_wins_in_time": "124M +0.127, 355M +0.129, 774M +0.119 nats",
        "chunked_always_faster": "8 of 34 points",
        "speed_up_grows": "1.01 to 31.8 times as fast",
        "spikes_grow": "oftmax has no spikes in 24 cells",
    }.items():
        assert words in PUBLISHED[name][2]
        assert words in text
    assert f"{PUBLISHED['gap_grows'][1]:.3f} nats per doubling" in text
    assert PUBLISHED["sampling_time"][0] == "holds"


def test_the_picture_shows_what_the_readme_says():
    gaps, steps = pictures.numbers()
    text = " ".join(README.read_text().split())
    assert len(gaps) == 24
    assert gaps.gap.min() > 0
    assert f"by {gaps.gap.min():.2f} to {gaps.gap.max():.2f} nats" in text
    two = gaps.nsmallest(2, "gap")
    assert list(zip(two["size"], two.context, strict=True)) == [("124M", 256), ("124M", 512)]
    assert f"{steps.speed_up.max():.0f} times as fast" in text
    slower = steps[steps.speed_up < 1]
    than_flash = slower[slower.baseline == "softmax flash"]
    assert (len(than_flash), len(slower), len(steps)) == (8, 9, 34)
    assert f"at {len(slower)} against the fastest softmax" in text
    assert "124M" not in set(than_flash["size"])
    assert slower.context.max() == 4096
