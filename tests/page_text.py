"""The text of a page as a reader sees it, in lines."""

import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collects the lines that a reader sees, and the words before anything is opened."""

    VOID = {"meta", "img", "input", "br", "path", "use", "link"}
    INLINE = {"span", "a", "b", "code", "label", "button", "td", "th"}

    def __init__(self):
        super().__init__()
        self.open, self.lines, self.first = [], [[]], []

    def handle_starttag(self, tag, attrs):
        if tag in self.VOID:
            return
        values = dict(attrs)
        kinds = {*(values.get("class") or "").split()}
        unseen = (
            tag in ("head", "script", "style", "noscript")
            or "hidden" in values
            or kinds & {"unseen", "query"}
        )
        folded = self.open and self.open[-1][0] == "details" and tag != "summary"
        self.open.append((tag, bool(unseen), bool(folded)))
        if tag not in self.INLINE:
            self.lines.append([])
        elif tag in ("td", "th"):
            self.lines[-1].append("|")

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop()[0] == tag, tag
            if tag not in self.INLINE:
                self.lines.append([])

    def handle_data(self, data):
        if not any(unseen for _, unseen, _ in self.open):
            self.lines[-1] += data.split()
            if not any(folded for *_, folded in self.open):
                self.first += data.split()


def seen(page):
    """Lines of a page, without versions and folders, and the words that are seen first."""
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    lines = (" ".join(words).strip("| ") for words in reader.lines)
    told = "\n".join(filter(None, lines)) + "\n"
    told = re.sub(r"(duckdb|seaborn|Python) [\d.]+", r"\1 ...", told)
    return re.sub(r" /\S+/", " .../", told), reader.first
