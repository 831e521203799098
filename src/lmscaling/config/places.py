"""Values of study files with the places where they stand, so that a mistake is found at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lmscaling.config.yaml_file import KeyPath, Place
from lmscaling.errors import UserError

UNKNOWN = "study file"
"""Where a value stands that no file has: that of a record, or of a test."""


class StudyError(UserError):
    """A mistake in a value of a study; ``located`` says in which file."""

    def __init__(self, sentence: str, *path: str | int) -> None:
        super().__init__(f"{UNKNOWN}: {sentence}")
        self.sentence, self.path = sentence, path


class Values(dict[str, Any]):
    """The values of a study that comes from files. A copy of it is a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_at: dict[KeyPath, Place] = {}
        self.values_at: dict[KeyPath, Place] = {}

    def place(self, path: KeyPath, is_key: bool = False) -> str:
        """Where a value stands, or its key; of a value that no file has, what it is part of."""
        if not is_key and path in self.values_at:
            return str(self.values_at[path])
        while path and path not in self.keys_at:
            path = path[:-1]
        return str(self.keys_at.get(path, UNKNOWN))

    def forget(self, path: KeyPath) -> None:
        """Forget the places of a value and of what it contains."""
        for places in (self.keys_at, self.values_at):
            for known in [each for each in places if each[: len(path)] == path]:
                del places[known]


def place_of(values: Any, location: Sequence[Any], is_key: bool = False) -> str:
    """Where a value stands.

    Args:
        values: The study.
        location: Keys and indices from its top. Parts that it does not have are passed over, as
            the names of alternatives in a location of pydantic.
        is_key: Whether the key is meant and not its value.
    """
    if not isinstance(values, Values):
        return UNKNOWN
    path: list[str | int] = []
    inner: Any = values
    for part in location:
        known = isinstance(inner, dict) and part in inner
        known |= isinstance(inner, list) and isinstance(part, int) and part < len(inner)
        if known:
            inner = inner[part]
            path.append(part)
    return values.place(tuple(path), is_key or isinstance(inner, dict))


@contextmanager
def located(values: Any) -> Iterator[None]:
    """Let mistakes that the block finds begin with their place."""
    try:
        yield
    except StudyError as error:
        raise UserError(f"{place_of(values, error.path)}: {error.sentence}") from None
