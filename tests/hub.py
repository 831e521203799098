"""A local server with the three responses of the Hugging Face hub that a download needs."""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "1" * 40


class Hub(ThreadingHTTPServer):
    """Serves the files of one repository; tests make it break off, fail or send wrong hashes."""

    daemon_threads = True

    def __init__(self, repository: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.prefix, self.folder = f"/datasets/{repository}/resolve/{COMMIT}/", folder
        # What the next requests meet, each entry once: bytes after which a download breaks off,
        # and seconds after which a 429 asks to come again. So many more are answered with 503.
        self.break_off_after: list[int] = []
        self.retry_after: list[int] = []
        self.failures = 0
        # What all requests meet: status and headers of a refusal, a wrong or another hash, a
        # download that sends one byte a minute, seconds that each download takes.
        self.refusal: tuple[int, dict[str, str]] | None = None
        self.wrong_hash = self.trickle = False
        self.tag: str | None = None
        self.closing, self.seconds = threading.Event(), 0.0
        # What was seen: requests, their logins, first byte and length of each download, and how
        # many were under way at the start of each.
        self.asked = self.under_way = 0
        self.tokens: set[str | None] = set()
        self.sent: list[tuple[int, int]] = []
        self.at_once: list[int] = [0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, body: bool = True) -> None:
        hub = self.server
        assert isinstance(hub, Hub)
        path = hub.folder / self.path.removeprefix(hub.prefix)
        if self.path.startswith(hub.prefix):  # the library also asks something else, once
            hub.asked += 1
            hub.tokens.add(self.headers.get("Authorization"))
        if hub.refusal:
            self._status(*hub.refusal)
        elif hub.retry_after:
            self._status(429, {"Retry-After": str(hub.retry_after.pop(0))})
        elif hub.failures:
            hub.failures -= 1
            self._status(503)
        elif not self.path.startswith(hub.prefix) or not path.is_file():
            self._status(404, {"X-Error-Code": "EntryNotFound"})
        else:
            self._send(hub, path.read_bytes(), body)

    def _send(self, hub: Hub, data: bytes, body: bool) -> None:
        tag = "0" * 64 if hub.wrong_hash else hub.tag or hashlib.sha256(data).hexdigest()
        start = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        headers = {"ETag": f'"{tag}"', "X-Linked-Etag": f'"{tag}"', "X-Repo-Commit": COMMIT}
        headers |= {"X-Linked-Size": str(len(data)), "Content-Length": str(len(data) - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._status(206 if start else 200, headers)
        if body:
            hub.under_way += 1
            hub.at_once.append(hub.under_way)
            time.sleep(hub.seconds)
            stop = start + hub.break_off_after.pop(0) if hub.break_off_after else len(data)
            if hub.trickle:
                self.wfile.write(data[start : start + 1])
                self.wfile.flush()
                hub.closing.wait(60)
                return
            self.wfile.write(data[start:stop])
            hub.sent.append((start, len(data[start:stop])))
            hub.under_way -= 1
            self.close_connection = True

    def _status(self, code: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in ({"Content-Length": "0"} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep requests out of the output of the tests."""


@contextmanager
def serving(
    repository: str, folder: Path, monkeypatch: pytest.MonkeyPatch | None = None
) -> Iterator[Hub]:
    hub = Hub(repository, folder)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    if monkeypatch:
        path = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", path)
    try:
        yield hub
    finally:
        hub.closing.set()
        hub.shutdown()
        hub.server_close()
