"""What a replay sends of a row, without Spark: properties as they were, and ids that a second run repeats."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from coterie.amqp.wire.properties import PREFIX, Properties, encode, join, split
from coterie.amqp.wire.tables import decode_table, encode_table, without
from coterie.errors import UserError
from coterie.spark.archive.replay import Wanted, _Task
from coterie.spark.sink import SinkOptions

SENT = ("value", "routing_key", "properties")
DEATHS: list[Any] = [{"count": 1, "reason": "rejected", "queue": "orders"}]


def raw(**given: Any) -> bytes:
    return encode(Properties(**given), 0)[PREFIX:]


def letters(wanted: Wanted, *rows: tuple[bytes, bytes | None], position: int = 1) -> list[dict[str, Any]]:
    options = SinkOptions.of({"servers": "amqp://here", "queue": "q", "user": "me"})
    columns = {
        "value": [value for value, _ in rows], "routing_key": ["k"] * len(rows),
        "properties": pa.array([each for _, each in rows], pa.binary()),
        "_position": [str(position + number) for number in range(len(rows))],
    }  # fmt: skip
    found: list[dict[str, Any]] = _Task(options, SENT, wanted)._letters(pa.RecordBatch.from_pydict(columns)).to_pylist()
    return found


def test_properties_are_sent_as_they_were_but_for_deaths_and_another_user() -> None:
    headers = {"n": 5, "big": 1 << 40, "x-death": DEATHS, "who": "tests"}
    plain, mine = raw(headers={"n": 5}, message_id="m1"), raw(user_id="me")
    died, other = raw(headers=headers, priority=3), raw(user_id="you", app_id="a")
    found = letters(Wanted(), (b"1", plain), (b"2", mine), (b"3", died), (b"4", other), (b"5", None))
    assert [each["properties"] for each in found[:2]] == [plain, mine]
    rest = {name: value for name, value in headers.items() if name != "x-death"}
    assert found[2]["properties"] == raw(headers=rest, priority=3)
    assert found[3]["properties"] == raw(app_id="a")
    assert found[4]["properties"] is None
    assert letters(Wanted(keep_deaths=True), (b"3", died))[0]["properties"] == died
    with pytest.raises(UserError, match="not the properties of a message"):
        letters(Wanted(), (b"6", b"\xff"))


def test_a_second_run_repeats_ids_and_what_was_mended_otherwise_has_another() -> None:
    def ids(wanted: Wanted, value: bytes = b"1", position: int = 1) -> list[str | None]:
        own = raw(message_id="m1")
        return [each["message_id"] for each in letters(wanted, (value, None), (b"own", own), position=position)]

    first, own = ids(Wanted())
    assert own is None, "it keeps the one that is in its properties"
    assert first is not None
    assert ids(Wanted()) == [first, None]
    others = [ids(Wanted(), value=b"2"), ids(Wanted(), position=7), ids(Wanted(name="again"))]
    assert len({first, *(each[0] for each in others)}) == 4
    assert None not in ids(Wanted(new_ids=True))


def test_a_table_without_a_key_is_byte_for_byte_what_else_is_in_it() -> None:
    data = encode_table({"a": 1, "x-death": DEATHS, "b": {"c": [1, "two", None]}})
    assert without(data, "x-death") == encode_table({"a": 1, "b": {"c": [1, "two", None]}})
    assert without(data, "none") == data
    assert decode_table(without(data, "a"), 0)[0] == {"x-death": DEATHS, "b": {"c": [1, "two", None]}}
    assert join(split(raw(priority=1))) == raw(priority=1)
