"""The commit of the sources, and what differs from it."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from lmscaling import registry
from lmscaling.registry import COMMIT


def commit() -> str | None:
    """Commit of the source tree, with ``+`` if files differ from it; None if it is not known."""
    if (file := registry.PROJECT / COMMIT).is_file():  # an installed package
        return file.read_text() or None
    return _git("describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*")


def differ(paths: Iterable[Path]) -> bool | None:
    """Whether files of this package differ from the commit; None if that is not known."""
    names = {registry.name_of(path) for path in paths}
    changed = _changed()
    return None if changed is None else not names.isdisjoint(changed)


def _changed() -> set[str] | None:
    """Files of this package that differ from the commit or are not in it; None if that is not
    known. Those of an installed package are taken for what they were when it was built."""
    own = {registry.name_of(path) for path in registry.own_attention_files().values()}
    if (registry.PROJECT / COMMIT).is_file():
        return None if (commit() or "+").endswith("+") else own
    listed = _git("ls-files")
    edited = _git("diff", "--name-only", "--relative", "HEAD", "--", ".")
    if not listed or edited is None:
        return None
    files = (path for path in registry.PACKAGE.rglob("*") if "__pycache__" not in path.parts)
    present = {path.relative_to(registry.PACKAGE).as_posix() for path in files if path.is_file()}
    present |= own
    return present - set(listed.splitlines()) | set(edited.splitlines())


def _git(*words: str) -> str | None:
    """What git says in the folder of this package; None if it is in no repository."""
    command = ["git", "-C", str(registry.PACKAGE), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
