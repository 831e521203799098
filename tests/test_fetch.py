"""Fetching: from a hub to a whole, checked file, whatever the network does."""

import errno
import json
import random
import re
import socket
from pathlib import Path

import huggingface_hub
import pytest
from conftest import sentence
from hub import COMMIT, serving
from test_data import corpus

from lmscaling.data import download as module
from lmscaling.errors import UserError
from lmscaling.files import sha256_of

FILE = "en/a-00000.json.gz"
N = 300_000
ROW = {
    "kind": "hub", "repository": "owner/texts", "revision": COMMIT, "shards": 1,
    "train": "en/a-{shard:05d}.json.gz", "validation": "en/b-{shard:05d}.json.gz",
}  # fmt: skip


@pytest.fixture
def setting(monkeypatch):
    return lambda name, value: monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)


@pytest.fixture
def hub(tmp_path, monkeypatch, setting):
    """A hub with one file of a repository; waiting between attempts takes no time."""
    (tmp_path / "hub" / "en").mkdir(parents=True)
    (tmp_path / "hub" / FILE).write_bytes(random.Random(0).randbytes(N))
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    # A chunk is what may be lost of a download that breaks off: 10 MB of a shard's 319.
    setting("DOWNLOAD_CHUNK_SIZE", 10_000)
    with serving("owner/texts", tmp_path / "hub", monkeypatch) as server:
        yield server


@pytest.fixture
def fetch(hub, out):
    """Fetches the file, or must end with an error that names these values, and leave nothing."""

    def fetching(*values):
        source = corpus(ROW).source
        if not values:
            made = source.fetch(FILE, out / FILE)
            assert made["sha256"] == sha256_of(out / FILE) == sha256_of(hub.folder / FILE)
            return made
        with pytest.raises(UserError) as caught:
            source.fetch(FILE, out / FILE)
        said = str(caught.value)
        assert [value for value in values if value not in said] == []
        assert not (out / FILE).exists()
        return sentence("UserError", re.sub(r"127\.0\.0\.1:\d+", "hub", said))

    return fetching


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def forget(out):
    """Deletes what was fetched."""
    return lambda: [(out / f"{FILE}{end}").unlink() for end in ("", ".fetched.json")]


def test_a_file_comes_whole_with_the_hubs_own_hash_and_no_second_copy(
    fetch, hub, out, setting, tmp_path, monkeypatch
):
    setting("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    made = fetch()
    assert made == json.loads((out / f"{FILE}.fetched.json").read_text())
    assert (made["revision"], made["bytes"]) == (COMMIT, N)
    left = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert left == [FILE, f"{FILE}.fetched.json"]
    assert not (tmp_path / "cache").exists()
    assert hub.tokens == {"Bearer hf_secret"}  # the login of the user


def test_a_hub_that_is_busy_is_asked_again_after_longer_and_longer_waits_or_as_it_asks(
    fetch, hub, forget, capsys, monkeypatch
):
    waited = []
    monkeypatch.setattr(module.time, "sleep", waited.append)
    hub.failures = len(module.WAITS)
    fetch()
    said = capsys.readouterr().err
    assert all(f"next attempt in {wait} s" in said for wait in module.WAITS)
    forget()
    waited.clear()
    hub.retry_after = [70, 2]
    fetch()
    assert waited[:2] == [70, module.WAITS[1]]


@pytest.mark.parametrize(("status", "code", "values"), [
    (403, "GatedRepo", ["gated", "owner/texts"]), (401, "GatedRepo", ["gated", "`hf auth login`"]),
    (403, None, ["403", "HF_TOKEN"]), (401, None, ["401", "`hf auth login`"]),
    (404, "RepoNotFound", ["owner/texts", "repository:"]),
    (404, "RevisionNotFound", [COMMIT, "revision:"]), (404, "EntryNotFound", [FILE, "train:"]),
])  # fmt: skip
def test_a_refusal_has_a_remedy_of_its_own_and_is_not_asked_again(
    fetch, hub, out, capsys, status, code, values
):
    hub.refusal = status, {"X-Error-Code": code} if code else {}
    fetch(*values)
    assert hub.asked == 1
    assert not list(out.rglob("*.*"))
    assert "next attempt" not in capsys.readouterr().err


@pytest.mark.parametrize(("faults", "values"), [
    ({"wrong_hash": True}, [FILE, "0" * 64]),
    ({"tag": "5f3a-1234"}, ["HF_ENDPOINT", "http://127.0.0.1"]),
    ({"trickle": True}, [FILE, "0.5 s"]),
    ({"break_off_after": [20_000, *[0] * 5] * (len(module.WAITS) + 1)}, [FILE, "mirror: "]),
], ids=lambda given: next(iter(given)))  # fmt: skip
def test_a_hub_that_is_no_good_is_given_up(fetch, hub, out, monkeypatch, faults, values):
    """The last one breaks off at the same byte again and again."""
    if "trickle" in faults:
        monkeypatch.setattr(module, "STALLED_SECONDS", 0.5)
    vars(hub).update(faults)
    fetch(*values)
    assert hub.break_off_after == []
    assert "tag" not in faults or hub.sent == []
    assert "wrong_hash" not in faults or not list((out / "en").iterdir())


def test_a_hub_out_of_reach_is_asked_once_and_says_what_to_put_where(
    fetch, hub, setting, monkeypatch, capsys
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    setting("HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    fetch("reached", "mirror:")
    assert "next attempt" not in capsys.readouterr().err
    setting("HF_HUB_OFFLINE", True)
    fetch("owner/texts", "HF_HUB_OFFLINE")
    assert hub.asked == 0


def test_a_file_in_the_cache_of_the_user_needs_no_network_and_stays_there(
    fetch, hub, forget, setting, tmp_path
):
    setting("HF_HUB_CACHE", str(tmp_path / "cache"))
    cached = huggingface_hub.hf_hub_download(
        "owner/texts", FILE, repo_type="dataset", revision=COMMIT
    )
    setting("HF_HUB_OFFLINE", True)
    assert fetch()["sha256"] == sha256_of(Path(cached))
    with open(cached, "r+b") as file:
        file.write(b"damaged")
    forget()
    fetch(cached)


def test_a_download_that_breaks_off_goes_on_where_it_broke_off(fetch, hub, forget):
    hub.break_off_after = [100_000, 50_000]
    fetch()
    assert sum(n for _, n in hub.sent) < N + 1_000
    assert [start > 0 for start, _ in hub.sent] == [False, True, True]
    forget()
    # The library gives up after six breaks without a byte; each of its attempts gets further.
    hub.break_off_after = [n for k in range(1, 8) for n in (20_000 * k, *[0] * 5)]
    fetch()
    assert len(hub.sent) > 3 + 6 * len(module.WAITS)


def test_a_download_says_how_far_it_is_and_what_a_disk_refuses(fetch, forget, monkeypatch, capsys):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "PROGRESS_SECONDS", 0)
    fetch()
    said = capsys.readouterr().err.splitlines()
    assert FILE in said[14]
    assert re.findall(r"\d+ kB|\d+%", said[14])[:3] == ["150 kB", "300 kB", "50%"]
    assert len(said) == 30
    forget()
    monkeypatch.setattr(module, "hf_hub_download", full)
    fetch(FILE, "No space left on device")
