"""Content headers: there and back, and the quick look agrees with the thorough one."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from test_amqp_tables import outcome, tables

from coterie.amqp.wire.properties import PREFIX, Properties, decode, encode, peek, scan
from coterie.amqp.wire.tables import FarMoment

texts = st.none() | st.text(max_size=60)
octets = st.none() | st.integers(0, 255)
moments = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)).map(
    lambda at: at.replace(microsecond=0, tzinfo=UTC)
)
some = st.builds(
    Properties,
    content_type=texts, content_encoding=texts, headers=st.none() | tables, delivery_mode=octets, priority=octets,
    correlation_id=texts, reply_to=texts, expiration=texts, message_id=texts,
    timestamp=st.none() | moments | st.integers(1 << 40, (1 << 64) - 1).map(FarMoment),
    type=texts, user_id=texts, app_id=texts, cluster_id=texts,
)  # fmt: skip


def agree(header: bytes) -> Properties | None:
    """What `decode` says, after `scan` has said the same of it."""
    properties, quick = outcome(lambda: decode(header)), outcome(lambda: scan(header))
    if isinstance(properties, int) or isinstance(quick, int):
        assert properties == quick == 502
        return None
    assert quick.persistent == (properties.delivery_mode == 2)
    assert quick.priority == (properties.priority or 0)
    assert (quick.expiration, quick.reply_to, quick.user_id) == (
        properties.expiration, properties.reply_to, properties.user_id
    )  # fmt: skip
    assert peek(header) == quick[:3]
    return properties


@given(some, st.integers(0, (1 << 64) - 1))
def test_properties_come_back_as_they_were(properties: Properties, size: int) -> None:
    header = encode(properties, size)
    assert int.from_bytes(header[4:12], "big") == size
    assert agree(header) == properties


@given(st.binary(max_size=120))
def test_header_garbage_is_a_protocol_error_or_a_header(data: bytes) -> None:
    agree(bytes(PREFIX) + data)
    agree(data)


@given(some, st.data())
def test_altered_and_truncated_headers_fuzz(properties: Properties, data: st.DataObject) -> None:
    raw = bytearray(encode(properties, 1))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    agree(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


def test_no_properties_are_two_bytes_of_flags() -> None:
    assert encode(Properties(), 5).hex() == "003c0000" + "0000000000000005" + "0000"


def test_properties_stand_where_the_specification_has_them() -> None:
    header = encode(Properties(content_type="a", delivery_mode=2, reply_to="r", cluster_id="c"), 0)
    flags, rest = header[12:14], header[14:]
    assert flags == (1 << 15 | 1 << 12 | 1 << 9 | 1 << 2).to_bytes(2, "big")
    assert rest == b"\x01a" + b"\x02" + b"\x01r" + b"\x01c"
