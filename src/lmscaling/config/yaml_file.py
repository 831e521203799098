"""Reads YAML so that every value has a place and means what it looks like.

PyYAML follows YAML 1.1, where ``010`` is 8, ``1:30`` is 90, and of two equal keys the second one
counts. A study file that has such a thing is refused. Only PyYAML's parser is used: its own
constructor knows neither places nor equal keys, and it recurses as deep as a file is nested.
"""

import copy
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import Reader

from lmscaling.errors import UserError, choose, shown

MOST_BYTES = 1_000_000
"""Size of a study file; that of a thousand cells has a few thousand."""

MOST_VALUES = 100_000
"""Values of a study file, with those that an alias repeats: ten lines can mean a billion."""

DEEPEST = 50
"""Levels of nesting; a study has six."""

KeyPath = tuple[str | int, ...]
"""Keys and indices from the top of a study to a value."""

TAG = "tag:yaml.org,2002:"
DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no name and no path can have."""

PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
RESOLVER = yaml.resolver.Resolver()


class Endless(UserError):
    """A file whose values contain themselves, or so many others that reading them would not end."""


@dataclass(frozen=True)
class Place:
    """A place in a file; line and column begin at 1. Of the command line it has no line."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True)
class Content:
    """What a file says, and where."""

    values: Any
    keys: dict[KeyPath, Place]
    """Places of the keys, and of the items of lists."""
    places: dict[KeyPath, Place]
    """Places of the values."""


