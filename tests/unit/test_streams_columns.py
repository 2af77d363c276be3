"""Rows by columns: what is written is what is read, and what is no frame is refused."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from broker_rig import message

from coterie.amqp.wire.properties import Properties
from coterie.broker.message import Message
from coterie.broker.rows import Row
from coterie.streams import columns
from coterie.streams.columns import Batch, NoFrame, batch_of, encode_end, encode_error, encode_rows, read_frame


def rows(*messages: Message, first: int = 1) -> list[Row]:
    return [Row(position, each, False, "ready") for position, each in enumerate(messages, first)]


def frames(data: bytes) -> list[columns.Frame]:
    file = io.BytesIO(data)

    def read(size: int) -> memoryview:
        found = file.read(size)
        if len(found) < size:
            raise EOFError
        return memoryview(found)

    found = []
    while file.tell() < len(data):
        found.append(read_frame(read))
    return found


def batch(given: list[Row], offsets: Sequence[int] | None = None) -> Batch:
    ((kind, said, data),) = frames(encode_rows(given, offsets))
    assert kind == columns.BATCH
    return batch_of(said, data)


def test_what_is_written_is_read_again() -> None:
    given = rows(
        message("one", "amq.topic", "a.b", message_id="1", headers={"n": 1}),
        message("", "", "q"),
        message("drei ÄÖ", "amq.topic", "a.b", message_id="1", headers={"n": 1}),
        first=2**40,
    )
    given[2] = given[2]._replace(redelivered=True)
    found = batch(given, [7, 8, 11])
    assert found.rows == 3
    assert [*found.position] == [2**40, 2**40 + 1, 2**40 + 2]
    assert [*found.offset] == [7, 8, 11]
    assert found.redelivered == [False, False, True]
    assert found.bodies() == [b"one", b"", "drei ÄÖ".encode()]
    assert found.exchanges() == ["amq.topic", "", "amq.topic"]
    assert found.routing_keys() == ["a.b", "q", "a.b"]
    assert found.properties() == [row.message.properties() for row in given]
    assert found.size == sum(len(row.message.body) for row in given)
    assert len(found.buffers["route.key.offsets"]) == len(found.buffers["header.offsets"]) == 4 * 3  # two of each


def test_a_browse_has_no_offsets_and_many_flags_are_packed() -> None:
    given = rows(*(message(str(n)) for n in range(100)))
    for n in range(0, 100, 3):
        given[n] = given[n]._replace(redelivered=True)
    found = batch(given)
    assert not found.offset
    assert found.redelivered == [n % 3 == 0 for n in range(100)]


def test_buffers_are_aligned_and_frames_follow_each_other() -> None:
    data = encode_rows(rows(message("a"), message("bb"))) + encode_end(2, 3) + encode_error("gone", "why")
    first, end, failed = frames(data)
    assert all(at % columns.ALIGNMENT == 0 for _, at, _ in first[1]["buffers"])
    assert (end[0], end[1]) == (columns.END, {"rows": 2, "bytes": 3})
    assert (failed[0], failed[1]) == (columns.FAILED, {"error": "gone", "reason": "why"})


def test_a_header_that_makes_no_sense_says_nothing() -> None:
    assert columns.properties(b"\xff") == Properties()
    assert columns.properties(message("a", content_type="text/plain").header[12:]).content_type == "text/plain"


def test_a_routing_key_that_is_no_utf8_ends_no_read() -> None:
    found = batch(rows(message("a", "x", "k\udcff"), message("b", "x", "ä")))
    assert found.routing_keys() == ["k\ufffd", "ä"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"HTTP" + data[4:],
        lambda data: data[:4] + b"?" + data[5:],
        lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:],
        lambda data: data[:24] + b"[" + data[25:],
    ],
)
def test_what_is_no_frame_is_refused(spoil) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NoFrame):
        frames(spoil(encode_rows(rows(message("a")))))


@pytest.mark.parametrize("said", [{}, {"rows": 1, "buffers": []}, {"rows": 2, "buffers": [["position", 0, 8]]}])
def test_what_describes_no_batch_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(NoFrame):
        batch_of(said, memoryview(bytes(64)))


def test_arrow_arrays_are_made_of_the_buffers() -> None:
    given = rows(message("one", "x", "k1"), message("three", "x", "k2"), message("", "x", "k1"))
    given[1] = given[1]._replace(redelivered=True)
    found = batch(given, [0, 1, 2])
    buffers = {name: pa.py_buffer(data) for name, data in found.buffers.items()}
    fixed = {"position": pa.int64(), "offset": pa.int64(), "redelivered": pa.bool_(), "route": pa.int32()}
    made = {name: pa.Array.from_buffers(kind, 3, [None, buffers[name]]) for name, kind in fixed.items()}
    assert made["position"].to_pylist() == [1, 2, 3]
    assert made["redelivered"].to_pylist() == [False, True, False]
    bodies = pa.Array.from_buffers(pa.binary(), 3, [None, buffers["body.offsets"], buffers["body.data"]])
    assert bodies.to_pylist() == [b"one", b"three", b""]
    keys = pa.Array.from_buffers(pa.utf8(), 2, [None, buffers["route.key.offsets"], buffers["route.key.data"]])
    assert keys.take(made["route"]).to_pylist() == ["k1", "k2", "k1"]
