"""What the streaming audit keeps of each run, between one batch of new files and the next.

A run is a LiveRun (audit/live.py), pickled. Its time is that of the batches, which Spark writes down with each: if a
batch is repeated after a crash, it has the time that it had. A batch takes every file that is there when it begins, and
files come before timers: what a timer does not wait for any longer was not there. (How long the stream itself stood
still before does not count against anybody: it then begins with all that came meanwhile.)
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from coterie.audit import live
from coterie.audit.live import LiveRun, Patience
from coterie.audit.views import Who
from coterie.spark import stream_tables as tables
from coterie.spark.check import uncollected
from coterie.spark.stream_chunks import NO_EVENTS, files_of, unpacked
from coterie.trace import Event

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )

STATE = "live"
STATE_DDL = "over boolean, timer bigint, past string, state binary"
"""Of a run: whether its verdict is out; when to look at it again, in milliseconds; the incarnations that were part of a
verdict that is out, as JSON; and all that is known of it, while it is not over."""
REMEMBERED = 24 * 3600.0
"""Seconds for which the name of a run that is over is kept: what still comes of it until then is late."""

Chunk = tuple[str, bytes]
"""File and payload."""


class Runs(StatefulProcessor):
    """Chunks of one run go in, rows for the tables come out."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state: ValueState = handle.getValueState(STATE, STATE_DDL)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:
        what, name = key
        now = timerValues.getCurrentProcessingTimeInMs() / 1000
        chunks = [(row.file, row.payload) for row in rows]
        if what == NO_EVENTS:
            found = (row for _, payload in chunks for row in unpacked(payload).to_pylist())
            return _rows(tables.corrupt_rows(found))
        return _rows(self._feed(name, chunks, now))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        return _rows(self._wake(timerValues.getCurrentProcessingTimeInMs() / 1000))

    def close(self) -> None:
        pass

    def _feed(self, name: str, chunks: list[Chunk], now: float) -> Iterator[tables.Row]:
        over, timer, past, state = self._state.get() or (False, None, None, None)
        gone = {(node, inc) for node, inc in json.loads(past or "[]")}
        with uncollected():
            files: list[tuple[str, list[Event]]] = []
            for file, events in files_of(chunks):
                late: list[Event] = []
                fresh: list[Event] = []
                for event in events:
                    # A group of real nodes that comes back, as new incarnations, is judged anew. What is missing from
                    # before is then no violation; of a simulated run it would be one.
                    gone_by = (event.node, event.inc) in gone or (over and event.wall is None)
                    (late if gone_by else fresh).append(event)
                yield from tables.late_rows(late, "over")
                if fresh:
                    files.append((file, fresh))
            if files:
                run = LiveRun(name) if state is None else loaded(state)
                yield from tables.late_rows(run.feed(files, now), "hole")
                yield from self._settle(run, timer, gone, now)

    def _wake(self, now: float) -> Iterator[tables.Row]:
        over, timer, past, state = self._state.get() or (True, None, None, None)
        if over:
            self._state.clear()
            return
        with uncollected():
            yield from self._settle(loaded(state), timer, {(node, inc) for node, inc in json.loads(past)}, now)

    def _settle(self, run: LiveRun, timer: int | None, gone: set[Who], now: float) -> Iterator[tables.Row]:
        """What there is to say of the run by now; and keep it, or the fact that it is over."""
        if timer is not None:
            self._handle.deleteTimer(timer)
        run.patience = self._patience
        over = run.advance(now)
        yield from tables.violation_rows(run.name, run.certain())
        if over:
            yield from tables.violation_rows(run.name, run.finish())
            yield tables.run_row(run)
            gone = {*gone, *run.incarnations}
        # Not before the next millisecond: a timer that is due fires in this very batch, and again, and again.
        due = math.ceil(1000 * (now + REMEMBERED if over else max(run.due, now + 0.001)))
        self._handle.registerTimer(due)
        state = None if over else zlib.compress(live.dump(run), 1)
        self._state.update((over, due, json.dumps(sorted(gone)), state))


def loaded(state: bytes) -> LiveRun:
    return live.load(zlib.decompress(state))


def _rows(rows: Iterable[tables.Row]) -> Iterator[Row]:
    for what, body in rows:
        yield Row(what=what, body=body)


def verdicts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """States of runs (a column `state`) -> rows of tables.OUT_DDL: the verdict, should nothing more come of them."""
    for batch in batches:
        for state in batch.column("state").to_pylist():
            run = loaded(state)
            rows = [*tables.violation_rows(run.name, run.finish()), tables.run_row(run)]
            yield pa.RecordBatch.from_pylist([{"what": what, "body": body} for what, body in rows])
