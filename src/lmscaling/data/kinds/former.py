"""Texts of kinds that are gone, in the records of studies that had them."""

from typing import Literal

from pydantic import JsonValue
from pydantic.dataclasses import dataclass

from lmscaling.data.dataset import Dataset, Documents
from lmscaling.errors import UserError
from lmscaling.types import STRICT, Split

DEFAULTS: dict[str, dict[str, JsonValue]] = {"wheels": {"names": ["*.py"], "holdout": 0.02}}
"""Values that were no part of a text's identity."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Former(Dataset):
    """A row of a record, as it was: its shards can be trained on and not made again."""

    kind: Literal["former"]
    row: dict[str, JsonValue]
    """The row."""

    def files(self, split: Split) -> list[str]:
        wheels = self.row.get("wheels")
        return [*wheels] if isinstance(wheels, dict) else [str(self.row["kind"])]

    def identity(self) -> dict[str, JsonValue]:
        defaults = DEFAULTS.get(str(self.row["kind"]), {})
        values = {key: v for key, v in self.row.items() if defaults.get(key) != v}
        return values | ({"shuffle": "documents"} if self.shuffle == "documents" else {})

    def read(self, split: Split, shard: int) -> Documents:
        raise UserError(
            f"text of kind {self.row['kind']} is not read any more; write its documents as JSON "
            "lines, as results/measured/texts.py does, and a row of kind jsonl"
        )
