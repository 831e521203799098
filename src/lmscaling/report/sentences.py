"""Sentences of a template: a ``¶`` ends each that is shown by itself.

Line breaks of the template are spaces, and no space is left before a mark or within brackets.
"""

import re
from typing import Any

import jinja2


class Sentences:
    """The macros of a template ``report/<name>.j2``, with the facts that they see."""

    def __init__(self, name: str, **facts: Any) -> None:
        loader = jinja2.PackageLoader("lmscaling", "report")
        environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined)
        self._macros = environment.get_template(f"{name}.j2").make_module(facts)

    def all(self, macro: str, *values: Any) -> list[str]:
        """The sentences of a macro."""
        text = " ".join(getattr(self._macros, macro)(*values).split())
        text = re.sub(r" (?=[,.;:)])|(?<=\() ", "", text)
        return [one.strip() for one in text.split("¶") if one.strip()]

    def one(self, macro: str, *values: Any) -> str:
        """The only sentence of a macro."""
        (sentence,) = self.all(macro, *values)
        return sentence
