"""The commit of the sources, and what differs from it."""

import hashlib
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from lmscaling import registry
from lmscaling.registry import COMMIT


def commit() -> str | None:
    """Commit of the source tree, with ``+`` if files differ from it; None if it is not known."""
    if (file := registry.PROJECT / COMMIT).is_file():  # an installed package
        return file.read_text() or None
    return _git("describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*")


@cache
def source_digest() -> str:
    """SHA-256 of all sources of this package, also where no commit is known or files differ."""
    digest = hashlib.sha256()
    for path in sorted(registry.PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(registry.PACKAGE)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def differ(paths: Iterable[Path]) -> bool | None:
    """Whether source files differ from the commit or are not in it; None if that is not known.

    Those of an installed package are taken for what they were when it was built.
    """
    files = list(paths)
    if not all(path.is_relative_to(registry.PACKAGE) for path in files):  # a user's own
        return True
    if (registry.PROJECT / COMMIT).is_file():
        return None if (commit() or "+").endswith("+") else False
    # Relative names, for jobs reach the package through a link.
    names = [str(path.relative_to(registry.PACKAGE)) for path in files]
    changed = _git("status", "--porcelain", "--ignored", "--", *names)
    return None if changed is None else bool(changed)


def _git(*words: str) -> str | None:
    """What git says in the folder of this package; None if it is in no repository."""
    command = ["git", "-C", str(registry.PACKAGE), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
