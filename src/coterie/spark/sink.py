"""The sink `format("coterie")`: rows are published with confirms, under ids that a replay repeats.

Everything is published within the tasks, as the rows come; a task has succeeded when all of its messages are confirmed.
There is nothing to commit, and nothing to take back: what a task published before it failed is published again by the
next attempt, and queues that deduplicate have it once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from coterie.errors import UserError
from coterie.spark.ids import MODES, ROWS, NoIds, ids_of
from coterie.spark.kept import Kept, lent
from coterie.spark.letters import Letters, check_schema
from coterie.spark.options import LOGIN, Options, login, servers
from coterie.spark.publisher import Brokers, Publisher

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

PORTS: Final = {"amqp": 5672, "amqps": 5671}
KNOWN: Final = (
    *LOGIN, "exchange", "routingKey", "queue", "mandatory", "persistent", "messageIds", "runId", "maxInFlight",
    "connectTimeout", "confirmTimeout",
)  # fmt: skip
_PUBLISHERS: Final[Kept[Publisher]] = Kept()
"""Of this process, which may be a worker that runs one task after the other."""


@dataclass(frozen=True)
class SinkOptions:
    """What a sink was told. Raises UserError when it is made of something else."""

    brokers: Brokers
    exchange: str | None
    key: str | None
    mandatory: bool
    persistent: bool
    message_ids: str
    run: str
    run_given: bool

    @staticmethod
    def of(given: Mapping[str, str]) -> SinkOptions:
        options = Options(given, KNOWN)
        exchange, key = (options.text(name) if name in options else None for name in ("exchange", "routingKey"))
        if "queue" in options:
            if exchange is not None or key is not None:
                raise UserError("option queue: it goes without exchange and routingKey: it is both")
            exchange, key = "", options.text("queue")
        brokers = Brokers(
            servers(options, PORTS), login(options), options.text("vhost", "/"), options.whole("maxInFlight", 10_000),
            options.seconds("connectTimeout", "30s"), options.seconds("confirmTimeout", "120s"),
        )  # fmt: skip
        return SinkOptions(
            brokers, exchange, key, options.flag("mandatory", True), options.flag("persistent", True),
            options.word("messageIds", ROWS, MODES), options.text("runId") or str(uuid.uuid4()), "runId" in options,
        )  # fmt: skip


@dataclass
class Published(WriterCommitMessage):
    """What one task has done."""

    messages: int


def publish(options: SinkOptions, batches: Iterator[RecordBatch], own_sink: bool, have_ids: bool) -> Published:
    """All rows of one task. Returns when everything is confirmed. `own_sink`: of a streaming query; `have_ids`: there
    is a column for them."""
    context = TaskContext.get()
    ids = ids_of(context, options.run, options.run_given, options.message_ids, own_sink)
    if isinstance(ids, NoIds) and not have_ids:
        ids.next(("", ""), b"", b"")  # said with the first batch, even if that is empty
    rest = (batch for batch in batches if batch.num_rows)
    first = next(rest, None)
    if first is None:
        return Published(0)
    messages = 0
    number = context.partitionId() if context is not None else 0
    with lent(_PUBLISHERS, options.brokers, lambda: Publisher(options.brokers, number)) as publisher:
        letters = Letters(
            ids, options.exchange, options.key, options.mandatory, options.persistent, publisher.frame_max
        )
        for batch in chain((first,), rest):
            for bulk in letters.bulks(batch):
                publisher.send(bulk)
            messages += batch.num_rows
        publisher.flush()
    return Published(messages)


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise UserError("messages that were sent cannot be overwritten: use mode 'append'")
    check_schema(schema)
    return SinkOptions.of(options)


class BatchSink(DataSourceArrowWriter):
    """Of `df.write`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self.options = _checked(options, schema, overwrite)
        self.have_ids = not {"message_id", "properties"}.isdisjoint(schema.names)

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return publish(self.options, iterator, False, self.have_ids)


class StreamSink(DataSourceStreamArrowWriter):
    """Of `df.writeStream`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self.options = _checked(options, schema, overwrite)
        self.have_ids = not {"message_id", "properties"}.isdisjoint(schema.names)

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return publish(self.options, iterator, True, self.have_ids)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks have been confirmed everything."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The epoch comes again, with the same ids."""
