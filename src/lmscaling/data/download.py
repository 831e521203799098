"""Downloads one file of a dataset repository from the hub, and checks it.

Downloads run where there is a network, so that tokenization needs none. If a download breaks off or
is killed, the next attempt keeps what has arrived and continues from there. A file is accepted if
its SHA-256 is the one that the hub states.
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

from lmscaling.errors import UserError
from lmscaling.files import described_at, sha256_of, write_json

WAITS = (5, 15, 45, 135)
"""Seconds to wait before each further attempt."""

CONNECT_WAITS = 2
"""Number of these waits if no connection is possible: usually there is no network at all."""

NOT_FOUND = (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError)


def fetch(repository: str, revision: str, file: str, out: Path) -> dict[str, Any]:
    """Download one file of a dataset repository and describe it in ``<out>.fetched.json``.

    Args:
        repository: ``owner/name``.
        revision: Commit of the repository.
        file: Path in the repository.
        out: Path of the downloaded file.

    Returns:
        The content of ``<out>.fetched.json``.

    Raises:
        UserError: The hub cannot be reached, does not have the file, or sends a different file.
    """
    name = f"{file} of {repository} at {revision}"
    url = hf_hub_url(repository, file, repo_type="dataset", revision=revision)
    out.parent.mkdir(parents=True, exist_ok=True)
    part, tag = _download_with_retries(url, out, name, file)
    description = {
        "repository": repository,
        "revision": revision,
        "file": file,
        "bytes": part.stat().st_size,
        "sha256": _verify(part, tag, name),
    }
    part.replace(out)
    write_json(described_at(out), description)
    return description


def _download_with_retries(url: str, out: Path, name: str, file: str) -> tuple[Path, str]:
    """One attempt, and another after each of ``WAITS`` while the network fails."""
    for n, wait in enumerate((*WAITS, None)):
        try:
            return _download(url, out)
        except NOT_FOUND as error:
            raise UserError(
                f"{name} does not exist on the hub; correct train:, validation: or revision: in "
                "the dataset's row"
            ) from error
        except (HTTPError, OSError) as error:
            problem = " ".join(str(error).split())[:200] or type(error).__name__
            if wait is None or (n == CONNECT_WAITS and isinstance(error, ConnectError)):
                raise UserError(
                    f"{name} cannot be downloaded: {problem}; run again when the hub can be "
                    "reached, or set mirror: in the dataset's row to a local folder that has "
                    f"{file}"
                ) from error
            print(f"fetch: {problem}; next attempt in {wait} s", file=sys.stderr, flush=True)
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _download(url: str, out: Path) -> tuple[Path, str]:
    """Download the missing bytes; returns the complete file under a hidden name, and its tag."""
    metadata = get_hf_file_metadata(url)
    tag, size = str(metadata.etag), metadata.size
    part = out.with_name(f".{out.name}.{tag[:16]}.part")
    have = part.stat().st_size if part.is_file() else 0
    if size is not None and have > size:
        part.unlink()
        have = 0
    with part.open("ab") as file:
        http_get(url, file, resume_size=have, headers=build_hf_headers(), expected_size=size)
    return part, tag


def _verify(part: Path, etag: str, name: str) -> str:
    """SHA-256 of the downloaded file, after a comparison with the hub's tag.

    The tag of a large file is its SHA-256; the tag of a small one is the SHA-1 of its git blob.

    Raises:
        UserError: The hashes differ; the file is deleted.
    """
    sha256 = found = sha256_of(part)
    if len(etag) != 64:
        data = part.read_bytes()
        found = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    if found != etag:
        part.unlink()
        raise UserError(
            f"{name} arrived with hash {found}, but the hub states {etag}; the file is deleted, "
            "run again"
        )
    return sha256
