"""A look at a queue: everything that was in it at one moment, ready or held. It takes nothing and changes nothing.

Positions are fixed when the look is made, as of one place of the cluster's log; what is published later is not in it.
What leaves the queue before its rows are read is not in it either. Whatever dies meanwhile: no row comes twice, and
none is missing that is still there, as a read goes on behind the last position that came.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

import pyarrow as pa

from coterie.errors import UserError
from coterie.reader.batches import ROWS, Batches, Columns, checked, schema, sliced
from coterie.reader.brokers import Brokers, Login, Nodes, brokers
from coterie.streams.arrow import record_batch

BEGINNING = 10.0
"""Seconds, at most, until somebody answers when a look begins: an address may be wrong. Later `patience` counts."""


class Look(Batches):
    """Iterate as often as you like: each time the same positions are read, with connections of their own."""

    def __init__(
        self,
        brokers: Brokers,
        queue: str,
        columns: Columns = None,
        first: int | None = None,
        last: int | None = None,
        limit: int | None = None,
        batch_rows: int = ROWS,
    ) -> None:
        """`first`, `last`: positions, both read. `limit`: of rows. Raises UserError or StreamError."""
        for name, value, least in (
            ("first", first, 0),
            ("last", last, 0),
            ("limit", limit, 0),
            ("batch_rows", batch_rows, 1),
        ):
            checked(name, value, least)
        if not queue:
            raise UserError("queue: its name is due")
        self.schema: pa.Schema = schema(columns)
        self.queue = queue
        self._brokers = brokers
        self._limit = limit
        self._batch_rows = batch_rows
        with brokers.hasty(BEGINNING).client() as client:
            self.cut = client.cut(queue)
            """How far the queue had come."""
            self._nodes = [node.url for node in client.nodes() if node.url is not None]
            self._asked = client.asked
        self._first = self.cut.first if first is None else max(first, self.cut.first)
        self._last = self.cut.next - 1 if last is None else min(last, self.cut.next - 1)
        self.next = self._first
        """The first position that the latest pass has not come to: where to go on another time."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        left = self._limit
        self.next = self._first
        if left == 0:
            return
        with self._brokers.client() as client:
            client.prefer(self._nodes, self._nodes.index(self._asked) if self._asked in self._nodes else 0)
            for batch in client.read_range(self.cut, self._first, self._last):
                given = 0
                for rows in sliced(record_batch(batch, self.queue, self.schema), self._batch_rows):
                    if left is not None:
                        rows = rows.slice(0, left)
                        left -= rows.num_rows
                    given += rows.num_rows
                    self.next = batch.position[given - 1] + 1
                    yield rows
                    if left == 0:
                        return
        self.next = max(self._first, self._last + 1)

    def __repr__(self) -> str:
        return f"<Look at '{self.queue}', positions {self._first} to {self._last}>"


def read(
    queue: str,
    nodes: Nodes = None,
    *,
    columns: Columns = None,
    first: int | None = None,
    last: int | None = None,
    limit: int | None = None,
    batch_rows: int = ROWS,
    **login: Unpack[Login],
) -> Look:
    """The queue as it is now. `nodes`: addresses of consoles; one that answers is enough, the others are found from
    there. The rest of the arguments is in `Login`."""
    return Look(brokers(nodes, login), queue, columns, first, last, limit, batch_rows)


def read_table(
    queue: str,
    nodes: Nodes = None,
    *,
    columns: Columns = None,
    first: int | None = None,
    last: int | None = None,
    limit: int | None = None,
    **login: Unpack[Login],
) -> pa.Table:
    """The same, all of it in memory."""
    return Look(brokers(nodes, login), queue, columns, first, last, limit).to_table()