def read(path: Path) -> Content:
    """The content of a study file.

    Raises:
        Endless: See ``Endless``.
        UserError: There is no such file; it is not UTF-8 or not YAML; a value does not mean what
            it looks like, or a key is given twice.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        folders = {path.parent, path.parent / "config"}
        near = sorted(str(each) for folder in folders for each in folder.glob("[!.]*.y*ml"))
        raise UserError(f"study file {path} does not exist; {choose(str(path), near)}") from None
    except IsADirectoryError:
        raise UserError(f"study file {path} is a folder; name a file, such as study.yaml") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"study file {path} cannot be read: {reason}") from None
    if len(data) > MOST_BYTES:
        raise UserError(
            f"study file {path} has {len(data):,} bytes; allowed: up to {MOST_BYTES:,}, so it "
            "is probably another file"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig")
        place = Place(str(path), before.count("\n") + 1, _column(before) + 1)
        raise UserError(
            f"{place}: byte 0x{data[error.start]:02x} is not UTF-8; save the study file as UTF-8"
        ) from None
    return parse(text, str(path))


def parse(text: str, file: str) -> Content:
    """The content of a YAML text; ``file`` is what places name."""
    return _Builder(file).build(text)


@dataclass
class _Open:
    """A mapping or list whose end is not yet read."""

    value: dict[Any, Any] | list[Any]
    path: KeyPath
    anchor: str | None
    begun: int
    """Number of values before it."""
    key: Any = None
    has_key: bool = False
    merged: list[dict[Any, Any]] = field(default_factory=list)
    """Mappings after ``<<``."""
    lines: dict[Any, int] = field(default_factory=dict)
    """Lines of the keys."""


MERGE = object()
"""The key ``<<``, which takes over the keys of another mapping."""


def _column(before: str) -> int:
    """The column, from 0, of what follows a text."""
    return len(before) - before.rfind("\n") - 1


class _Builder:
    def __init__(self, file: str) -> None:
        self.file = file
        self.root: Any = None
        self.open: list[_Open] = []
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.n_values = 0
        self.keys: dict[KeyPath, Place] = {(): Place(file, 1, 1)}
        self.places: dict[KeyPath, Place] = {}
        self.refused: UserError | None = None

    def build(self, text: str) -> Content:
        documents = 0
        for event in self._events(text):
            place = self._place(event.start_mark)
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        raise UserError(f"{place}: a second document begins; a study file has one")
                case yaml.AliasEvent(anchor=name):
                    self._put(*self._alias(name, place), place)
                case yaml.ScalarEvent():
                    value = self._scalar(event, place)
                    self._count(1, place)
                    if event.anchor:
                        self.anchors[event.anchor] = (value, 1)
                    self._put(value, place)
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    self._begin(event, place)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._end()
        if self.refused:
            raise self.refused
        return Content(self.root, self.keys, self.places)

    def _events(self, text: str) -> Iterator[Any]:
        if found := Reader.NON_PRINTABLE.search(text):
            before = text[: found.start()]
            place = Place(self.file, before.count("\n") + 1, _column(before) + 1)
            raise UserError(f"{place}: the character {found[0]!r} is not printable; leave it out")
        # The parser in C lets more tabs pass than that in Python, with which Snakemake reads.
        parser = yaml.SafeLoader if "\t" in text else PARSER
        try:
            yield from yaml.parse(text, Loader=parser)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = self._place(mark) if mark else self.file
            problem = " ".join(filter(None, (error.context, error.problem)))
            raise UserError(f"{place} is not valid YAML: {problem}") from None
        except (yaml.YAMLError, ValueError) as error:
            problem = " ".join(str(error).split())
            raise UserError(f"{self.file} is not valid YAML: {problem}") from None

    def _place(self, mark: Any) -> Place:
        if not mark or self.file.startswith("--"):
            return Place(self.file)
        return Place(self.file, mark.line + 1, mark.column + 1)

    def _refuse(self, place: Place, sentence: str) -> None:
        """Remember the first mistake that is still YAML; one that is not is told before it."""
        self.refused = self.refused or UserError(f"{place}: {sentence}")

    def _count(self, n: int, place: Place) -> None:
        self.n_values += n
        if self.n_values > MOST_VALUES:
            kind = Endless if self.anchors else UserError
            raise kind(f"{place}: the study has more than {MOST_VALUES:,} values")

    def _alias(self, name: str, place: Place) -> tuple[Any]:
        if any(each.anchor == name for each in self.open):
            raise Endless(
                f"{place}: *{name} stands inside &{name}, so the value would contain itself; "
                "write out what it should be"
            )
        if name not in self.anchors:
            raise UserError(
                f"{place}: *{name} has no &{name} before it; {choose(name, self.anchors)}"
            )
        value, n = self.anchors[name]
        self._count(n, place)
        return (copy.deepcopy(value),)

    def _begin(self, event: Any, place: Place) -> None:
        if len(self.open) >= DEEPEST:
            raise Endless(f"{place}: values are nested more than {DEEPEST} levels deep")
        if event.tag not in (None, "!"):
            self._refuse(place, f"the tag {event.tag!r} is unknown; leave it out")
        self._count(1, place)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        path = self._mark(place, is_flow=bool(event.flow_style))
        value = {} if is_mapping else []
        self.open.append(_Open(value, path, event.anchor, self.n_values))

    def _end(self) -> None:
        done = self.open.pop()
        for merged in reversed(done.merged):  # of several, the first counts
            done.value = merged | dict(done.value)
        if done.anchor:
            self.anchors[done.anchor] = (done.value, self.n_values - done.begun + 1)
        self._put(done.value, None)

    def _mark(self, place: Place, is_flow: bool = True) -> KeyPath:
        """Note the place of the value that begins; returns its path."""
        if not self.open:
            return ()
        top = self.open[-1]
        if isinstance(top.value, list):
            path = (*top.path, len(top.value))
            self.keys[path] = self.places[path] = place
        elif top.has_key:
            path = (*top.path, top.key)
            # A mapping in lines of its own begins with its first key: its own key says more.
            self.places[path] = place if is_flow else self.keys.get(path, place)
        else:
            path = top.path
        return path

    def _put(self, value: Any, place: Place | None) -> None:
        """Add a complete value; one without a place has been noted when it began."""
        if not self.open:
            self.root = value
            return
        top = self.open[-1]
        if place:
            self._mark(place)
        if isinstance(top.value, list):
            top.value.append(value)
        elif not top.has_key:
            self._put_key(top, value, place)
        else:
            top.has_key = False
            if top.key is MERGE:
                self._merge(top, value, place)
            else:
                top.value[top.key] = value

    def _put_key(self, top: _Open, key: Any, place: Place | None) -> None:
        place = place or self.keys.get(top.path, Place(self.file))
        top.has_key = True
        if not isinstance(key, str) and key is not MERGE:
            self._refuse(
                place, f"the key {shown(key)} is no word; allowed: names, in quotes if need be"
            )
            key = str(key)
        if key is not MERGE and key in top.lines:
            whole = ".".join(map(str, (*top.path, key)))
            first = f", first in line {top.lines[key]}" if place.line else ""
            self._refuse(place, f"{whole} is given twice{first}; keep one of them")
        top.key = key
        top.lines[key] = place.line
        self.keys[*top.path, key] = place

    def _merge(self, top: _Open, value: Any, place: Place | None) -> None:
        given = value if isinstance(value, list) else [value]
        if not all(isinstance(each, dict) for each in given):
            where = place or self.keys.get(top.path, Place(self.file))
            raise UserError(f"{where}: << is {shown(value)}; allowed: an alias of a mapping")
        top.merged += given

    def _scalar(self, event: Any, place: Place) -> Any:
        text = event.value
        is_plain = event.implicit[0] and event.tag is None
        kind = RESOLVER.resolve(yaml.ScalarNode, text, (True, False)) if is_plain else f"{TAG}str"
        if event.tag not in (None, "!", f"{TAG}str"):
            self._refuse(place, f"the tag {event.tag!r} is unknown; leave it out")
        match kind.removeprefix(TAG):
            case "null":
                return None
            case "bool":
                return text.lower() in ("yes", "true", "on")
            case "int" | "float" as kind:
                return self._number(text, kind, place)
            case "merge" if self.open and isinstance(self.open[-1].value, dict):
                if not self.open[-1].has_key:
                    return MERGE
                self._refuse(place, f"{text!r} has a meaning of its own in YAML; quote it")
            case "timestamp" | "value" | "merge":
                self._refuse(place, f"{text} has a meaning of its own in YAML; quote it: '{text}'")
        if found := CONTROL.search(text):
            self._refuse(
                place,
                f"the text {shown(text)} has the control character {found[0]!r}; leave it out",
            )
        return text

    def _number(self, text: str, kind: str, place: Place) -> int | float:
        plain = text.replace("_", "")
        brief = shown(text).strip("'")
        if ":" in text or (kind == "int" and not DECIMAL.fullmatch(text)):
            try:
                means = f"means {yaml.safe_load(text)} in YAML"
            except (yaml.YAMLError, ValueError):
                means = "is no decimal number"
            self._refuse(place, f"{brief} {means}; write it with decimal digits, or quote a text")
            return 0
        if kind == "int" and len(plain) <= 400:
            return int(plain)
        number = float(plain.lower().replace(".inf", "inf").replace(".nan", "nan"))
        if not math.isfinite(number):
            self._refuse(place, f"{brief} is no finite number; write a number")
            return 0
        return number
