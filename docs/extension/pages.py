"""Parts of pages that follow from the code: the gallery, the claims and the keys of the study file.

``{gallery}`` draws all figures from the published numbers and from the law study, with
their captions, and says of the others what they need. ``{claims}`` lists the claims of the
literature. ``{study-keys}`` lists the keys of the study file from its schema. The report of the
law study is copied beside the pages as ``example_report.html``.
"""

import json
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from lmscaling import claims, figures, registry, report
from lmscaling.store import PUBLISHED, build

ROOT = Path(__file__).parents[2]
BUILT = "_build"
"""Folder below ``docs/`` of the studies that are drawn, each with its store and figures."""
SOURCES = {
    "published": "From the published numbers.",
    "law": "From the [law study](law_study.md).",
}
"""What figures are drawn from, and how the gallery says so."""


class _Lines(SphinxDirective):
    """A directive whose content is Markdown that ``lines`` makes."""

    has_content = False

    def lines(self) -> Iterator[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        text = "\n".join(self.lines())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class Gallery(_Lines):
    """One section a figure: picture, caption, and where its numbers come from."""

    def lines(self) -> Iterator[str]:
        folders = {name: drawn(name, Path(self.env.srcdir)) for name in SOURCES}
        filled = {name: (folder / "drawn").read_text().split() for name, folder in folders.items()}
        pictures = {
            figure: [name for name, figures_of in filled.items() if figure in figures_of]
            for figure in registry.figures()
        }
        yield 'An <a href="example_report.html">example of a report</a>: the law study.\n'
        for figure, names in sorted(pictures.items(), key=lambda item: not item[1]):
            title, text = figures.caption(figure).title, figures.caption(figure).text
            yield f"\n## {figure}\n\n**{title}.** {_escaped(text)}\n"
            for name in names:
                yield f"{SOURCES[name]}\n"
                yield f"```{{image}} /{BUILT}/{name}/figures/{figure}.svg"
                yield f":alt: {title}\n:class: figure-of-gallery\n```\n"
            if not names:  # an error where nobody has said what the figure needs
                yield f"*Neither has numbers for it. {NEEDS[figure]}*"


class Claims(_Lines):
    """One row a claim, with what the published numbers say of it."""

    def lines(self) -> Iterator[str]:
        folder = drawn("published", Path(self.env.srcdir))
        yield "| claim | what it says | source | published numbers |\n| --- | --- | --- | --- |"
        for one in json.loads((folder / "claims.json").read_text()):
            texts = (one["title"], one["reference"], f"{one['verdict']} {one['scope']}")
            yield f"| `{one['name']}` | {' | '.join(map(_cell, texts))} |"
        yield "\n### What no study tests yet\n"
        for name, row in claims.UNTESTED.items():
            yield f"- `{name}`: {row['title']} *{row['reference']}* To test it: {row['test']}"


class StudyKeys(_Lines):
    """One table an object of the schema: key, what is allowed, default, meaning."""

    def lines(self) -> Iterator[str]:
        schema = json.loads((ROOT / "config" / "study.schema.json").read_text())
        yield from self._table("The file", schema, schema["required"])
        for name, part in schema["$defs"].items():
            short = name.split("__")
            title = f"{short[-2]} (a schedule)" if len(short) > 1 else name
            yield from self._table(title, part, part.get("required", []))

    def _table(self, title: str, part: dict[str, Any], required: list[str]) -> Iterator[str]:
        yield f"\n### {title}\n\n{_escaped(' '.join(part.get('description', '').split()))}\n"
        yield "| key | allowed | default | meaning |\n| --- | --- | --- | --- |"
        for key, value in part.get("properties", {}).items():
            default = "required" if key in required else f"`{json.dumps(value.get('default'))}`"
            meaning = _cell(value.get("description", ""))
            yield f"| `{key}` | {_allowed(value)} | {_cell(default)} | {meaning} |"


CODE = ("claims", "figures", "fits", "report", "store")
"""Packages that figures, verdicts and reports follow from."""

NEEDS = {
    "copy_task": "Time steps of a size that is called `copy`, as `config/study.yaml` does.",
    "chunk_time": "Set `chunks` under `speed: time_step` in the study.",
    "layer_time": "Set `speed: time_layer` in the study.",
    "throughput": "Set `tokens` under `speed: time_step` in the study.",
    "memory": "Set `speed: time_step` in the study; the published times have no memory.",
    "image_samples": "Give `tasks:` a row on a dataset of kind `images`.",
    "learning_rates": "Give `axes.lr_scale` several values.",
    "loss_by_position": "Set `evaluate:` in the study.",
    "recall_pairs": "Give `tasks:` a row on a dataset of kind `recall`.",
    "recall_state": "Give `tasks:` a row on a dataset of kind `recall`.",
    "task_curves": "Give the study `tasks:`.",
    "epochs": "Set `epochs:` and train on a small text, as `config/small_corpus.yaml` does.",
}
"""What a study has to say for a figure that the published numbers cannot fill."""


def drawn(name: str, source: Path) -> Path:
    """Draw figures and report of published or measured numbers, if their code or data changed.

    The file ``drawn`` has a digest of both, then the figures that have numbers.

    Args:
        name: One of ``SOURCES``.
        source: ``docs/``.
    """
    folder = source / BUILT / name
    results = ROOT / "results" / ("published" if name == "published" else f"measured/{name}")
    made = {results / "figures", results / "store"}
    found = [*results.glob("study.json"), *results.glob("*/**/*.json*")]
    data = sorted(p for p in found if made.isdisjoint(p.parents))
    if name == "published":
        data = [results / f"{stem}.csv" for stem in PUBLISHED]
    code = [p for part in CODE for p in sorted((ROOT / "src/lmscaling" / part).rglob("*.*"))]
    key = sha256()
    for path in [*data, *(p for p in code if p.suffix in (".py", ".sql", ".html", ".css", ".js"))]:
        key.update(path.read_bytes())
    done = folder / "drawn"
    if not done.is_file() or done.read_text().split()[0] != key.hexdigest():
        shutil.rmtree(folder, ignore_errors=True)
        for path in data:
            target = folder / path.relative_to(results)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        build.build(folder)
        filled = figures.save_all(folder / "store", folder / "figures", blank=True)
        names = [path.stem for path in filled]
        judged = claims.write(folder)
        if name != "published":  # whose blank figures would be in it
            report.write(folder, judged)
        done.write_text("\n".join([key.hexdigest(), *names]))
    return folder


def _allowed(value: dict[str, Any]) -> str:
    """What a key may be, in words."""
    if "$ref" in value:
        return value["$ref"].rpartition("/")[2].split("__")[-1]
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    for several in ("anyOf", "oneOf"):
        if several in value:
            return " or ".join(dict.fromkeys(_allowed(each) for each in value[several]))
    if value.get("type") == "array":
        return f"list of {_allowed(value.get('items', {}))}"
    inner = value.get("additionalProperties")
    if value.get("type") == "object" and isinstance(inner, dict):
        return f"rows of {_allowed(inner)}"
    return value.get("type", "anything")


def _escaped(text: str) -> str:
    """Prose of docstrings as Markdown."""
    parts = text.replace("``", "`").split("`")
    parts[::2] = (part.replace("<", "&lt;").replace("*(", "\\*(") for part in parts[::2])
    return "`".join(parts)


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


def _draw_all(app: Sphinx) -> None:
    """Pages show figures that have to be there when they are read."""
    for name in SOURCES:
        logging.getLogger(__name__).info("drawing the figures of %s", name)
        drawn(name, Path(app.srcdir))


def _copy_report(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        made = drawn("law", Path(app.srcdir)) / "report.html"
        shutil.copy(made, Path(app.outdir, "example_report.html"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", _draw_all)
    app.connect("build-finished", _copy_report)
    for name, directive in {"gallery": Gallery, "claims": Claims, "study-keys": StudyKeys}.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
