"""The packet header: one form for everything on the wire, and no altered bit of it goes unnoticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import WireError
from coterie.group.members import Address
from coterie.group.packet import (
    AGAIN,
    CHECKED,
    FIRST,
    HEADER,
    MCAST,
    RAW,
    TRAIN,
    TRAIN_END,
    UCAST,
    VERSION,
    Decoder,
    Packet,
    encode_header,
    group_tag,
)

GROUP = group_tag("demo")
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).filter(lambda name: len(name.encode()) <= 255)
ME = Address("omega", 3)
U64 = st.integers(0, 2**64 - 1)


def wire_of(packet: Packet, check_body: bool = False, group: int = GROUP) -> bytes:
    return encode_header(packet, group, packet.sender.name.encode(), check_body) + bytes(packet.body)


def sample(body: bytes = b"what is sent") -> Packet:
    packet = Packet(body, None, 16, MCAST, FIRST | AGAIN)
    packet.sender, packet.view, packet.seqno, packet.conn = Address("alpha", 7), 2**40 + 5, 12345, 99
    return packet


def decoder(group: int = GROUP, max_size: int = 1 << 20) -> Decoder:
    return Decoder(group, max_size, ME)


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    flags = draw(st.sampled_from([0, FIRST, TRAIN, TRAIN | TRAIN_END, AGAIN, FIRST | AGAIN]))
    packet = Packet(
        draw(st.binary(max_size=200)),
        None,
        draw(st.integers(0, 255)),
        draw(st.sampled_from([RAW, MCAST, UCAST])),
        flags,
    )
    packet.sender = Address(draw(NAMES), draw(U64))
    packet.view, packet.seqno, packet.conn = draw(U64), draw(U64), draw(st.integers(0, 2**32 - 1))
    return packet


@given(packet=packets(), check_body=st.booleans())
def test_what_is_encoded_is_decoded_to_the_same(packet: Packet, check_body: bool) -> None:
    wire = wire_of(packet, check_body)
    there = decoder()
    assert there.length(wire) == len(wire)
    again = there.decode(memoryview(wire))
    for name in ("carrier", "conn", "proto", "sender", "seqno", "view", "dest"):
        assert getattr(again, name) == getattr(packet, name)
    assert bytes(again.body) == packet.body
    assert again.flags & ~CHECKED == packet.flags
    assert bool(again.flags & CHECKED) == check_body


def test_the_body_is_a_slice_of_what_was_received() -> None:
    wire = memoryview(wire_of(sample()))
    body = decoder().decode(wire).body
    assert isinstance(body, memoryview)
    assert body.obj is wire.obj


def test_a_packet_sent_on_by_another_transport_says_for_itself_whether_its_body_is_checked() -> None:
    packet = sample()
    packet.flags |= CHECKED
    assert not decoder().decode(memoryview(wire_of(packet, check_body=False))).flags & CHECKED


@pytest.mark.parametrize("check_body", [False, True])
def test_every_flipped_bit_of_the_header_is_noticed(check_body: bool) -> None:
    wire = wire_of(sample(), check_body)
    for bit in range((HEADER.size + len("alpha")) * 8):
        altered = bytearray(wire)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            decoder().decode(memoryview(altered))


def test_a_length_that_was_altered_together_with_the_framing_is_noticed() -> None:
    wire = bytearray(wire_of(sample(b"twelve bytes")))
    wire[4] -= 4
    with pytest.raises(WireError, match="altered"):
        decoder().decode(memoryview(wire[:-4]))


def test_every_flipped_bit_of_a_checked_body_is_noticed() -> None:
    wire = wire_of(sample(), check_body=True)
    for bit in range((HEADER.size + len("alpha")) * 8, len(wire) * 8):
        altered = bytearray(wire)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError, match="altered"):
            decoder().decode(memoryview(altered))


def test_a_packet_cut_short_at_any_byte_is_refused() -> None:
    wire = wire_of(sample())
    for size in range(len(wire)):
        with pytest.raises(WireError):
            decoder().decode(memoryview(wire[:size]))


@pytest.mark.fuzz
@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        decoder().decode(memoryview(data))


@pytest.mark.fuzz
@given(data=st.binary(min_size=8, max_size=100), plausible=st.booleans())
def test_garbage_has_no_length(data: bytes, plausible: bool) -> None:
    if plausible:
        data = b"Ct" + bytes((VERSION,)) + data[3:]
    try:
        length = decoder(max_size=1000).length(data)
    except WireError:
        return
    assert HEADER.size <= length <= 1000


def test_a_packet_larger_than_the_limit_is_refused_before_its_body_is_read() -> None:
    wire = wire_of(sample(bytes(500)))
    with pytest.raises(WireError, match="the limit is 300"):
        decoder(max_size=300).length(wire[:8])


def test_a_packet_of_another_group_is_refused() -> None:
    with pytest.raises(WireError, match="another group"):
        decoder().decode(memoryview(wire_of(sample(), group=group_tag("other"))))


def test_a_packet_of_another_version_says_which_is_spoken() -> None:
    wire = bytearray(wire_of(sample()))
    wire[2] = VERSION + 1
    with pytest.raises(WireError, match=rf"version {VERSION + 1} .*\(only {VERSION}\)"):
        decoder().length(wire)


def test_a_name_that_is_no_utf_8_is_refused() -> None:
    packet = sample()
    wire = encode_header(packet, GROUP, b"\xff\xfe", False) + bytes(packet.body)
    with pytest.raises(WireError, match="name"):
        decoder().decode(memoryview(wire))


def test_many_foreign_names_do_not_grow_the_decoder_for_ever() -> None:
    there = decoder()
    for incarnation in range(10_000):
        packet = sample(b"")
        packet.sender = Address("stranger", incarnation)
        there.decode(memoryview(wire_of(packet)))
    assert len(there._senders) <= 4096


def test_incarnations_of_one_name_are_different_senders() -> None:
    there = decoder()
    first, second = sample(), sample()
    second.sender = Address("alpha", 8)
    assert there.decode(memoryview(wire_of(first))).sender == Address("alpha", 7)
    assert there.decode(memoryview(wire_of(second))).sender == Address("alpha", 8)


def test_a_packet_for_one_member_reaches_that_incarnation_and_no_other() -> None:
    packet = sample()
    packet.dest = ME
    assert decoder().decode(memoryview(wire_of(packet))).seqno == packet.seqno
    packet.dest = Address("omega", 2)
    with pytest.raises(WireError, match="for another member"):
        decoder().decode(memoryview(wire_of(packet)))
