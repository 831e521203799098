"""A byte-level BPE that is trained on the text of a study itself.

It reads a bounded sample, the first documents of the first training shard, so that a longer corpus
does not change it, and no document that validation has. Equal documents give an equal file, in any
process and with any number of threads.

Source: Sennrich et al. 2016 (arXiv:1508.07909), over bytes as in GPT-2, by ``tokenizers``.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmscaling import __version__
from lmscaling.config.datasets import Corpus
from lmscaling.config.types import Split, dump
from lmscaling.data import sources
from lmscaling.data.tokenizer_file import described_at
from lmscaling.data.vocabulary import END_OF_TEXT
from lmscaling.errors import UserError
from lmscaling.files import replacing, write_json


def train(corpus: Corpus, out: Path, folder: Path | None = None) -> dict[str, Any]:
    """Train the tokenizer of a corpus into ``out`` (``tokenizer.json``), and describe it beside it.

    Cost: 100 MB of Python sources and 32,768 tokens took 32 CPU seconds and 370 MB.

    Args:
        corpus: The text to train on, and the tokenizer.
        out: Path of the tokenizer.
        folder: Folder of the fetched files; if None, the row's own files are read.

    Returns:
        The description: text, settings and SHA-256 of the tokenizer.

    Raises:
        UserError: A source cannot be read, or has too little text for so many tokens.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    settings = corpus.encoding.train_bpe
    assert settings
    sample = _Sample(corpus, folder, settings.sample_bytes)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample.texts(), trainer)
    tokenizer.add_special_tokens([END_OF_TEXT])  # for others: the last id, as in the shards
    if (n := tokenizer.get_vocab_size()) < settings.vocab_size:
        raise UserError(
            f"{sample.n_bytes:,} bytes of {corpus.dataset} give only {n:,} tokens; write "
            f"vocab_size: {n} or less under train_bpe, or train on more text"
        )
    data = tokenizer.to_str(pretty=True).encode()
    described = {
        "dataset": corpus.dataset,
        "files": corpus.source.files("train")[0],
        **corpus.source.provenance("train", 0),
        "train_bpe": dump(settings),
        **sample.summary(),
        "sha256": hashlib.sha256(data).hexdigest(),
        "versions": {"lmscaling": __version__, "tokenizers": tokenizers.__version__},
    }
    write_json(described_at(out), described)
    with replacing(out) as file:
        file.write(data)
    return described


class _Sample:
    """The first training documents that validation does not have, and what they are."""

    def __init__(self, corpus: Corpus, folder: Path | None, most_bytes: int) -> None:
        self._corpus, self._folder, self._most = corpus, folder, most_bytes
        self.n = self.n_dropped = self.n_bytes = 0
        self._sha256 = hashlib.sha256()

    def texts(self) -> Iterator[str]:
        shards = range(len(self._corpus.source.files("validation")))
        held = {sources.fingerprint(t) for i in shards for t in self._read("validation", i)}
        for text in self._read("train", 0):
            key = sources.fingerprint(text)
            if key in held:
                self.n_dropped += 1
                continue
            self.n += 1
            self.n_bytes += sources.n_bytes(text)
            self._sha256.update(key)
            yield text
            if self.n_bytes >= self._most:
                break

    def _read(self, split: Split, shard: int) -> Iterator[str]:
        name = self._corpus.source.files(split)[shard]
        file = self._folder and self._folder / name
        if file and not file.is_file():
            raise UserError(
                f"{file} was removed after it was tokenized, and the tokenizer is trained on it; "
                "put the tokenizer back, or delete the tokens of this text to fetch all again"
            )
        return sources.read_shard(self._corpus, split, shard, file).texts

    def summary(self) -> dict[str, Any]:
        """Fields of the description."""
        return {
            "documents": self.n,
            "bytes": self.n_bytes,
            "documents_dropped": self.n_dropped,
            "documents_sha256": self._sha256.hexdigest(),
        }
