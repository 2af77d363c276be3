"""Rows of an archive become messages again: those that are wanted, mended if need be, at a rate.

Tasks read the table's files and publish what is in them, with the properties that the messages had, byte for byte. (But
for the header x-death: it says that a broker sends the message again, and no queue takes such for a duplicate.) A
message without an id of its own gets one that is made of the row: where it stood, and what is sent. So a second run
repeats the ids, and a queue that deduplicates takes each once; a row that was mended otherwise is another message.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from coterie.amqp.wire.properties import join, split
from coterie.amqp.wire.tables import short, without
from coterie.errors import ProtocolError, UserError
from coterie.spark.archive.place import Place
from coterie.spark.archive.rows import ARRIVED
from coterie.spark.letters import COLUMNS
from coterie.spark.session import parallelism
from coterie.spark.sink import SinkOptions, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from coterie.spark.archive.table import Table

DEATHS: Final = "x-death"
PER_TASK: Final = 4
"""Tasks for each core, if there are as many files."""
SLICES: Final = 10
"""Of a second: as often a rate is kept to."""
_PLACE: Final = ("queue", "position", ARRIVED)
_KNOWN_MAX: Final = 1000
"""Distinct properties that a task remembers."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows, and what becomes of them."""

    since: str = ""
    """Arrived then or later: a time as SQL reads it."""
    until: str = ""
    """Arrived before."""
    key: str = ""
    """With this routing key."""
    where: Sequence[str] = ()
    """Conditions in SQL, all of which hold."""
    change: Mapping[str, str] = field(default_factory=dict)
    """Columns of a message, with expressions in SQL: what is sent instead."""
    rate: float | None = None
    """Messages in a second; None: as fast as they are confirmed."""
    in_order: bool = False
    name: str = ""
    """Of this run: under another one, messages without ids of their own get other ids."""
    new_ids: bool = False
    """Also for messages that have one."""
    keep_deaths: bool = False
    """The header x-death, too: brokers take no message that has it for a duplicate."""


@dataclass(frozen=True, slots=True)
class Count:
    """What was found of one queue."""

    queue: str
    messages: int
    first: str
    last: str


def rows_of(spark: SparkSession, table: Table, url: str) -> DataFrame:
    """All rows of a table. Raises UserError if there are none, or not such as an archive has."""
    from pyspark.sql.pandas.types import from_arrow_schema

    files = [each.path for each in table.readable()]
    place = Place(url)
    if not files:
        raise UserError(f"{place}: no files are in this table")
    schema = _schema_of(place, files[-1])
    if "value" not in schema.names:
        raise UserError(f"{place}: its rows have no column value: they are no messages")
    tasks = min(len(files), PER_TASK * parallelism(spark))
    names = spark.createDataFrame([(path,) for path in files], "path string").repartition(tasks)
    return names.mapInArrow(partial(_read, url, schema), from_arrow_schema(schema))


def chosen(rows: DataFrame, wanted: Wanted) -> DataFrame:
    """Those that are wanted."""
    from pyspark.sql import functions as F

    found = rows
    for text, form in ((wanted.since, f"{ARRIVED} >= {{}}"), (wanted.until, f"{ARRIVED} < {{}}")):
        if text:
            found = found.where(form.format(f"timestamp '{text}'".replace("\n", " ")))
    if wanted.key:
        found = found.where(F.col("routing_key") == wanted.key)
    for condition in wanted.where:
        found = found.where(condition)
    return found


def counted(rows: DataFrame) -> list[Count]:
    """Of each queue, as far as rows say of which they are."""
    from pyspark.sql import functions as F

    text = {name: F.col(name) if name in rows.columns else F.lit(None) for name in ("queue", ARRIVED)}
    found = rows.groupBy(F.coalesce(text["queue"].cast("string"), F.lit("")).alias("queue")).agg(
        F.count("*").alias("messages"), F.min(text[ARRIVED]).cast("string").alias("first"),
        F.max(text[ARRIVED]).cast("string").alias("last"),
    )  # fmt: skip
    return [
        Count(row["queue"], row["messages"], row["first"] or "", row["last"] or "")
        for row in found.sort("queue").collect()
    ]


