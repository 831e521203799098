"""Fetching: from a hub to a whole, checked file, whatever the network does."""

import json
import random
import socket

import pytest
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


def test_a_file_comes_whole_and_with_the_hubs_own_hash(hub, row, tmp_path):
    made = row.fetch(FILE, tmp_path / "out" / FILE)
    assert (tmp_path / "out" / FILE).read_bytes() == (tmp_path / "hub" / FILE).read_bytes()
    assert made == json.loads((tmp_path / "out" / f"{FILE}.fetched.json").read_text())
    assert made["sha256"] == sha256_of(tmp_path / "hub" / FILE)
    assert (made["revision"], made["bytes"]) == (COMMIT, N)


def test_a_download_that_breaks_off_goes_on_where_it_broke_off(hub, row, tmp_path):
    hub.break_off_after = [100_000, 50_000]
    row.fetch(FILE, tmp_path / FILE)
    assert sha256_of(tmp_path / FILE) == sha256_of(tmp_path / "hub" / FILE)
    assert sum(n for _, n in hub.sent) < N + 1_000
    assert [start > 0 for start, _ in hub.sent] == [False, True, True]


def test_what_a_killed_download_left_is_used(hub, row, tmp_path):
    out = tmp_path / FILE
    out.parent.mkdir()
    tag = sha256_of(tmp_path / "hub" / FILE)
    whole = (tmp_path / "hub" / FILE).read_bytes()
    out.with_name(f".{out.name}.{tag[:16]}.part").write_bytes(whole[:200_000])
    row.fetch(FILE, out)
    assert hub.sent == [(200_000, 100_000)]
    assert out.read_bytes() == whole
    assert sorted(p.name for p in out.parent.iterdir()) == [out.name, f"{out.name}.fetched.json"]


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
    with pytest.raises(
        UserError, match=r"arrived with hash .*, but the hub states 0{64}; the file is deleted"
    ):
        row.fetch(FILE, tmp_path / "out" / FILE)
    assert not list((tmp_path / "out" / "en").iterdir())


def test_a_file_that_the_hub_does_not_have_names_the_row(hub, row, tmp_path):
    with pytest.raises(UserError, match=r"en/c.gz of owner/texts .* does not exist on the hub"):
        row.fetch("en/c.gz", tmp_path / "c.gz")


def test_a_hub_out_of_reach_says_what_to_put_where(hub, row, tmp_path, monkeypatch, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        f"http://127.0.0.1:{port}" + "/{repo_id}/resolve/{revision}/{filename}",
    )
    with pytest.raises(UserError, match=r"set mirror: in the dataset's row .* that has en/a"):
        row.fetch(FILE, tmp_path / FILE)
    said = capsys.readouterr().err
    assert [f"next attempt in {wait} s" in said for wait in module.WAITS] == [
        True,
        True,
        False,
        False,
    ]
