"""Fetching: from a hub to a whole, checked file, whatever the network does."""

import errno
import json
import random
import re
import socket

import pytest
from conftest import refused, sentence
from hub import COMMIT, serving

from lmscaling.config.datasets import Corpus
from lmscaling.config.validation import checked
from lmscaling.data import download as module
from lmscaling.errors import UserError
from lmscaling.files import sha256_of

FILE = "en/a-00000.json.gz"
N = 300_000


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with one file of a repository; waiting between attempts takes no time."""
    (tmp_path / "hub" / "en").mkdir(parents=True)
    (tmp_path / "hub" / FILE).write_bytes(random.Random(0).randbytes(N))
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    with serving("owner/texts", tmp_path / "hub") as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            server.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        # A chunk is what may be lost of a download that breaks off: 10 MB of a shard's 319.
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
        yield server


@pytest.fixture
def row():
    source = {
        "kind": "hub",
        "repository": "owner/texts",
        "revision": COMMIT,
        "train": "en/a-{shard:05d}.json.gz",
        "validation": "en/b-{shard:05d}.json.gz",
        "shards": 1,
    }
    values = {
        "dataset": "d",
        "source": source,
        "tokenizer": "bytes",
        "encoding": {"encoding": "bytes", "vocab_size": 257},
    }
    return checked(Corpus, values, "corpus").source


def test_a_file_comes_whole_with_the_hubs_own_hash_and_no_second_copy(
    hub, row, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    made = row.fetch(FILE, out / FILE)
    assert (out / FILE).read_bytes() == (tmp_path / "hub" / FILE).read_bytes()
    assert made == json.loads((out / f"{FILE}.fetched.json").read_text())
    assert made["sha256"] == sha256_of(tmp_path / "hub" / FILE)
    assert (made["revision"], made["bytes"]) == (COMMIT, N)
    left = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert left == [FILE, f"{FILE}.fetched.json"]
    assert not (tmp_path / "cache").exists()


def test_a_download_that_breaks_off_goes_on_where_it_broke_off(hub, row, tmp_path):
    hub.break_off_after = [100_000, 50_000]
    row.fetch(FILE, tmp_path / FILE)
    assert sha256_of(tmp_path / FILE) == sha256_of(tmp_path / "hub" / FILE)
    assert sum(n for _, n in hub.sent) < N + 1_000
    assert [start > 0 for start, _ in hub.sent] == [False, True, True]


def test_a_hub_that_is_busy_is_asked_again_after_longer_and_longer_waits(
    hub, row, tmp_path, capsys
):
    hub.failures = len(module.WAITS)
    row.fetch(FILE, tmp_path / FILE)
    assert (tmp_path / FILE).is_file()
    said = capsys.readouterr().err
    assert all(f"next attempt in {wait} s" in said for wait in module.WAITS)


def test_a_file_that_is_not_the_hubs_is_refused_and_deleted(hub, row, tmp_path):
    hub.wrong_hash = True
    with refused(UserError, FILE, "0" * 64):
        row.fetch(FILE, tmp_path / "out" / FILE)
    assert not list((tmp_path / "out" / "en").iterdir())


def test_a_file_that_the_hub_does_not_have_names_the_row(hub, row, tmp_path):
    with refused(UserError, "en/c.gz", "owner/texts"):
        row.fetch("en/c.gz", tmp_path / "c.gz")


def test_a_hub_out_of_reach_is_asked_once_and_says_what_to_put_where(
    hub, row, tmp_path, monkeypatch, capsys
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        f"http://127.0.0.1:{port}" + "/{repo_id}/resolve/{revision}/{filename}",
    )
    with pytest.raises(UserError, match=r"reached .* mirror:"):  # at a port of chance
        row.fetch(FILE, tmp_path / FILE)
    assert "next attempt" not in capsys.readouterr().err


REFUSED = {
    "gated": (403, "GatedRepo", "gated", "owner/texts"),
    "gated, no login": (401, "GatedRepo", "gated", "`hf auth login`"),
    "forbidden": (403, "", "403", "HF_TOKEN"),
    "no login": (401, "", "401", "`hf auth login`"),
    "no repository": (404, "RepoNotFound", "owner/texts", "repository:"),
    "no revision": (404, "RevisionNotFound", COMMIT, "revision:"),
    "no file": (404, "EntryNotFound", FILE, "train:"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refusal_has_a_remedy_of_its_own_and_is_not_asked_again(
    hub, row, tmp_path, capsys, reason
):
    status, code, *said = REFUSED[reason]
    hub.refusal = status, {"X-Error-Code": code} if code else {}
    with pytest.raises(UserError) as caught:  # some name the port of this server
        row.fetch(FILE, tmp_path / "out" / FILE)
    assert all(word in str(caught.value) for word in said)
    sentence("UserError", str(caught.value).replace(hub.url, "http://hub"))
    assert hub.asked == 1
    assert "next attempt" not in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("*.*"))


def test_offline_mode_is_said_by_its_name(hub, row, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with refused(UserError, "owner/texts", "HF_HUB_OFFLINE"):
        row.fetch(FILE, tmp_path / FILE)
    assert hub.asked == 0


def test_a_file_in_the_cache_of_the_user_needs_no_network_and_stays_there(
    hub, row, tmp_path, monkeypatch
):
    from huggingface_hub import hf_hub_download

    cache = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    cached = hf_hub_download("owner/texts", FILE, repo_type="dataset", revision=COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    made = row.fetch(FILE, tmp_path / "out" / FILE)
    assert made["sha256"] == sha256_of(tmp_path / "hub" / FILE) == sha256_of(cache / cached)
    with open(cached, "r+b") as file:
        file.write(b"damaged")
    with pytest.raises(UserError, match=re.escape(cached)):
        row.fetch(FILE, tmp_path / "again" / FILE)


def test_the_login_of_the_user_is_used(hub, row, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    row.fetch(FILE, tmp_path / FILE)
    assert hub.tokens == {"Bearer hf_secret"}


def test_a_hub_that_asks_to_wait_is_waited_for(hub, row, tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr(module.time, "sleep", waited.append)
    hub.retry_after = [70, 2]
    row.fetch(FILE, tmp_path / FILE)
    assert waited[:2] == [70, module.WAITS[1]]


def test_attempts_that_get_further_do_not_count(hub, row, tmp_path, monkeypatch):
    """The library gives up after six breaks without a byte; each of its attempts gets further."""
    hub.break_off_after = [n for k in range(1, 8) for n in (20_000 * k, *[0] * 5)]
    row.fetch(FILE, tmp_path / FILE)
    assert sha256_of(tmp_path / FILE) == sha256_of(tmp_path / "hub" / FILE)
    assert len(hub.sent) > 6 * len(module.WAITS)


def test_a_hub_that_breaks_off_again_and_again_at_the_same_byte_is_given_up(hub, row, tmp_path):
    hub.break_off_after = [20_000, *[0] * 5] * (len(module.WAITS) + 1)
    with pytest.raises(UserError, match=rf"{FILE} .* mirror: "):
        row.fetch(FILE, tmp_path / FILE)
    assert hub.break_off_after == []


def test_a_hub_without_hashes_is_refused_before_the_download(hub, row, tmp_path):
    hub.tag = "5f3a-1234"
    with pytest.raises(UserError, match=rf"{hub.url} .* HF_ENDPOINT"):
        row.fetch(FILE, tmp_path / FILE)
    assert hub.sent == []


def test_a_download_that_trickles_ends(hub, row, tmp_path, monkeypatch):
    hub.trickle = True
    monkeypatch.setattr(module, "STALLED_SECONDS", 0.5)
    with refused(UserError, FILE, "0.5 s"):
        row.fetch(FILE, tmp_path / FILE)


def test_a_long_download_says_now_and_then_how_far_it_is(hub, row, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "PROGRESS_SECONDS", 0)
    row.fetch(FILE, tmp_path / FILE)
    said = capsys.readouterr().err.splitlines()
    assert FILE in said[14]
    assert re.findall(r"\d+ kB|\d+%", said[14])[:3] == ["150 kB", "300 kB", "50%"]
    assert len(said) == 30


def test_a_full_disk_is_named(hub, row, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "hf_hub_download", full)
    with refused(UserError, FILE, "No space left on device"):
        row.fetch(FILE, tmp_path / FILE)
