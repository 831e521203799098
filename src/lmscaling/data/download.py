"""One file of a dataset repository from the hub to a local folder, whole and checked.

It runs where there is a network; tokenizing then needs none. What has come is kept when a download
breaks off or is killed, and the next attempt goes on behind it. A file is believed when its
SHA-256 is the one that the hub itself has for it.
"""

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

from httpx2 import ConnectError, HTTPError
from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers

from lmscaling.config.datasets import Hub
from lmscaling.errors import UserError
from lmscaling.files import described_at, sha256_of, write_json

WAITS = (5, 15, 45, 135)
"""Seconds before each further attempt; it goes on where the one before broke off."""

PATIENCE = 2
"""Waits for a hub that cannot even be connected to: as a rule there is no network at all."""

NO_SUCH = (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError)


def fetch(row: Hub, file: str, out: Path) -> dict[str, Any]:
    """Fetch one file of a repository; ``<out>.fetched.json`` beside it says what it is.

    Args:
        row: The dataset's row.
        file: Path in the repository.
        out: Where it goes.

    Returns:
        The content of ``<out>.fetched.json``.

    Raises:
        UserError: The hub cannot be reached, has no such file, or sends another one.
    """
    place = f"{file} of {row.repository} at {row.revision}"
    out.parent.mkdir(parents=True, exist_ok=True)
    part, tag = _persistently(row, file, out, place)
    described = {
        "repository": row.repository,
        "revision": row.revision,
        "file": file,
        "bytes": part.stat().st_size,
        "sha256": _checked(part, tag, place),
    }
    part.replace(out)
    write_json(described_at(out), described)
    return described


def _persistently(row: Hub, file: str, out: Path, place: str) -> tuple[Path, str]:
    """An attempt, and one more after each of ``WAITS`` while the network fails."""
    for n, wait in enumerate((*WAITS, None)):
        try:
            return _attempt(row, file, out)
        except NO_SUCH as error:
            raise UserError(
                f"{place} does not exist on the hub; mend train:, validation: or revision: in "
                "the dataset's row"
            ) from error
        except (HTTPError, OSError) as error:
            problem = " ".join(str(error).split())[:200] or type(error).__name__
            if wait is None or (n == PATIENCE and isinstance(error, ConnectError)):
                raise UserError(
                    f"{place} cannot be fetched: {problem}; run again when the hub can be "
                    "reached, or set mirror: in the dataset's row to a local folder that has "
                    f"{file}"
                ) from error
            print(f"fetch: {problem}; again in {wait} s", file=sys.stderr, flush=True)
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _attempt(row: Hub, file: str, out: Path) -> tuple[Path, str]:
    """Download what is not there yet; the whole file under a hidden name, and the hub's tag."""
    url = hf_hub_url(row.repository, file, repo_type="dataset", revision=row.revision)
    found = get_hf_file_metadata(url)
    tag, size = str(found.etag), found.size
    part = out.with_name(f".{out.name}.{tag[:16]}.part")
    have = part.stat().st_size if part.is_file() else 0
    if size is not None and have > size:
        part.unlink()
        have = 0
    with part.open("ab") as to:
        http_get(url, to, resume_size=have, headers=build_hf_headers(), expected_size=size)
    return part, tag


def _checked(part: Path, etag: str, place: str) -> str:
    """SHA-256 of what was fetched, if it is the hub's.

    Large files have it as their tag; small ones have the SHA-1 of a git blob instead.

    Raises:
        UserError: It is another file; it is deleted, for nothing can be made of it.
    """
    sha256 = sha256_of(part)
    if len(etag) == 64:
        found = sha256
    else:
        data = part.read_bytes()
        found = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    if found != etag:
        part.unlink()
        raise UserError(
            f"{place} came with hash {found}, the hub says {etag}; it is deleted, run again"
        )
    return sha256
