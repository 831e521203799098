"""Errors that a user can cause, each in one sentence: what, found, allowed, nearest.

``UserError`` is the only exception that is printed without a traceback. Any other exception that
reaches the terminal is a bug in this package.
"""

import os
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

if sys.platform == "win32" or sys.version_info < (3, 11):
    sys.exit("error: lmscaling needs Python 3.11 to 3.13 on Linux; on Windows type wsl --install")

TRY_AGAIN = os.EX_TEMPFAIL
"""Exit code of a process that stopped early and whose next start goes on (75)."""


class UserError(ValueError):
    """A mistake in the study, a file or a command; the text is a complete sentence."""


MOST_CHARACTERS = 80
"""Longest text of a value in a sentence."""


def shown(value: Any) -> str:
    """A value as a study file has it, for a sentence; the end of a long one is left out."""
    words = {True: "true", False: "false", None: "null"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."


def choose(found: object, allowed: Iterable[object]) -> str:
    """The end of an error message about a name: the nearest allowed name, then all of them."""
    names = [str(name) for name in allowed]
    if not names:
        return "none is defined"
    folded = {name.lower(): name for name in names}
    close = get_close_matches(str(found).lower(), folded, n=1, cutoff=0.5)
    nearest = f"nearest is {folded[close[0]]!r}; " if close else ""
    return f"{nearest}allowed: {', '.join(names)}"
