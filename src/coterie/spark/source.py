"""The source `format("coterie")`: queues as streams, by leases, and as tables, by browsing.

What is decided is in `leased`; here it is what Spark calls. Offsets, partitions and commits are asked for in one
process of the query; `read` runs in executors, each of which begins with another broker of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from coterie.errors import CoterieError, UserError
from coterie.logs import Log
from coterie.spark.kept import Kept, lent
from coterie.spark.leased import DataLoss, Leased, Offset, Range, addresses, check_first, cuts
from coterie.spark.source_options import LATEST, SourceOptions
from coterie.streams.client import Client, Gone, NotFound, StreamError, Tail

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema
    from pyspark.sql.types import StructType

    from coterie.streams.columns import Batch

T = TypeVar("T")
_log = Log(__name__)
_CLIENTS: Final[Kept[Client]] = Kept()
"""Of this process, which may be a worker that runs one task after the other."""


class LeasePart(InputPartition):
    """Of a batch of a stream."""

    def __init__(self, range: Range, nodes: tuple[str, ...]) -> None:
        self.range = range
        self.nodes = nodes
        """URLs of the brokers that were in step when the batch was planned."""


class CutPart(InputPartition):
    """Of a table."""

    def __init__(self, number: int, tail: Tail, first: int, last: int, nodes: tuple[str, ...]) -> None:
        self.number = number
        self.nodes = nodes
        self.tail = tail
        self.first = first
        self.last = last


def _told(options: SourceOptions, call: Callable[[], T]) -> T:
    """What a broker says is an error of whoever asked. Raises UserError or CoterieError."""
    try:
        return call()
    except StreamError as error:
        raise _shown(options, error) from None


def _shown(options: SourceOptions, error: StreamError) -> CoterieError:
    where = ", ".join(map(str, options.servers))
    return UserError(f"{error} (asked: {where}, as user '{options.login.user}')")


def _schema(schema: StructType) -> Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _rows(
    options: SourceOptions, schema: StructType, queue: str, nodes: Sequence[str], number: int,
    read: Callable[[Client], Iterator[Batch]],
) -> Iterator[RecordBatch]:  # fmt: skip
    """`nodes`: who can be asked, as the driver knew it; `number`: which of them first."""
    from coterie.streams.arrow import record_batch

    wanted = _schema(schema)
    key = (options.servers, options.login, options.vhost, options.patience)
    with lent(_CLIENTS, key, options.client) as client:
        try:
            client.prefer(nodes, number)
            for batch in read(client):
                yield record_batch(batch, queue, wanted)
        except (Gone, NotFound) as error:
            if options.fail_on_data_loss:
                raise DataLoss(
                    f"{error}: messages of this batch are gone; set the option failOnDataLoss to false to go on with "
                    "what is left"
                ) from None
            _log.warning(f"{error}: the stream goes on without these messages")
        except StreamError as error:
            raise _shown(options, error) from None


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Of `spark.readStream`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._leased = Leased(options)

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadMinRows(options.min_rows) if options.min_rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Takes what the next batch is made of. That it is asked for proves that everything before `start` is
        written."""
        options = self._options
        rows = size = None
        least = 0 if isinstance(limit, ReadAllAvailable) else options.min_rows
        if isinstance(limit, ReadMaxRows):
            rows, size = limit.max_rows, options.max_bytes
        elif isinstance(limit, ReadMaxBytes):
            rows, size = options.max_rows, limit.max_bytes
        elif isinstance(limit, ReadMinRows):
            least = limit.min_rows
        return _told(options, lambda: self._leased.latest(start, rows, size, least))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the stream would be if it had read everything: `latestOffset` of the query's progress."""
        return self._leased.report

    def prepareForTriggerAvailableNow(self) -> None:
        _told(self._options, self._leased.available_now)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = self._leased.ranges(start, end)
        nodes = _told(self._options, self._leased.nodes) if ranges else ()
        return [LeasePart(each, nodes) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, LeasePart):
            return iter(())
        options, found = self._options, partition.range
        lease, missing = found.leased(options.vhost), "error" if options.fail_on_data_loss else "skip"
        return _rows(
            options, self._schema, found.queue, partition.nodes, found.number,
            lambda client: client.read_lease(lease, found.first, found.stop, missing),
        )  # fmt: skip

    def commit(self, end: dict[str, Any]) -> None:
        _told(self._options, lambda: self._leased.commit(end))

    def stop(self) -> None:
        self._leased.close()

    def __repr__(self) -> str:
        return f"QueueStream({self._options.queues or self._options.pattern!r})"


class QueueTable(DataSourceReader):
    """Of `spark.read`: everything that is in the queues, ready or held, as of one place of the log for each."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return _told(self._options, self._parts)

    def _parts(self) -> list[InputPartition]:
        options = self._options
        with options.client() as client:
            tails = {tail.name: tail for tail in client.tails(options.queues, options.pattern)}
            nodes = addresses(client)
        missing = [name for name in options.queues if name not in tails]
        if missing:
            raise UserError(f"no queue '{missing[0]}' in vhost '{options.vhost}'")
        spans = [(tail, *self._bounds(tails, tail)) for _, tail in sorted(tails.items())]
        total = sum(max(0, stop - first) for _, first, stop in spans)
        found: list[InputPartition] = []
        for tail, first, stop in spans:
            if first < stop:
                for begin, end in cuts(first, stop, total, options):
                    found.append(CutPart(len(found), replace(tail), begin, end - 1, nodes))
        return found

    def _bounds(self, tails: dict[str, Tail], tail: Tail) -> tuple[int, int]:
        """The first position, and the one behind the last."""
        starting, ending = self._options.starting, self._options.ending
        first, stop = tail.first, tail.next
        if isinstance(starting, dict):
            check_first(starting, tails, self._options.fail_on_data_loss)
            first = max(first, starting.get(tail.name, 0))
        elif starting == LATEST:
            first = stop
        if isinstance(ending, dict):
            stop = min(stop, ending.get(tail.name, stop))
        return first, stop

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, CutPart):
            return iter(())
        return _rows(
            self._options, self._schema, partition.tail.name, partition.nodes, partition.number,
            lambda client: client.read_range(partition.tail, partition.first, partition.last),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"QueueTable({self._options.queues or self._options.pattern!r})"


__all__ = ["Offset", "QueueStream", "QueueTable"]
