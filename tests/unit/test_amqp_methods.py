"""Methods: every one of them there and back, by its numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_amqp_tables import outcome, same, tables

from coterie.amqp.wire.methods import METHODS, decode
from coterie.amqp.wire.tables import Value
from coterie.errors import ProtocolError

KINDS: dict[str, st.SearchStrategy[Value]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 255),
    "short": st.integers(0, (1 << 16) - 1),
    "long": st.integers(0, (1 << 32) - 1),
    "longlong": st.integers(0, (1 << 64) - 1),
    "shortstr": st.text(max_size=60),
    "longstr": st.binary(max_size=300),
    "table": tables,
}


@given(st.sampled_from(sorted(METHODS)), st.data())
def test_a_method_comes_back_as_it_was(name: str, data: st.DataObject) -> None:
    method = METHODS[name]
    arguments = {field: data.draw(KINDS[kind], label=field) for kind, field in method.fields}
    call = decode(method.encode(**arguments))
    assert call.method is method
    assert same(call.arguments, arguments)


@given(st.binary(max_size=200), st.none() | st.sampled_from(sorted(METHODS)))
def test_method_garbage_is_a_protocol_error_or_a_method(data: bytes, name: str | None) -> None:
    payload = data if name is None else METHODS[name].prefix + data
    call = outcome(lambda: decode(payload))
    if isinstance(call, int):
        assert call in (501, 502, 503)
    else:
        decode(call.method.encode(**call.arguments))


@given(st.sampled_from(sorted(METHODS)), st.data())
def test_truncated_and_extended_methods_fuzz(name: str, data: st.DataObject) -> None:
    method = METHODS[name]
    arguments = {field: data.draw(KINDS[kind], label=field) for kind, field in method.fields}
    payload = method.encode(**arguments)
    with pytest.raises(ProtocolError):
        decode(payload + b"x")
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(ProtocolError):
        decode(payload[:cut])


@pytest.mark.parametrize(
    ("name", "class_id", "method_id"),
    [
        ("connection.start", 10, 10),
        ("connection.update-secret-ok", 10, 71),
        ("channel.flow-ok", 20, 21),
        ("access.request", 30, 10),
        ("exchange.unbind-ok", 40, 51),
        ("queue.unbind", 50, 50),
        ("basic.recover-async", 60, 100),
        ("basic.nack", 60, 120),
        ("confirm.select", 85, 10),
        ("tx.rollback-ok", 90, 31),
    ],
)
def test_methods_have_the_numbers_of_the_protocol(name: str, class_id: int, method_id: int) -> None:
    assert (METHODS[name].class_id, METHODS[name].method_id) == (class_id, method_id)


def test_bits_that_follow_each_other_share_an_octet() -> None:
    declare = METHODS["queue.declare"]
    payload = declare.encode(queue="q", durable=True, auto_delete=True)
    assert payload == b"\x00\x32\x00\x0a" + b"\x00\x00" + b"\x01q" + b"\x0a" + b"\x00\x00\x00\x00"


def test_a_method_that_does_not_exist_is_refused_with_its_numbers() -> None:
    with pytest.raises(ProtocolError, match="no method 99 of class 60") as caught:
        decode(b"\x00\x3c\x00\x63")
    assert caught.value.reply_code == 503
