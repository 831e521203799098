"""Reads documents from one column of a Parquet file, with the memory of one page of it."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lmscaling.data.bad_documents import REMEDY, BadDocuments
from lmscaling.errors import UserError, choose

BATCH = 250
"""Documents that are decoded at once."""

BUFFER_BYTES = 1 << 20
"""Without a buffer, the column of a row group is read at once."""


def texts(path: Path, column: str, bad: BadDocuments) -> Iterator[str]:
    """The documents of a file, in order.

    Raises:
        UserError: The file is truncated or damaged, or has no such column of text.
    """
    row = 0
    try:
        with pq.ParquetFile(path, buffer_size=BUFFER_BYTES) as file:
            _check_column(file.schema_arrow, path, column)
            for text, problem in _values(file, column):
                row += 1
                if problem:
                    bad.add(problem, f"{path}, row {row}: {problem} under {column!r}; {REMEDY}")
                else:
                    yield text
    except (OSError, pa.ArrowException) as error:
        problem = " ".join(str(error).split())
        raise UserError(
            f"{path} is not valid Parquet: {problem}; get the file again from its source"
        ) from error
    bad.check(str(path), row)


def _check_column(schema: pa.Schema, path: Path, column: str) -> None:
    if column not in schema.names:
        raise UserError(
            f"{path} has no column {column!r}; {choose(column, schema.names)}; set text: in the "
            "dataset's row"
        )
    kind = schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UserError(
            f"column {column!r} of {path} has type {kind}; allowed: string; set text: in the "
            "dataset's row"
        )


def _values(file: pq.ParquetFile, column: str) -> Iterator[tuple[str, str]]:
    """The values of a column, each with what is wrong with it; one row group after another."""
    for i in range(file.num_row_groups):
        for batch in file.iter_batches(BATCH, [i], [column], use_threads=False):
            yield from _decoded(batch.column(0))


def _decoded(column: pa.Array) -> list[tuple[str, str]]:
    """The values of a batch, each with what is wrong with it."""
    try:
        return [_checked(text) for text in column.to_pylist()]
    except UnicodeDecodeError:
        return [_checked(data) for data in column.cast(pa.large_binary()).to_pylist()]


def _checked(value: str | bytes | None) -> tuple[str, str]:
    if value is None:
        return "", "null in place of text"
    try:
        return value if isinstance(value, str) else value.decode(), ""
    except UnicodeDecodeError:
        return "", "bytes that are not UTF-8"
