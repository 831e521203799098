"""What tests share: a tiny study, a tiny stream of tokens, and the real texts where they exist."""

import copy
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import strangers
import torch
from golden import Golden, Sentences
from golden import refused as refused  # for the tests
from golden import sentence as sentence
from hypothesis import settings

from lmscaling.config import grid
from lmscaling.config.cell import Cell
from lmscaling.data import shards, vocabulary
from lmscaling.data.dataset import Dataset
from lmscaling.plan import footprint
from lmscaling.runtime.environment import processor
from lmscaling.types import Split

# Tests run side by side; threads of several processes on the same cores wait for each other. The
# variable is read when torch is loaded: in every process that a test starts, but here too late.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

# The same examples at every run, on every machine; a slow core is no failure.
settings.register_profile("tests", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("tests")

LONGEST = ("test_slurm.py", "test_ranks.py")

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
PUBLISHED = ROOT.parent / "shared" / "published"

STUDY: dict[str, Any] = {
    "study": "tiny",
    "datasets": {"lines": {"kind": "jsonl", "train": ["a.jsonl"], "validation": ["v.jsonl"]}},
    "tokenizers": {"bytes": {"encoding": "bytes", "vocab_size": 257}},
    "sizes": {
        "s": {"n_layer": 1, "n_head": 1, "d_model": 8, "lr": 1e-2},
        "m": {"n_layer": 2, "n_head": 2, "d_model": 16, "lr": 5e-3},
    },
    "dataset": "lines",
    "tokenizer": "bytes",
    "axes": {"attention": ["softmax", "linear"], "size": ["s"], "context": [16]},
    "exceptions": [],
    "skip": [],
    "update_tokens": 64,
    "budget": "4 updates",
    "gpus": 0,
    "optimizer": {"warmup_updates": 2},
    "validation": {"tokens": 128, "every_tokens": 128},
    "protocol": {"all": 1},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-data",
        action="store_true",
        help="fail where real texts or published curves are missing, instead of skipping",
    )
    parser.addoption("--renew", action="store_true", help="write the files in tests/golden anew")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Sentences(bool(config.getoption("--renew"))))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares an output with a file in ``golden/``."""
    return Golden(bool(request.config.getoption("--renew")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first; otherwise they would run alone at the end, on one core."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture
def values() -> dict[str, Any]:
    """The values of a tiny study, for a test to change."""
    return copy.deepcopy(STUDY)


@pytest.fixture
def cell(values: dict[str, Any]) -> Cell:
    """A cell that trains in a second: linear attention, context 16, four updates of 64 tokens."""
    return next(c for c in grid.expand(values).cells.values() if c.attention == "linear")


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Manifest of a stream of two training shards and one validation shard of random bytes."""
    return write_tokens(tmp_path_factory.mktemp("tokens"), [700, 3000], [1000])


@pytest.fixture(scope="session")
def published_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published numbers and their store, which no test changes; what writes takes a copy."""
    from lmscaling.store import build as store  # SciPy counts its threads when it is loaded

    folder = tmp_path_factory.mktemp("git") / "results" / "published"
    made = shutil.ignore_patterns("store", "figures")
    shutil.copytree(ROOT / "results" / "published", folder, ignore=made)
    store.build(folder)
    return folder


def script(*parts: str) -> ModuleType:
    """A script of the repository as a module, by its path."""
    path = ROOT.joinpath(*parts)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_shard(path: Path, tokens: np.ndarray, **values: Any) -> None:
    """A shard and its sidecar, described by its name; ``values`` replace keys of the sidecar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with shards.writing(path, shards.WIDE if tokens.dtype == np.uint32 else shards.TOKEN) as writer:
        writer.write(tokens)
    split, number = path.stem.split("-")
    sidecar = {
        "split": split,
        "source": {"shard": int(number)},
        "tokens": writer.tokens,
        "sha256": writer.sha256,
        "dataset": "lines",
        "encoding": "bytes",
        "end_of_text": 256,
        "own_context": [writer.tokens],
        "documents": int(np.count_nonzero(tokens == 256)),
        "ranks_sha256": "r",
        "pattern_sha256": "p",
    }
    path.with_suffix(".json").write_text(json.dumps(sidecar | values))


def write_tokens(
    folder: Path, train: list[int], validation: list[int], row: Dataset | None = None
) -> Path:
    """Shards of random tokens from a fixed seed, with these lengths, and their manifest.

    With a dataset row, a workflow takes them for shards made from it.
    """
    rng = np.random.default_rng(0)
    splits: dict[Split, list[int]] = {"train": train, "validation": validation}
    for split, lengths in splits.items():
        for i, n in enumerate(lengths):
            path = folder / f"{split}-{i:05d}.bin"
            source = {"shard": i} | ({"files": row.files(split)[i]} if row else {})
            tokens = rng.integers(0, 257, n).astype(np.uint16)
            tokens[0] = 256
            write_shard(path, tokens, source=source)
            if row and split == "validation":
                path.with_suffix(".fingerprints").touch()
    counts = {"train": len(train), "validation": len(validation)}
    shards.write_manifest(folder / "manifest.json", counts)
    return folder / "manifest.json"


def calibration(folder: Path, cell: Cell, **way: Any) -> Path:
    """A calibration of this machine for a cell; without ``way``, all sequences at once."""
    made = {
        "of": cell.calibration,
        "device": processor(),
        "versions": {},
        "measured": False,
        "micro_batch": footprint.sequences(cell),
    }
    path = folder / "calibration.json"
    path.write_text(json.dumps(made | way))
    return path


@pytest.fixture
def package(tmp_path: Path) -> Iterator[strangers.Copy]:
    """A copy of the package, to which a test can bring files."""
    with strangers.copied(tmp_path) as copy:
        yield copy


@pytest.fixture
def real_data(request: pytest.FixtureRequest) -> Path:
    """Folder of real C4 documents and GPT-2's vocabulary."""
    return _required(request, DATA)


@pytest.fixture
def ranks(real_data, tmp_path, monkeypatch):
    """GPT-2's vocabulary as the verb ``vocabulary`` writes it."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(real_data / "tiktoken_cache"))
    vocabulary.fetch(tmp_path / "gpt2.tiktoken")
    return tmp_path / "gpt2.tiktoken"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real Slurm of one node for the tests of a file."""
    import slurm_cluster  # it imports this module

    if reason := slurm_cluster.missing():
        pytest.skip(reason)
    with slurm_cluster.cluster(tmp_path_factory.mktemp("cluster") / "box") as made:
        yield made


@pytest.fixture
def full_published(request: pytest.FixtureRequest) -> Path:
    """Folder of the published numbers with complete learning curves."""
    return _required(request, PUBLISHED)


def _required(request: pytest.FixtureRequest, folder: Path) -> Path:
    if not folder.is_dir():
        if request.config.getoption("--require-data"):
            pytest.fail(f"{folder} does not exist")
        pytest.skip(f"{folder} is not on this machine")
    return folder
