"""Downloads one file of a dataset repository from the hub, and checks it.

Downloads run where there is a network, so that tokenization needs none. ``huggingface_hub`` does
the download, with the cache, the login and the settings of the user (``HF_HOME``, ``HF_TOKEN``,
``HF_ENDPOINT``, ``HF_HUB_OFFLINE``). A file that is in the user's cache is copied from there.
Others are not put there, for a corpus is large, and each of its files is deleted once it is
tokenized. A file is accepted if its SHA-256 is the one that the hub states.
"""

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, Self, cast

from httpx2 import ConnectError, ConnectTimeout, HTTPError
from huggingface_hub import (
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lmscaling.errors import UserError
from lmscaling.files import described_at, new_folder, sha256_of, write_json
from lmscaling.formatting import bytes_of

WAITS = (5, 15, 45, 135)
"""Seconds to wait before each further attempt, if no attempt gets further than those before."""

LONGEST_WAIT = 3600
"""Seconds; the hub can ask for a longer wait, and is not asked again before."""

PROGRESS_SECONDS = 30
"""Time between two lines about a download."""

STALLED_SECONDS = 600
"""Time in which at least one block of the download arrives; ``huggingface_hub`` has 10 MB."""

HASH = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")


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
        UserError: The hub cannot be reached, refuses the file, does not have it, or sends a
            different one.
    """
    progress = _Progress(file)
    failures, furthest = 0, 0
    while True:
        try:
            return _watched(lambda: _attempt(repository, revision, file, out, progress), progress)
        except (HTTPError, OSError, RuntimeError) as raised:
            error = raised.__cause__ if isinstance(raised, LocalEntryNotFoundError) else raised
            error = error or raised
            first = not failures and not progress.furthest
            if refusal := _refusal(error, repository, revision, file, first):
                raise UserError(refusal) from raised
            failures = 1 if progress.furthest > furthest else failures + 1
            furthest = progress.furthest
            problem = " ".join(str(error).split())[:200] or type(error).__name__
            if failures > len(WAITS):
                raise UserError(
                    f"{file} of {repository} at {revision} cannot be downloaded: {problem}; run "
                    "again when the hub can be reached, or set mirror: in the dataset's row to a "
                    f"local folder that has {file}"
                ) from raised
            wait = max(WAITS[failures - 1], _asked_wait(error))
            print(f"fetch: {problem}; next attempt in {wait} s", file=sys.stderr, flush=True)
            time.sleep(wait)


def _attempt(
    repository: str, revision: str, file: str, out: Path, progress: "_Progress"
) -> dict[str, Any]:
    name = f"{file} of {repository} at {revision}"
    cached = try_to_load_from_cache(repository, file, revision=revision, repo_type="dataset")
    with new_folder(out) as folder:
        if isinstance(cached, str) and os.path.islink(cached):
            tag, arrived = Path(os.readlink(cached)).name, folder / out.name
            shutil.copyfile(cached, arrived)
        else:
            tag = _stated_hash(repository, revision, file, name)
            arrived = Path(
                hf_hub_download(
                    repository, file, repo_type="dataset", revision=revision, local_dir=folder,
                    tqdm_class=cast(Any, progress),
                )
            )  # fmt: skip
        description = {
            "repository": repository,
            "revision": revision,
            "file": file,
            "bytes": arrived.stat().st_size,
            "sha256": _verify(arrived, tag, name, cached),
        }
        arrived.replace(out)
    write_json(described_at(out), description)
    return description


def _stated_hash(repository: str, revision: str, file: str, name: str) -> str:
    """The hash that the hub states for a file.

    Raises:
        UserError: It states none, as some mirrors of the hub do.
    """
    url = hf_hub_url(repository, file, repo_type="dataset", revision=revision)
    metadata = get_hf_file_metadata(url)
    if not metadata.commit_hash or not HASH.fullmatch(str(metadata.etag)):
        raise UserError(
            f"{constants.ENDPOINT} states no commit and no SHA-256 for {name}, so a download could "
            "not be checked; set HF_ENDPOINT to a hub that does, or download the repository "
            "yourself and set mirror: in the dataset's row to its folder"
        )
    return str(metadata.etag)


def _verify(path: Path, tag: str, name: str, cached: object) -> str:
    """SHA-256 of the downloaded file, after a comparison with the hub's tag.

    The tag of a large file is its SHA-256; the tag of a small one is the SHA-1 of its git blob.

    Raises:
        UserError: The hashes differ.
    """
    sha256 = found = sha256_of(path)
    if len(tag) != 64:
        data = path.read_bytes()
        found = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    if found != tag:
        source, remedy = "arrived", "the file is deleted, run again"
        if isinstance(cached, str):
            source, remedy = f"is in the cache as {cached}", "delete it there and run again"
        raise UserError(f"{name} {source} with hash {found}, but the hub states {tag}; {remedy}")
    return sha256


def _refusal(
    error: BaseException, repository: str, revision: str, file: str, first: bool
) -> str | None:
    """The sentence about an error that further attempts would not change; None for others.

    Args:
        first: Whether nothing has arrived from the hub so far.
    """
    mirror = "or set mirror: in the dataset's row to a local folder with the repository"
    login = "log in with `hf auth login`, or set HF_TOKEN"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    match error:
        case GatedRepoError():
            return (
                f"{repository} is gated: its owners decide who may read it; ask them on "
                f"{constants.ENDPOINT}/datasets/{repository}, then {login}, {mirror}"
            )
        case RepositoryNotFoundError() if status != 401:
            return (
                f"{repository} does not exist on the hub, or is hidden from your login; correct "
                f"repository: in the dataset's row, or {login}"
            )
        case RevisionNotFoundError():
            return (
                f"{repository} has no revision {revision} on the hub; correct revision: in the "
                "dataset's row"
            )
        case EntryNotFoundError() if not isinstance(error, LocalEntryNotFoundError):
            return (
                f"{file} of {repository} at {revision} does not exist on the hub; correct train: "
                "or validation: in the dataset's row"
            )
        case OfflineModeIsEnabled():
            return (
                f"{repository} is not fetched, because HF_HUB_OFFLINE is set and your cache does "
                f"not have all its files; unset HF_HUB_OFFLINE, {mirror}"
            )
        case ConnectError() | ConnectTimeout() if first:
            return (
                f"{constants.ENDPOINT} cannot be reached from this machine; run snakemake where "
                f"there is a network, set HTTPS_PROXY or HF_ENDPOINT if yours needs one, {mirror}"
            )
        case OSError(errno=int(number)) if not isinstance(error, ConnectionError):
            return f"{file} of {repository} cannot be written: {os.strerror(number)}"
    if status in (401, 403):
        return (
            f"the hub forbids you to read {repository} ({status}): you are not logged in, or your "
            f"token lacks the right; {login} of a token that may read it, {mirror}"
        )
    if status is not None and 400 <= status < 500 and status not in (408, 429):
        return f"the hub refuses {file} of {repository} at {revision}: {error}"
    return None


def _asked_wait(error: BaseException) -> int:
    """Seconds that the hub asks to wait; 0 if it asks nothing."""
    asked = error.response.headers.get("Retry-After") if isinstance(error, HfHubHTTPError) else None
    return min(int(asked), LONGEST_WAIT) if asked and asked.isdigit() else 0


class _Progress:
    """Takes the place of a progress bar of ``tqdm``; writes a line now and then."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.total: int | None = None
        self.n = self.furthest = 0
        """Bytes that have arrived in this attempt, and in the one that got furthest."""
        self._said = self._began = time.monotonic()

    def __call__(self, total: int | None = None, **options: Any) -> Self:
        self.total, self.n, self._began = total, 0, time.monotonic()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def update(self, n: int) -> None:
        """Bytes in the file; those of the network are counted instead."""

    def update_transfer(self, n: int) -> None:
        """Count bytes that have arrived."""
        self.n += n
        self.furthest = max(self.furthest, self.n)
        now = time.monotonic()
        if now - self._said >= PROGRESS_SECONDS:
            self._said = now
            share = f" of {bytes_of(self.total)} ({self.n / self.total:.0%})" if self.total else ""
            rate = bytes_of(self.n / (now - self._began))
            line = f"fetch: {self.file}: {bytes_of(self.n)}{share}, {rate}/s"
            print(line, file=sys.stderr, flush=True)

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Part of the interface of ``tqdm``."""

    set_transfer_postfix_str = set_postfix_str

    def close(self) -> None:
        """Part of the interface of ``tqdm``."""


def _watched(task: Callable[[], dict[str, Any]], progress: _Progress) -> dict[str, Any]:
    """Run a download in a thread, which is abandoned if it stalls.

    Raises:
        UserError: So little arrives that the download would never end.
    """
    done: Future[dict[str, Any]] = Future()

    def run() -> None:
        try:
            done.set_result(task())
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    before = -1
    while True:
        try:
            return done.result(STALLED_SECONDS)
        except TimeoutError:
            if done.done():
                raise
            if progress.n == before:
                least = bytes_of(constants.DOWNLOAD_CHUNK_SIZE)
                raise UserError(
                    f"less than {least} of {progress.file} arrived in {STALLED_SECONDS} s; check "
                    "the network, and run again"
                ) from None
            before = progress.n
