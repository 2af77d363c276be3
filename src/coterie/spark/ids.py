"""Message ids of a sink: the same when the same rows are written again, so that queues can tell.

A row's id is made of who writes (the query, or the write), in which epoch, the partition, the place of the row in it,
and a digest of all that and of the row itself. A task that is tried again, or an epoch that is replayed after a crash,
gives the same rows in the same order wherever no shuffle stands between the source and the sink, or the rows are
sorted. Where the order may change, `content` makes ids of the rows themselves and how many equal ones came before. In
either case a row that differs has another id: a replay may repeat messages, but never loses one.

A function for `foreachBatch` may write several times in one epoch, and Spark tells a task nothing by which it could
tell these writes apart and a replay could repeat. So there each write needs a name of its own (option `runId`): without
one, equal rows of two writes would have equal ids, and a queue that deduplicates would drop the second silently.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from coterie.errors import UserError

if TYPE_CHECKING:
    from pyspark import TaskContext

ROWS: Final = "rows"
CONTENT: Final = "content"
NONE: Final = "none"
MODES: Final = (ROWS, CONTENT, NONE)
QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
"""Local properties of a streaming query's tasks: its id, which is in its checkpoint, and the number of the batch."""
_DIGEST: Final = 12


class Ids:
    """Of one task."""

    def __init__(self, run: str, epoch: str, partition: int, mode: str = ROWS) -> None:
        self._prefix = f"{run[:8]}-{epoch}-{partition}-"
        self._base = blake2b(f"{run}\0{epoch}\0{partition}\0".encode(), digest_size=_DIGEST)
        self._row = 0
        self._counts: dict[bytes, int] | None = {} if mode == CONTENT else None

    def next(self, route: tuple[str, str], properties: bytes, body: bytes) -> str:
        """Of the next row."""
        digest = self._base.copy()
        digest.update(f"{route[0]}\0{route[1]}\0{len(properties)}\0".encode())
        digest.update(properties)
        digest.update(body)
        if self._counts is None:
            row = self._row
            self._row = row + 1
        else:
            found = digest.digest()
            row = self._counts.get(found, 0)
            self._counts[found] = row + 1
        digest.update(b"\0%d" % row)
        return f"{self._prefix}{row}-{digest.hexdigest()}"


class NoIds(Ids):
    """Of a write without a name: every row must bring an id."""

    def __init__(self) -> None:
        super().__init__("", "", 0)

    def next(self, route: tuple[str, str], properties: bytes, body: bytes) -> str:
        raise UserError(
            "a write within foreachBatch needs the option runId: a name that no other write of that function has, of "
            "which message ids are made. (Or a column message_id without nulls; or messageIds = none.)"
        )


def ids_of(context: TaskContext | None, run: str, given: bool, mode: str, own_sink: bool) -> Ids | None:
    """For this task. `given`: the user has named the run. `own_sink`: the write is a streaming query's own, and
    not one that a function for `foreachBatch` makes."""
    if mode == NONE:
        return None
    query = context.getLocalProperty(QUERY) if context is not None else None
    batch = context.getLocalProperty(BATCH) if context is not None else None
    name = run
    if query is not None and own_sink:
        name = run if given else query
    elif query is not None:
        if not given:
            return NoIds()
        name = f"{query}\0{run}"
    return Ids(name, batch or "batch", context.partitionId() if context is not None else 0, mode)
