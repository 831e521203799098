"""The study and the program as they were when jobs were submitted, for these jobs to use.

A job may wait for days. An edit of the study, a file that is half saved or a ``git pull`` must not
reach it. So a submission copies the study, this package and the rules into
``results/<study>/submitted/<digest>/`` (2 MB; the digest is of their contents, so submissions of
the same state share a folder), and its jobs read nothing else.
"""

import hashlib
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lmscaling import registry

STUDY, COMMIT, CHANGED = registry.STUDY, registry.COMMIT, "git_changed"
"""Files of a copy: the study; the commit of the source tree, or nothing; the names of files of this
package that differ from it."""


def freeze(folder: Path, rules: Path, study: dict[str, Any]) -> Path:
    """Copy what jobs need, if there is no such copy.

    Args:
        folder: ``results/<study>/submitted``.
        rules: The folder ``workflow``.
        study: The study, merged from its files.

    Returns:
        The copy: ``study.json``, ``git_commit``, ``git_changed``, ``workflow/`` and
        ``src/lmscaling/``.
    """
    sources = dict(_files(registry.PACKAGE, "src/lmscaling"))
    sources |= dict(_files(rules, "workflow"))
    own = registry.own_attention_files().values()
    sources |= {f"src/lmscaling/{registry.name_of(path)}": path for path in own}
    texts = {STUDY: json.dumps(study, indent=2) + "\n", COMMIT: commit() or ""}
    if (changed := _changed()) is not None:
        texts[CHANGED] = "".join(f"{name}\n" for name in sorted(changed))
    digest = hashlib.sha256("".join(texts.values()).encode())
    for name, path in sources.items():
        digest.update(f"{name}\n".encode() + path.read_bytes())
    copy = folder / digest.hexdigest()[:12]
    if copy.is_dir():
        return copy
    unfinished = folder / f".{copy.name}.{uuid.uuid4().hex}.tmp"
    for name, path in sources.items():
        target = unfinished / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    for name, text in texts.items():
        (unfinished / name).write_text(text)
    try:
        unfinished.rename(copy)
    except OSError:  # another submission was faster
        shutil.rmtree(unfinished)
    return copy


def _files(folder: Path, target: str) -> Iterator[tuple[str, Path]]:
    """Files below a folder by their names in the copy, without what Python caches, and of an
    installed package without ``project/``."""
    project = registry.PACKAGE / "project"
    for path in sorted(folder.rglob("*")):
        is_project = folder == registry.PACKAGE and path.is_relative_to(project)
        if path.is_file() and "__pycache__" not in path.parts and not is_project:
            yield f"{target}/{path.relative_to(folder)}", path


def use(copy: Path) -> None:
    """Let processes that start from now on import the package from a copy."""
    paths = [str((copy / "src").absolute()), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def here() -> Path | None:
    """The copy that this process reads the package from; None if it reads the installed one."""
    root = registry.PACKAGE.parents[1]
    return root if (root / STUDY).is_file() and (root / COMMIT).is_file() else None


def commit() -> str | None:
    """Commit of the source tree, with ``+`` if files differ from it; None if it is not known."""
    if (file := registry.PROJECT / COMMIT).is_file():  # a copy, or an installed package
        return file.read_text() or None
    return _git("describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*")


def differ(paths: Iterable[Path]) -> bool | None:
    """Whether files of this package differ from the commit; None if that is not known."""
    names = {registry.name_of(path) for path in paths}
    copy = here()
    if copy and (copy / COMMIT).read_text() and (copy / CHANGED).is_file():
        return not names.isdisjoint((copy / CHANGED).read_text().splitlines())
    changed = None if copy else _changed()
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
    present = {name.removeprefix("./") for name, _ in _files(registry.PACKAGE, ".")} | own
    return present - set(listed.splitlines()) | set(edited.splitlines())


def _git(*words: str) -> str | None:
    """What git says in the folder of this package; None if it is in no repository."""
    command = ["git", "-C", str(registry.PACKAGE), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
