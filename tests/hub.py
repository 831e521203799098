"""A local server with the responses of the Hugging Face hub that a stream of a dataset needs."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

COMMIT = "1" * 40


class Hub(ThreadingHTTPServer):
    """Serves the files of one repository; tests make it refuse, break off or fail."""

    daemon_threads = True

    def __init__(self, repository: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.repository, self.folder = repository, folder
        self.refusal: tuple[int, dict[str, str]] | None = None
        """Status and headers with which all requests are answered."""
        self.failures = 0
        """So many downloads are answered with 503."""
        self.break_off_after: list[int] = []
        """Bytes after which the next downloads break off, each entry once."""
        self.tokens: set[str | None] = set()
        """Logins that were seen."""
        self.sent: list[str] = []
        """Paths of the downloads."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server
        assert isinstance(hub, Hub)
        asked = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        path = self.path.partition("?")[0]
        api, files = f"/api/datasets/{hub.repository}", f"/datasets/{hub.repository}/resolve/"
        hub.tokens.add(self.headers.get("Authorization"))
        if hub.refusal:
            self._status(*hub.refusal)
        elif path.startswith(f"{api}/tree/{COMMIT}"):
            self._tree(hub, path.removeprefix(f"{api}/tree/{COMMIT}").strip("/"))
        elif path.startswith(f"{api}/paths-info/{COMMIT}"):
            known = json.loads(asked)["paths"] if asked.startswith("{") else []
            self._json([_entry(hub, name) for name in known if (hub.folder / name).exists()])
        elif path == api or path.startswith(f"{api}/revision/{COMMIT}"):
            self._json({"id": hub.repository, "sha": COMMIT, "siblings": [], "tags": []})
        elif path.startswith(f"{files}{COMMIT}/") and hub.failures:
            hub.failures -= 1
            self._status(503)
        elif (name := path.removeprefix(f"{files}{COMMIT}/")) != path:
            self._send(hub, name)
        else:
            self._status(
                404, {"X-Error-Code": "RevisionNotFound" if api in path else "RepoNotFound"}
            )

    def _tree(self, hub: Hub, folder: str) -> None:
        if (hub.folder / folder).is_dir():
            names = sorted(p.relative_to(hub.folder) for p in (hub.folder / folder).iterdir())
            self._json([_entry(hub, name.as_posix()) for name in names])
        else:
            self._status(404, {"X-Error-Code": "EntryNotFound"})

    def _send(self, hub: Hub, name: str) -> None:
        path = hub.folder / name
        if not path.is_file():
            self._status(404, {"X-Error-Code": "EntryNotFound"})
            return
        data, wanted = path.read_bytes(), self.headers.get("Range")
        start, _, end = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(start) : int(end or len(data) - 1) + 1]
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        headers["Content-Length"] = str(len(part))
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}"
        self._status(206 if wanted else 200, headers)
        if self.command != "HEAD":
            hub.sent.append(name)
            if hub.break_off_after:
                part = part[: hub.break_off_after.pop(0)]
                self.close_connection = True
            self.wfile.write(part)

    def _json(self, values: Any) -> None:
        data = json.dumps(values).encode()
        self._status(200, {"Content-Type": "application/json", "Content-Length": str(len(data))})
        self.wfile.write(data)

    def _status(self, code: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in ({"Content-Length": "0"} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep requests out of the output of the tests."""


def _entry(hub: Hub, name: str) -> dict[str, Any]:
    path = hub.folder / name
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
    return {"type": "file", "path": name, "oid": "0" * 40, "size": path.stat().st_size}


@contextmanager
def serving(repository: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that this process takes for that of Hugging Face."""
    import huggingface_hub

    hub = Hub(repository, folder)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    path = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", path)
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", hub.url)
    huggingface_hub.HfFileSystem.clear_instance_cache()
    try:
        yield hub
    finally:
        huggingface_hub.HfFileSystem.clear_instance_cache()
        hub.shutdown()
        hub.server_close()
