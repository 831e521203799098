"""Reads YAML so that every value has a place and means what it looks like.

PyYAML follows YAML 1.1, where ``010`` is 8, ``1:30`` is 90, and of two equal keys the second one
counts. A study file that has such a thing is refused. The values are made from the events of
PyYAML's parser: its own constructor knows neither places nor equal keys, and its composer recurses
as deep as a file is nested.
"""

import copy
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lmscaling.config.places import KeyPath, Place
from lmscaling.errors import UserError, choose, shown

MOST_BYTES = 1_000_000
"""Size of a study file; that of a thousand cells has a few thousand."""

MOST_VALUES = 100_000
"""Values of a study file, with those that an alias repeats: ten lines can mean a billion."""

DEEPEST = 50
"""Levels of nesting; a study has six."""

TAG = "tag:yaml.org,2002:"
DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no name and no path can have."""

RESOLVER = yaml.resolver.Resolver()


Content = tuple[Any, dict[KeyPath, tuple[Place, Place]]]
"""What a file says, and the places of each key, or item of a list, and of its value."""


def read(path: Path) -> Content:
    """The content of a study file.

    Raises:
        UserError: There is no such file; it is not UTF-8 or not YAML; a value does not mean what
            it looks like, contains itself or many thousand others, or a key is given twice.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        folders = {path.parent, path.parent / "config"}
        near = sorted(str(each) for folder in folders for each in folder.glob("[!.]*.y*ml"))
        raise UserError(f"study file {path} does not exist; {choose(str(path), near)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"study file {path} cannot be read: {reason}; name a file, such as study.yaml"
        ) from None
    if len(data) > MOST_BYTES:
        raise UserError(
            f"study file {path} has {len(data):,} bytes; allowed: up to {MOST_BYTES:,}, so it "
            "is probably another file"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _after(data[: error.start].decode("utf-8-sig"), str(path))
        raise UserError(
            f"{place}: byte 0x{data[error.start]:02x} is not UTF-8; save the study file as UTF-8"
        ) from None
    return parse(text, str(path))


def parse(text: str, file: str) -> Content:
    """The content of a YAML text; ``file`` is what places name."""
    if found := CONTROL.search(text.replace("\r", " ")):
        place = _after(text[: found.start()], file)
        raise UserError(f"{place}: the character {found[0]!r} is not printable; leave it out")
    return _Reader(text, file).content()


def _after(text: str, file: str) -> Place:
    """The place behind the beginning of a file."""
    return Place(file, text.count("\n") + 1, len(text) - text.rfind("\n"))


class _Reader:
    """Makes values of events. A value is read from its first event on, with ``next``."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.events = self._parsed(text)
        self.n_values = 0
        self.anchors: dict[str, tuple[Any, int] | None] = {}
        """Values with their number of values; None where the end is not yet read."""
        top = Place(file, 1, 1)
        self.places: dict[KeyPath, tuple[Place, Place]] = {(): (top, top)}

    def content(self) -> Content:
        values, is_first = None, True
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if not is_first:
                    place = self._place(event.start_mark)
                    raise UserError(f"{place}: a second document begins; a study file has one")
                values, is_first = self._value(next(self.events), ()), False
        return values, self.places

    def _parsed(self, text: str) -> Iterator[Any]:
        # The parser in C lets more tabs pass than that in Python, with which Snakemake reads.
        fast = yaml.SafeLoader if "\t" in text else getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            yield from yaml.parse(text, Loader=fast)
        except yaml.MarkedYAMLError as error:
            place = self._place(error.problem_mark or error.context_mark)
            problem = " ".join(filter(None, (error.context, error.problem)))
            raise UserError(f"{place} is not valid YAML: {problem}") from None
        except (yaml.YAMLError, ValueError) as error:
            problem = " ".join(str(error).split())
            raise UserError(f"{self.file} is not valid YAML: {problem}") from None

    def _place(self, mark: Any) -> Place:
        if not mark or self.file.startswith("--"):
            return Place(self.file)
        return Place(self.file, mark.line + 1, mark.column + 1)

    def _count(self, n: int, place: Place) -> None:
        self.n_values += n
        if self.n_values > MOST_VALUES:
            raise UserError(f"{place}: the study has more than {MOST_VALUES:,} values")

    def _value(self, event: Any, path: KeyPath) -> Any:
        place, before = self._place(event.start_mark), self.n_values
        if isinstance(event, yaml.AliasEvent):
            return self._repeated(event.anchor, place)
        self._count(1, place)
        if event.anchor:
            self.anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event, place)
        elif event.tag is not None:
            raise UserError(f"{place}: the tag {event.tag!r} is unknown; leave it out")
        elif len(path) >= DEEPEST:
            raise UserError(f"{place}: values are nested more than {DEEPEST} levels deep")
        elif isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(path)
        else:
            value = self._list(path)
        if event.anchor:
            self.anchors[event.anchor] = (value, self.n_values - before)
        return value

    def _repeated(self, name: str, place: Place) -> Any:
        if name not in self.anchors:
            raise UserError(
                f"{place}: *{name} has no &{name} before it; {choose(name, self.anchors)}"
            )
        found = self.anchors[name]
        if not found:
            raise UserError(
                f"{place}: *{name} stands inside &{name}, so the value would contain itself; "
                "write out what it should be"
            )
        self._count(found[1], place)
        return copy.deepcopy(found[0])

    def _inner(self, event: Any, path: KeyPath, key: Place) -> Any:
        """A value of a mapping or list; its places are noted."""
        # A mapping in lines of its own begins with its first key: its own key says more.
        in_lines = isinstance(event, yaml.CollectionStartEvent) and not event.flow_style
        self.places[path] = key, key if in_lines else self._place(event.start_mark)
        return self._value(event, path)

    def _list(self, path: KeyPath) -> list[Any]:
        values = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            place = self._place(event.start_mark)
            values.append(self._inner(event, (*path, len(values)), place))
        return values

    def _merged(self, event: Any, path: KeyPath) -> dict[str, Any]:
        """The keys behind ``<<``, of one mapping or of several, of which the first counts."""
        place, given = self._place(event.start_mark), self._value(event, path)
        found = {}
        for each in given if isinstance(given, list) else [given]:
            if not isinstance(each, dict):
                raise UserError(f"{place}: << is {shown(given)}; allowed: an alias of a mapping")
            found = each | found
        return found

    def _mapping(self, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            place = self._place(event.start_mark)
            if isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]:
                merged = self._merged(next(self.events), path) | merged
                continue
            key = _scalar(event, place) if isinstance(event, yaml.ScalarEvent) else None
            if not isinstance(key, str):
                what = shown(key) if isinstance(event, yaml.ScalarEvent) else "of several values"
                raise UserError(
                    f"{place}: the key {what} is no word; allowed: names, in quotes if need be"
                )
            inner = (*path, key)
            if key in values:
                first = f", first in line {self.places[inner][0].line}" if place.line else ""
                raise UserError(
                    f"{place}: {'.'.join(map(str, inner))} is given twice{first}; keep one of them"
                )
            values[key] = self._inner(next(self.events), inner, place)
        return merged | values


def _scalar(event: Any, place: Place) -> Any:
    text, kind = event.value, RESOLVER.resolve(yaml.ScalarNode, event.value, event.implicit)
    if event.tag not in (None, f"{TAG}str"):
        raise UserError(f"{place}: the tag {event.tag!r} is unknown; leave it out")
    match kind.removeprefix(TAG):
        case "null":
            return None
        case "bool":
            return text.lower() in ("yes", "true", "on")
        case "int" | "float" as kind:
            return _number(text, kind, place)
        case "timestamp" | "value" | "merge":
            raise UserError(f"{place}: {text} has a meaning of its own in YAML; quote it: '{text}'")
    if found := CONTROL.search(text):
        raise UserError(
            f"{place}: the text {shown(text)} has the control character {found[0]!r}; leave it out"
        )
    return text


def _number(text: str, kind: str, place: Place) -> int | float:
    plain, brief = text.replace("_", ""), shown(text).strip("'")
    if ":" in text or (kind == "int" and not DECIMAL.fullmatch(text)):
        try:
            means = f"means {yaml.safe_load(text)} in YAML"
        except (yaml.YAMLError, ValueError):
            means = "is no decimal number"
        raise UserError(f"{place}: {brief} {means}; write it with decimal digits, or quote a text")
    if kind == "int" and len(plain) <= 400:
        return int(plain)
    number = float(plain.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(number):
        raise UserError(f"{place}: {brief} is no finite number; write a number")
    return number
