"""What a user can cause, said in one sentence: what, found, allowed, nearest.

``UserError`` is the only exception whose text reaches the terminal without a traceback. Anything
else that escapes is a bug of ours and keeps its traceback.
"""

import os
from collections.abc import Iterable
from difflib import get_close_matches

TRY_AGAIN = os.EX_TEMPFAIL
"""Exit code of a process that stopped early and whose next start goes on (75)."""


class UserError(ValueError):
    """A mistake in the study, a file or a command; its text is a whole sentence."""


def choose(found: object, allowed: Iterable[object]) -> str:
    """The clause that ends an error about a name: the nearest allowed one, then all of them."""
    names = [str(name) for name in allowed]
    if not names:
        return "none is defined"
    folded = {name.lower(): name for name in names}
    close = get_close_matches(str(found).lower(), folded, n=1, cutoff=0.5)
    nearest = f"nearest is {folded[close[0]]!r}; " if close else ""
    return f"{nearest}allowed: {', '.join(names)}"
