"""What a look and a lease have in common: record batches of one schema, for everything that takes Arrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from coterie.errors import UserError
from coterie.streams import arrow

ROWS: Final = 10_000
"""Of a batch at most. A node sends a few thousand at a time, and about a mebibyte of bodies."""
Columns = Sequence[str] | None


def schema(columns: Columns = None) -> pa.Schema:
    """Of these columns, in this order; without, of all of them. Raises UserError."""
    if isinstance(columns, str):
        raise UserError(f"columns: a list of names is due, as ['{columns}']")
    return arrow.schema(arrow.chosen(columns or ()))


def checked(name: str, value: int | None, least: int) -> None:
    """Raises UserError."""
    if value is not None and (type(value) is not int or value < least):
        raise UserError(f"{name}: a whole number from {least} on is due, not {value!r}")


class Batches(ABC):
    """To be iterated over, or given to whoever takes an Arrow stream (PyCapsule interface): polars, DuckDB, pandas."""

    schema: pa.Schema

    @abstractmethod
    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def to_reader(self) -> pa.RecordBatchReader:
        """One pass over it, batch by batch, when they are asked for."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pa.Table:
        """All of it, in memory."""
        return pa.Table.from_batches(self, self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)


def sliced(rows: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """In parts of so many rows at most; nothing is copied."""
    for first in range(0, rows.num_rows, most):
        yield rows.slice(first, most)
