"""What the rules about text ask: which chunks of shards there are, and what each job reads.

A chunk is made by one process, for a process takes seconds to start. Its name follows from the
numbers of its shards alone, so that a job that was submitted earlier means the same shards.
"""

import json
import os
import shlex
import time
from functools import cached_property
from pathlib import Path
from typing import Any

from lmscaling.config.grid import Grid
from lmscaling.files import write_json
from lmscaling.plan import text_needs
from lmscaling.plan.text_needs import Chunk
from lmscaling.types import Split, dump
from lmscaling.workflow.runs import Wildcards

SPLITS: tuple[Split, ...] = ("train", "validation")

ASKED = "shards.json"
"""File beside a manifest: how many shards of each split it is to list."""

CHUNK = r"[^/]+/(?:train|validation)-\d+-\d+"
"""Pattern of ``<text>/<chunk>``."""


class Shards:
    """Text of the study as shards of tokens, in a folder for each dataset and tokenizer."""

    def __init__(self, grid: Grid) -> None:
        self.results = grid.results
        self.corpora = grid.corpora
        self.vocabulary = grid.vocabulary
        """Name of the tokenizer's file; empty if it needs none."""
        self.tokenizer = grid.corpora[grid.tokens].encoding
        self.counts: dict[str, dict[Split, int]] = {
            t: {split: grid.n_shards(t, split) for split in SPLITS} for t in self.corpora
        }

    @cached_property
    def missing(self) -> dict[tuple[str, Split], set[int]]:
        """Numbers of the missing shards, by text and split."""
        return {
            (tokens, split): set(
                text_needs.missing(self.corpora[tokens].source, self._folder(tokens), split, n)
            )
            for tokens, counts in self.counts.items()
            for split, n in counts.items()
        }

    def ask(self) -> None:
        """Ask for shards that are missing, and for a manifest of another number of them. Shards are
        no outputs, so Snakemake misses neither; it makes a manifest anew if a file is newer."""
        for tokens, counts in self.counts.items():
            marks = [m for split in SPLITS for m in self._marks(tokens, self._open(tokens, split))]
            for mark in marks:
                Path(mark).unlink(missing_ok=True)  # it says that the chunk is complete
            folder = self._folder(tokens)
            manifest, asked = folder / "manifest.json", folder / ASKED
            if not manifest.exists() or not (marks or text_needs.listed(folder) != counts):
                continue
            if not asked.exists() or asked.stat().st_mtime_ns <= manifest.stat().st_mtime_ns:
                # Of a small file Snakemake looks at the content, too.
                write_json(asked, {**counts, "asked": time.time_ns()})

    def inputs(self, wildcards: Wildcards) -> dict[str, Any]:
        """The tokenizer's file; and validation, whose documents training leaves out.

        Nothing if all its shards exist, for another job may have made them.
        """
        tokens, chunk = _chunk(wildcards)
        corpus = self.corpora[tokens]
        if self.missing[tokens, chunk.split].isdisjoint(chunk.numbers):
            return {}
        inputs: dict[str, Any] = {}
        if chunk.split == "train":
            inputs["validation"] = self._marks(tokens, self._open(tokens, "validation"))
        if self.vocabulary and corpus.encoding == self.tokenizer:
            inputs["vocabulary"] = f"{self.results}/vocabulary/{self.vocabulary}"
        return inputs

    def vocabulary_words(self, wildcards: Wildcards) -> str:
        """Options of ``vocabulary``."""
        if not self.tokenizer.file:
            return ""
        row = json.dumps(dump(self.tokenizer, exclude_defaults=True))
        return shlex.join(["--file", self.tokenizer.file, "--row", row])

    def json(self, wildcards: Wildcards) -> str:
        """The corpus as far as a chunk depends on it."""
        tokens, chunk = _chunk(wildcards)
        return self.corpora[tokens].to_json(chunk.last + 1 if chunk.split == "train" else 1)

    def tokenize_words(self, wildcards: Wildcards, input: Any) -> str:
        """Arguments of ``tokenize``: the chunk, where it goes, and the files that it reads."""
        tokens, chunk = _chunk(wildcards)
        words = [str(chunk), str(self._folder(tokens))]
        if path := input.get("vocabulary"):
            words += ["--vocabulary", str(path)]
        return shlex.join(words)

    def minutes(self, wildcards: Wildcards) -> int:
        """Time limit: two hours for a file of C4, and a quarter of an hour for each further one."""
        return 120 + 15 * (len(_chunk(wildcards)[1].numbers) - 1)

    def verify_minutes(self, wildcards: Wildcards) -> int:
        """Time limit: four shards a minute, each of 340 MB in C4, and half an hour."""
        return 30 + self.counts[wildcards.tokens]["train"] // 4

    def before(self, wildcards: Wildcards) -> list[str]:
        """What the manifest of a text waits for: the marks of its chunks."""
        tokens = wildcards.tokens
        asked = f"{self._folder(tokens)}/{ASKED}"
        marks = [m for split in SPLITS for m in self._marks(tokens, self._chunks(tokens, split))]
        return [*([asked] if os.path.exists(asked) else []), *marks]

    def n(self, wildcards: Wildcards) -> str:
        """How many shards a manifest is to list, of both splits."""
        return " ".join(str(self.counts[wildcards.tokens][split]) for split in SPLITS)

    def _folder(self, tokens: str) -> Path:
        return Path(self.results, "tokens", tokens)

    def _chunks(self, tokens: str, split: Split) -> list[Chunk]:
        n = self.counts[tokens][split]
        return text_needs.chunks(self.corpora[tokens].source, split, n)

    def _open(self, tokens: str, split: Split) -> list[Chunk]:
        """Chunks with a missing shard."""
        missing = self.missing[tokens, split]
        return [c for c in self._chunks(tokens, split) if not missing.isdisjoint(c.numbers)]

    def _marks(self, tokens: str, chunks: list[Chunk]) -> list[str]:
        return [f"{self._folder(tokens)}/{chunk}.tokenized" for chunk in chunks]


def _chunk(wildcards: Wildcards) -> tuple[str, Chunk]:
    """Folder and chunk of a chunk named ``<tokens>/<chunk>``."""
    tokens, name = os.path.split(wildcards.chunk)
    return tokens, Chunk.named(name)