def replayed(rows: DataFrame, wanted: Wanted, sink: Mapping[str, str]) -> int:
    """Publish them; says how many that were. `sink`: options of the sink `coterie`."""
    from pyspark.sql import functions as F

    options = SinkOptions.of(sink)
    found = rows
    for name, expression in wanted.change.items():
        if name not in COLUMNS or name == "message_id":
            raise UserError(f"--set {name}: a message has none; there are: {', '.join(COLUMNS)}")
        found = found.withColumn(name, F.expr(expression))
    sent = [name for name in ("value", "routing_key", "properties", *wanted.change) if name in found.columns]
    sent = list(dict.fromkeys(sent))
    if "properties" not in found.columns:  # rows that somebody wrote: what they say of properties
        sent += [name for name in COLUMNS if name in found.columns and name not in (*sent, "exchange")]
    place = [name for name in _PLACE if name in found.columns]
    if len(place) < len(_PLACE) and "message_id" not in found.columns:
        raise UserError(
            f"rows without {', '.join(sorted({*_PLACE} - {*place}))} get no ids that a second run would repeat: add a "
            "column message_id"
        )
    found = found.select(*sent, *(F.col(name).cast("string").alias(f"_{name}") for name in place))
    if wanted.rate is not None or wanted.in_order:
        names = [name for name in (ARRIVED, "queue", "position") if f"_{name}" in found.columns]
        order = [F.col(f"_{name}").cast("long" if name == "position" else "string") for name in names]
        found = found.coalesce(1).sort(*order) if order else found.coalesce(1)
    task = _Task(options, tuple(sent), wanted)
    return sum(row["messages"] for row in found.mapInArrow(task, "messages bigint").collect())


class _Task:
    """Publishes the rows of one task."""

    def __init__(self, options: SinkOptions, sent: Sequence[str], wanted: Wanted) -> None:
        self._options, self._sent, self._rate = options, sent, wanted.rate
        self._name, self._new_ids, self._keep_deaths = wanted.name, wanted.new_ids, wanted.keep_deaths

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ready = map(self._letters, self._paced(batch for batch in batches if batch.num_rows))
        done = publish(self._options, ready, False, True)
        yield pa.RecordBatch.from_pydict({"messages": pa.array([done.messages], pa.int64())})

    def _paced(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In parts that keep to the rate."""
        if self._rate is None:
            yield from batches
            return
        most = max(1, int(self._rate / SLICES))
        due = time.monotonic()
        for batch in batches:
            for at in range(0, batch.num_rows, most):
                part = batch.slice(at, most)
                time.sleep(max(0.0, due - time.monotonic()))
                due = max(due, time.monotonic() - 1.0) + part.num_rows / self._rate
                yield part

    def _letters(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """As the sink takes them."""
        columns = {name: batch.column(name) for name in self._sent}
        own: list[str | None] = [None] * batch.num_rows
        if "message_id" in columns:
            own = columns["message_id"].to_pylist()
        has_id = [each is not None for each in own]
        if "properties" in columns:
            raw, ids = self._properties(columns["properties"].to_pylist())
            columns["properties"] = pa.array(raw, pa.binary())
            has_id = [one or other for one, other in zip(has_id, ids, strict=True)]
        told = [batch.column(at).to_pylist() for at in range(batch.num_columns)]
        for row, known in enumerate(has_id):
            if self._new_ids or not known:
                own[row] = self._id([column[row] for column in told])
        columns["message_id"] = pa.array(own, pa.string())
        return pa.RecordBatch.from_arrays([*columns.values()], [*columns])

    def _id(self, row: Sequence[Any]) -> str:
        digest = blake2b(self._name.encode(), digest_size=16)
        for value in row:
            data = value if isinstance(value, bytes) else repr(value).encode()
            digest.update(b"%d:" % len(data) + data)
        return f"replay-{digest.hexdigest()}"

    def _properties(self, given: Sequence[bytes | None]) -> tuple[list[bytes | None], list[bool]]:
        """Without what would be refused, a user that is not who publishes now, or taken for the broker's own doing, the
        header x-death; and whether there is an id."""
        known: dict[bytes | None, tuple[bytes | None, bool]] = {None: (None, False)}
        found = []
        for raw in given:
            if raw is not None and raw not in known:
                try:
                    parts = split(raw)
                except ProtocolError as error:
                    raise UserError(f"column 'properties': not the properties of a message: {error}") from None
                user = short(self._options.brokers.login.user)
                kept = {name: part for name, part in parts.items() if name != "user_id" or part == user}
                if "headers" in kept and not self._keep_deaths:
                    kept["headers"] = without(kept["headers"], DEATHS)
                if len(known) > _KNOWN_MAX:
                    known = {None: (None, False)}
                known[raw] = (raw if kept == parts else join(kept), "message_id" in parts)
            found.append(known[raw])
        return [raw for raw, _ in found], [has for _, has in found]


def _schema_of(place: Place, path: str) -> pa.Schema:
    with place.system.open_input_file(place.path(path)) as source, pq.ParquetFile(source) as file:
        return pa.schema([each.remove_metadata() for each in file.schema_arrow])


def _read(url: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Files by name -> their rows, as the schema has them."""
    place = Place(url)
    for batch in batches:
        for path in batch.column("path").to_pylist():
            with place.system.open_input_file(place.path(path)) as source, pq.ParquetFile(source) as file:
                for rows in file.iter_batches():
                    names = rows.schema.names
                    columns = [
                        rows.column(each.name).cast(each.type)
                        if each.name in names
                        else pa.nulls(rows.num_rows, each.type)
                        for each in schema
                    ]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
