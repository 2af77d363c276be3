"""The codec of protocol messages: what is written is read back, and nothing else is ever accepted."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import WireError
from coterie.group.members import Address, ViewId
from coterie.group.wire import Codec

U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ADDRESSES = st.builds(Address, TEXT, U64)


@dataclass(frozen=True, slots=True)
class Ack:
    conn: int
    upto: int


@dataclass(frozen=True, slots=True)
class Everything:
    number: int
    yes: bool
    ratio: float
    text: str
    raw: bytes
    ranges: tuple[tuple[int, int], ...]
    digest: dict[Address, tuple[int, int]]
    view: ViewId | None
    nested: tuple[Ack, ...]
    pair: tuple[str, bool]


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


CODEC = Codec({1: Ack, 2: Everything, 7: Nothing})

EVERYTHING = st.builds(
    Everything,
    number=U64,
    yes=st.booleans(),
    ratio=st.floats(allow_nan=False),
    text=TEXT,
    raw=st.binary(),
    ranges=st.lists(st.tuples(U64, U64)).map(tuple),
    digest=st.dictionaries(ADDRESSES, st.tuples(U64, U64)),
    view=st.none() | st.builds(ViewId, U64, ADDRESSES),
    nested=st.lists(st.builds(Ack, U64, U64)).map(tuple),
    pair=st.tuples(TEXT, st.booleans()),
)
SAMPLE = Everything(
    number=2**64 - 1,
    yes=True,
    ratio=0.5,
    text="Grüße",
    raw=b"\0\xff",
    ranges=((1, 2), (5, 9)),
    digest={Address("a", 1): (3, 4), Address("b", 2): (5, 6)},
    view=ViewId(4, Address("c", 3)),
    nested=(Ack(1, 2), Ack(3, 4)),
    pair=("x", False),
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """In one step, as nothing in it has a length of its own."""

    position: int
    ask: bool
    share: float


NUMBERS = Codec({1: Numbers})


@given(st.builds(Numbers, U64, st.booleans(), st.floats(allow_nan=False)))
def test_a_record_of_numbers_is_read_back_and_nothing_else_is_taken_for_one(numbers: Numbers) -> None:
    data = NUMBERS.encode(numbers)
    found = NUMBERS.decode(data)
    assert (found, type(found.ask)) == (numbers, bool)
    neither = bytearray(data)
    neither[9] = 2  # the flag
    for wrong in (bytes(neither), data[:-1], data + b"\0"):
        with pytest.raises(WireError):
            NUMBERS.decode(wrong)


def test_numbers_that_do_not_fit_are_not_sent() -> None:
    for number in (-1, 2**64):
        with pytest.raises(struct.error):
            NUMBERS.encode(Numbers(number, False, 0.0))


@given(EVERYTHING)
def test_what_is_encoded_is_decoded_to_the_same(message: Everything) -> None:
    assert CODEC.decode(CODEC.encode(message)) == message


@given(EVERYTHING)
def test_equal_messages_are_equal_bytes(message: Everything) -> None:
    assert CODEC.encode(message) == CODEC.encode(CODEC.decode(CODEC.encode(message)))


def test_a_message_may_be_a_slice_of_something_larger() -> None:
    wire = CODEC.encode(SAMPLE)
    assert CODEC.decode(memoryview(b"before" + wire + b"after")[6 : 6 + len(wire)]) == SAMPLE


def test_what_is_decoded_does_not_keep_the_receive_buffer_alive() -> None:
    decoded = CODEC.decode(bytearray(CODEC.encode(SAMPLE)))
    assert type(decoded.raw) is bytes


def test_a_message_without_fields_is_one_byte() -> None:
    assert CODEC.encode(Nothing()) == b"\7"
    assert CODEC.decode(b"\7") == Nothing()


def test_the_wire_form_of_a_message_stays_what_it_is() -> None:
    assert CODEC.encode(Ack(5, 0x0102)) == b"\1" + bytes([5, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0])


def test_a_message_cut_short_at_any_byte_is_refused() -> None:
    wire = CODEC.encode(SAMPLE)
    for size in range(len(wire)):
        with pytest.raises(WireError):
            CODEC.decode(wire[:size])


def test_a_message_with_something_behind_it_is_refused() -> None:
    with pytest.raises(WireError, match="behind"):
        CODEC.decode(CODEC.encode(SAMPLE) + b"\0")


@pytest.mark.parametrize("wire", [b"", b"\0", b"\3rest", b"\xff"])
def test_a_message_that_is_not_in_the_table_is_refused(wire: bytes) -> None:
    with pytest.raises(WireError, match="does not know"):
        CODEC.decode(wire)


@pytest.mark.fuzz
@given(tag=st.sampled_from([1, 2, 7]), rest=st.binary(max_size=300))
def test_garbage_raises_nothing_but_a_wire_error(tag: int, rest: bytes) -> None:
    try:
        CODEC.decode(bytes((tag,)) + rest)
    except WireError:
        pass


@pytest.mark.fuzz
@given(message=EVERYTHING, data=st.data())
def test_an_altered_message_raises_nothing_but_a_wire_error(message: Everything, data: st.DataObject) -> None:
    wire = bytearray(CODEC.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    try:
        CODEC.decode(wire)
    except WireError:
        pass


@pytest.mark.parametrize("value", [2, 0x80, 0xFF])
def test_a_flag_is_0_or_1_so_that_a_message_has_one_wire_form_only(value: int) -> None:
    wire = bytearray(CODEC.encode(SAMPLE))
    wire[9] = value  # tag, eight bytes of number, then the flag
    with pytest.raises(WireError, match="flag"):
        CODEC.decode(wire)


def test_text_that_is_no_utf_8_is_refused() -> None:
    wire = CODEC.encode(SAMPLE).replace("Grüße".encode(), b"Gr\xff\xffe\xff\xff")
    with pytest.raises(WireError):
        CODEC.decode(wire)


@dataclass(frozen=True, slots=True)
class Bombs:
    ranges: tuple[tuple[int, int], ...]
    hollow: tuple[Nothing, ...]
    raw: bytes


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<I", 0xFFFFFFFF),
        struct.pack("<II", 0, 0xFFFFFFFF),
        struct.pack("<III", 0, 0, 0xFFFFFFFF),
        struct.pack("<I", 1000) + bytes(999),
    ],
    ids=["entries", "entries without bytes", "length of a byte string", "a little too many"],
)
def test_a_count_that_the_message_cannot_hold_costs_no_memory(body: bytes) -> None:
    codec = Codec({1: Bombs})
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            codec.decode(b"\1" + body)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@dataclass(frozen=True, slots=True)
class Wrong:
    members: list[int]


def test_a_type_without_a_wire_form_is_refused_when_the_codec_is_made() -> None:
    with pytest.raises(TypeError, match="no wire form"):
        Codec({1: Wrong})
