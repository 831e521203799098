"""Values of study files with the places where they stand, so that a mistake is found at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lmscaling.errors import UserError

UNKNOWN = "study file"
"""Where a value stands that no file has: that of a record, or of a test."""

KeyPath = tuple[str | int, ...]
"""Keys and indices from the top of a study to a value."""


@dataclass(frozen=True)
class Place:
    """A place in a file; line and column begin at 1. Of the command line it has no line."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Values(dict[str, Any]):
    """The values of a study that comes from files. A copy of it is a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[KeyPath, tuple[Place, Place]] = {}
        """Where a key, or an item of a list, stands, and where its value does."""

    def forget(self, path: KeyPath) -> None:
        """Forget the places of a value and of what it contains."""
        for known in [each for each in self.places if each[: len(path)] == path]:
            del self.places[known]


class StudyError(UserError):
    """A mistake in a value of a study; ``located`` says in which file.

    Args:
        path: Keys and indices from the top of the study to the value, or as ``optimizer.eps``.
        problem: What follows the path in the sentence; an index at its end is left out there.
        is_key: Whether the mistake is the key and not its value.
    """

    def __init__(self, path: KeyPath | str, problem: str, is_key: bool = False) -> None:
        self.path = tuple(path.split(".")) if isinstance(path, str) else path
        self.problem, self.is_key = problem, is_key
        keys = self.path[:-1] if isinstance(self.path[-1], int) else self.path
        self.sentence = f"{'.'.join(map(str, keys))} {problem}"
        super().__init__(f"{UNKNOWN}: {self.sentence}")


def place_of(values: Any, location: Sequence[Any], is_key: bool = False) -> str:
    """Where a value stands; of a value that no file has, where the key of what it is part of does.

    Args:
        values: The study.
        location: Keys and indices from its top. Parts that it does not have are passed over, as
            the names of alternatives in a location of pydantic.
        is_key: Whether the key is meant and not its value.
    """
    if not isinstance(values, Values):
        return UNKNOWN
    path: KeyPath = ()
    inner: Any = values
    for part in location:
        known = isinstance(inner, dict) and part in inner
        known |= isinstance(inner, list) and isinstance(part, int) and part < len(inner)
        if known:
            inner, path = inner[part], (*path, part)
    is_key |= isinstance(inner, dict)
    while path and path not in values.places:
        path, is_key = path[:-1], True
    key, value = values.places.get(path, (UNKNOWN, UNKNOWN))
    return str(key if is_key else value)


@contextmanager
def located(values: Any) -> Iterator[None]:
    """Let mistakes that the block finds begin with their place."""
    try:
        yield
    except StudyError as error:
        place = place_of(values, error.path, error.is_key)
        raise UserError(f"{place}: {error.sentence}") from None
