"""Queues as Arrow record batches, without Spark: for pandas, polars, DuckDB, and whatever else takes Arrow.

    from coterie import reader

    for batch in reader.read("orders", "http://10.0.0.1:15672"):  # a look: nothing changes
        ...

    with reader.lease("orders", "loader", "http://10.0.0.1:15672") as taken:  # work: taken, stored, retired
        for batch in taken:
            store(batch)
            taken.done()

A row has the columns, with the names and types, that Spark's `format("coterie")` gives it. Memory is bounded: one batch
at a time. A node that dies is replaced by another one in the middle of a read. docs/reader.md is the contract.
"""

# ruff: noqa: E402

from __future__ import annotations

from coterie.extras import need

need("pyarrow", extra="reader")

from coterie.amqp.wire.properties import Properties
from coterie.reader.batches import Batches, schema
from coterie.reader.look import Look, read, read_table
from coterie.reader.taking import Taken, lease
from coterie.streams.arrow import COLUMNS
from coterie.streams.client import Conflict, Gone, NotFound, Refused, StreamError, Unavailable
from coterie.streams.columns import properties

__all__ = [
    "COLUMNS", "Batches", "Conflict", "Gone", "Look", "NotFound", "Properties", "Refused", "StreamError", "Taken",
    "Unavailable", "lease", "properties", "read", "read_table", "schema",
]  # fmt: skip
