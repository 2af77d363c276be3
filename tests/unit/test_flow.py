"""FLOW over NAKACK and UNICAST3, as scripts of messages: what docs/protocols/flow.md says, one test for each thing."""

from __future__ import annotations

from harness import A, B, C, Net, Script
from hypothesis import given
from hypothesis import strategies as st

from coterie.group.events import StreamOpened, Writable
from coterie.group.members import Address
from coterie.group.packet import APP, MCAST, RAW, TRAIN, UCAST, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.flow import Flow, FlowSettings, HowFar, Taken
from coterie.group.protocols.nakack import Nakack, NakackSettings
from coterie.group.protocols.unicast3 import Unicast3
from coterie.group.protocols.unicast3_messages import Unicast3Settings

WINDOW = 1000
EVERY = 0.2
"""Seconds between two questions of a sender without credit."""


def script(local: Address = A, nakack_window: int = 1000, **settings: float) -> Script:
    s = Script(
        Nakack(NakackSettings(window=nakack_window, highest_interval=3600.0)),
        Unicast3(Unicast3Settings(retransmit_interval=3600.0)),
        Flow(FlowSettings(**{"window": WINDOW, "ask_interval": EVERY} | settings)),  # type: ignore[arg-type]
        local=local,
    )
    for other in (A, B, C):
        if other != local:
            s.stack.find(Nakack).open(other, 1)
    s.floor.out.clear()
    s.roof.events.clear()
    return s


def flow(s: Script) -> Flow:
    return s.stack.find(Flow)


def send(s: Script, size: int, dest: Address | None = None, flags: int = 0) -> Packet:
    """The layer above sends a bundle of that many bytes."""
    packet = Packet(bytes(size), dest, APP, MCAST if dest is None else UCAST, flags)
    s.roof.pass_down(packet)
    return packet


def send_all_taken_by_us(s: Script, *sizes: int) -> None:
    """Multicasts that our own application takes at once, so that only the others can be slow."""
    for size in sizes:
        send(s, size)
    s.run(0)
    take(s)


def take(s: Script, most: int = 10**9) -> list[Packet]:
    """The application takes what was delivered."""
    packets = s.arrived()
    for packet in packets[:most]:
        flow(s).taken(packet)
    s.roof.batches = [packets[most:]] if packets[most:] else []
    return packets[:most]


def out(s: Script) -> list[int]:
    """The numbers of the application's bundles that went down since the last look."""
    return [p.seqno for p in s.packets()]


def bundle_from(sender: Address, seqno: int, size: int, conn: int = 0) -> Packet:
    packet = Packet(bytes(size), A if conn else None, APP, UCAST if conn else MCAST)
    packet.sender, packet.seqno, packet.conn = sender, seqno, conn
    if conn and seqno == 1:
        packet.flags = 1
    return packet


# Spending.


def test_a_sender_with_credit_sends_at_once() -> None:
    s = script()
    assert flow(s).ready(None)
    send(s, 400)
    assert out(s) == [1]


def test_a_sender_that_is_a_window_ahead_of_its_slowest_receiver_waits() -> None:
    s = script()
    send_all_taken_by_us(s, 400, 400, 400)  # the last one starts within the window
    assert out(s) == [1, 2, 3]
    assert not flow(s).ready(None)
    send(s, 1)
    assert out(s) == []
    assert s.stack.rules["flow.waits"] == flow(s).stats["waited"] == 1
    assert s.stack.held()["FLOW.waiting"] == 1
    s.hear(B, Flow, Taken(0, 3))
    assert out(s) == []  # C has not
    s.hear(C, Flow, Taken(0, 1))
    assert out(s) == [4]


def test_the_sender_itself_is_a_receiver_too() -> None:
    s = script()
    for _ in range(3):
        send(s, 500)
    s.run(0)
    s.hear(B, Flow, Taken(0, 2))
    s.hear(C, Flow, Taken(0, 2))
    assert out(s) == [1, 2]  # our own application has taken nothing
    take(s, 1)
    assert out(s) == [3]


def test_a_waiting_bundle_has_no_number_yet() -> None:
    s = script()
    send(s, WINDOW)
    waiting = send(s, 1)
    assert waiting.seqno == 0


def test_bundles_that_wait_go_in_the_order_in_which_they_came_and_only_as_far_as_the_credit_goes() -> None:
    s = script()
    send_all_taken_by_us(s, WINDOW)
    waiting = [send(s, size) for size in (100, 900, 50, 60)]
    out(s)
    s.hear(B, Flow, Taken(0, 1))
    s.hear(C, Flow, Taken(0, 1))
    assert [p.seqno for p in waiting] == [2, 3, 0, 0]
    assert s.stack.rules["flow.goes_on"] == 2
    s.run(0)
    take(s)
    s.hear(B, Flow, Taken(0, 3))
    s.hear(C, Flow, Taken(0, 3))
    assert [p.seqno for p in waiting] == [2, 3, 4, 5]


def test_what_comes_later_does_not_overtake_what_waits() -> None:
    s = script()
    send_all_taken_by_us(s, WINDOW)
    first = send(s, 2 * WINDOW)
    s.hear(B, Flow, Taken(0, 1))
    s.hear(C, Flow, Taken(0, 1))  # the first goes, and closes the window again
    second = send(s, 1)
    assert (first.seqno, second.seqno) == (2, 0)
    assert not flow(s).ready(None)


def test_control_traffic_costs_no_credit_and_waits_for_none() -> None:
    s = script()
    send(s, WINDOW)
    s.floor.out.clear()
    control = Packet(bytes(500), None, 99, MCAST)
    raw = Packet(bytes(500), B, APP, RAW)
    s.roof.pass_down(control)
    s.roof.pass_down(raw)
    assert s.floor.out == [control, raw]
    fresh = script()
    for _ in range(10):
        fresh.roof.pass_down(Packet(bytes(WINDOW), None, 99, MCAST))
    assert flow(fresh).ready(None)


def test_a_full_retransmission_window_holds_multicasts_back_too() -> None:
    s = script(nakack_window=2)
    send_all_taken_by_us(s, 10, 10)
    assert not flow(s).ready(None)
    send(s, 10)
    assert out(s) == [1, 2]
    s.stack.find(Nakack).stable(A, 1)
    assert out(s) == [3]


def test_a_member_that_is_told_there_is_no_room_is_told_when_there_is() -> None:
    s = script()
    send_all_taken_by_us(s, WINDOW)
    assert not flow(s).ready(None)
    s.hear(B, Flow, Taken(0, 1))
    assert s.events(Writable) == []
    s.hear(C, Flow, Taken(0, 1))
    assert s.events(Writable) == [Writable()]
    assert flow(s).ready(None)


def test_credit_that_nobody_waits_for_is_no_news() -> None:
    s = script()
    send_all_taken_by_us(s, 100)
    s.events(Writable)
    s.hear(B, Flow, Taken(0, 1))
    s.hear(C, Flow, Taken(0, 1))
    assert s.events(Writable) == []


class Held(Protocol):
    """A layer between that does not pass everything on at once, as a flush gate will."""

    name, id = "HELD", 202

    def down(self, packet: Packet) -> None:
        pass


def test_what_a_layer_below_has_not_stamped_yet_counts_as_on_its_way() -> None:
    s = Script(Nakack(), Held(), Flow(FlowSettings(window=WINDOW)))
    send(s, WINDOW)
    s.view(A, B)
    s.view(A, B, C)
    assert not flow(s).ready(None)


# Credit.


def test_credit_is_cumulative() -> None:
    s = script()
    send_all_taken_by_us(s, *[100] * 10)
    send(s, 1)
    out(s)
    s.hear(B, Flow, Taken(0, 9))  # nothing was heard of 1 to 8
    s.hear(C, Flow, Taken(0, 9))
    assert out(s) == [11]


def test_credit_that_comes_late_takes_nothing_back() -> None:
    s = script()
    send_all_taken_by_us(s, *[100] * 10)
    s.hear(B, Flow, Taken(0, 10))
    s.hear(B, Flow, Taken(0, 2))
    assert not flow(s).ready(None)
    s.hear(C, Flow, Taken(0, 10))
    send_all_taken_by_us(s, *[100] * 9)
    assert flow(s).ready(None)


def test_credit_goes_back_when_the_application_took_so_much_not_when_it_arrived() -> None:
    s = script(report_after=0.25)
    s.up(bundle_from(B, 1, 200), bundle_from(B, 2, 49), bundle_from(B, 3, 1), bundle_from(B, 4, 249))
    assert s.sent(Taken) == []
    take(s, 2)
    assert s.sent(Taken) == []  # a byte is missing
    take(s, 1)
    assert s.sent(Taken) == [(B, Taken(0, 3))]
    take(s)
    assert s.sent(Taken) == []


def test_each_senders_bytes_are_counted_apart() -> None:
    s = script()
    s.up(bundle_from(B, 1, 200), bundle_from(C, 1, 200))
    take(s)
    assert s.sent(Taken) == []
    s.up(bundle_from(C, 2, 50))
    take(s)
    assert s.sent(Taken) == [(C, Taken(0, 2))]


def test_a_sender_that_waits_asks_again_and_again_how_far_its_receivers_are() -> None:
    s = script()
    send_all_taken_by_us(s, WINDOW)
    send(s, 1)
    s.run(EVERY - 0.001)
    assert s.sent(HowFar) == []
    s.run(0.002)
    assert s.sent(HowFar) == [(None, HowFar(True))]
    s.run(3 * EVERY)
    assert len(s.sent(HowFar)) == 3
    assert s.stack.rules["flow.asks"] == 4
    s.hear(B, Flow, Taken(0, 1))
    s.hear(C, Flow, Taken(0, 1))
    s.run(0)
    take(s)
    s.run(10)
    assert s.sent(HowFar) == []


def test_a_sender_whose_application_was_told_that_there_is_no_room_asks_although_nothing_waits_here() -> None:
    s = script()
    send_all_taken_by_us(s, WINDOW)
    assert not flow(s).ready(None)
    s.run(EVERY + 0.001)
    assert s.sent(HowFar) == [(None, HowFar(True))]


def test_whoever_is_asked_says_how_far_its_application_is() -> None:
    s = script()
    s.up(bundle_from(B, 1, 10), bundle_from(B, 2, 10))
    take(s, 1)
    s.hear(B, Flow, HowFar(True))
    assert s.sent(Taken) == [(B, Taken(0, 1))]
    s.hear(B, Flow, HowFar(False))
    s.hear(C, Flow, HowFar(True))
    assert s.sent(Taken) == []  # of these nothing has come yet


def test_a_lost_credit_message_costs_nothing_but_time() -> None:
    group = net()
    a = group.members[A]
    for _ in range(2):
        send(a, WINDOW // 2)
    late = send(a, 1)
    a.run(0)
    group.carry()
    for member in group.members.values():
        take(member)
    group.run(EVERY / 2, lambda source, target, packet: packet.proto == Flow.id)
    assert late.seqno == 0
    group.run(EVERY)
    assert late.seqno == 3


# Unicasts.


def test_unicasts_and_multicasts_have_windows_of_their_own() -> None:
    s = script()
    send(s, WINDOW)
    assert not flow(s).ready(None)
    assert flow(s).ready(B)
    assert send(s, WINDOW, B).seqno == 1
    assert not flow(s).ready(B)
    assert flow(s).ready(C)
    assert send(s, 10, C).seqno == 1


def test_credit_for_a_unicast_connection_is_credit_for_that_one_only() -> None:
    s = script()
    to_b, to_c = send(s, WINDOW, B), send(s, WINDOW, C)
    next_b, next_c, next_all = send(s, 1, B), send(s, 1, C), send(s, WINDOW)
    more = send(s, 1)
    s.hear(B, Flow, Taken(to_b.conn, 1))
    assert (next_b.seqno, next_c.seqno, more.seqno) == (2, 0, 0)
    assert to_c.seqno == next_all.seqno == 1


def test_credit_of_an_old_connection_is_not_credit_for_a_new_one() -> None:
    s = script()
    old = send(s, 10, B)
    s.hear(B, Flow, Taken(old.conn, 1))
    s.stack.find(Unicast3).senders.clear()  # closed, and reaped
    new = send(s, WINDOW, B)
    assert new.conn > old.conn
    late = send(s, 1, B)
    s.hear(B, Flow, Taken(old.conn, 99))
    assert late.seqno == 0
    s.hear(B, Flow, Taken(new.conn, 1))
    assert late.seqno == 2


def test_what_is_taken_of_a_connection_is_reported_with_its_id() -> None:
    s = script()
    s.up(bundle_from(B, 1, 300, conn=7), bundle_from(B, 1, 300))
    take(s)
    assert s.sent(Taken) == [(B, Taken(7, 1)), (B, Taken(0, 1))]


def test_a_sender_that_waits_for_one_member_asks_that_member() -> None:
    s = script()
    send(s, WINDOW, B)
    send(s, 1, B)
    s.run(EVERY + 0.001)
    assert s.sent(HowFar) == [(B, HowFar(False))]


def test_unicasts_to_oneself_are_taken_without_a_message() -> None:
    s = script()
    first = send(s, WINDOW, A)
    late = send(s, 1, A)
    s.up(first)
    take(s)
    assert late.seqno == 2
    assert s.sent(Taken) == []


def test_a_destination_outside_the_view_is_not_waited_for() -> None:
    s = script()
    stranger = Address("d", 1)
    numbers = [send(s, WINDOW, stranger).seqno for _ in range(3)]
    assert numbers == [1, 2, 3]
    assert flow(s).ready(stranger)


# Receivers that leave, return, and start elsewhere.


def test_a_receiver_that_leaves_no_longer_holds_up_the_sender() -> None:
    s = script()
    send_all_taken_by_us(s, WINDOW)
    late = send(s, 1)
    s.hear(B, Flow, Taken(0, 1))
    assert late.seqno == 0
    s.view(A, B)
    assert late.seqno == 2
    assert s.stack.rules["flow.receiver_left"] == 1
    assert s.events(Writable)


def test_a_new_receiver_owes_nothing_for_what_was_sent_before_it_came() -> None:
    s = script()
    s.view(A, B)
    send_all_taken_by_us(s, 900)
    s.view(A, B, C)
    send_all_taken_by_us(s, 100)
    late = send(s, 1)
    s.hear(B, Flow, Taken(0, 2))
    assert late.seqno == 3  # C owes a hundred bytes, which is within the window
    send_all_taken_by_us(s, 950)
    assert not flow(s).ready(None)  # and now it owes more


def test_what_waited_for_a_receiver_that_left_is_passed_down_in_order_and_whole() -> None:
    s = script()
    send(s, WINDOW, B)
    waiting = [send(s, WINDOW, B, TRAIN) for _ in range(5)]  # several windows: a train must not lose its tail
    s.view(A, C)
    assert [p.seqno for p in waiting] == [2, 3, 4, 5, 6]
    assert s.stack.held()["FLOW.waiting"] == 0
    assert flow(s).ready(B)


def test_a_stream_that_opens_anew_is_reported_as_taken_up_to_there() -> None:
    s = script()
    s.event(StreamOpened(B, 8))
    assert s.sent(Taken) == [(B, Taken(0, 7))]
    s.hear(B, Flow, HowFar(True))
    assert s.sent(Taken) == [(B, Taken(0, 7))]
    assert s.events(StreamOpened) == [StreamOpened(B, 8)]


def test_a_stream_that_opens_where_we_are_past_is_reported_as_far_as_we_are() -> None:
    s = script()
    s.up(*(bundle_from(B, n, 10) for n in range(1, 10)))
    take(s)
    s.event(StreamOpened(B, 4))
    assert s.sent(Taken) == [(B, Taken(0, 9))]


def test_a_sender_that_we_suspect_in_error_still_gets_its_credit() -> None:
    s = script()
    s.up(bundle_from(B, 1, 200))
    take(s)
    s.view(A, C)
    s.hear(B, Flow, HowFar(True))
    assert s.sent(Taken) == [(B, Taken(0, 1))]
    s.view(A, B, C)
    s.up(bundle_from(B, 2, 250))
    take(s)
    assert s.sent(Taken) == [(B, Taken(0, 2))]


def test_a_new_incarnation_starts_with_a_clean_account() -> None:
    s = script()
    s.up(bundle_from(B, 1, 10))
    take(s)
    s.view(A, Address("b", 2), C)
    s.hear(B, Flow, HowFar(True))
    assert s.sent(Taken) == []


# What peers may do to us.


def test_credit_from_someone_who_is_not_in_the_view_is_ignored() -> None:
    s = script()
    send_all_taken_by_us(s, WINDOW)
    late = send(s, 1)
    s.hear(Address("d", 1), Flow, Taken(0, 99))
    s.hear(Address("d", 1), Flow, Taken(7, 99))
    assert late.seqno == 0


def test_a_malformed_message_is_counted_and_survived() -> None:
    s = script()
    packet = Packet(b"", None, Flow.id)
    packet.sender = B
    s.up(packet, bundle_from(B, 1, 10))
    assert flow(s).stats["malformed"] == 1
    assert s.delivered() == [1]


def test_credit_messages_go_no_further_up() -> None:
    s = script()
    s.hear(B, Flow, Taken(0, 0))
    s.hear(B, Flow, HowFar(True))
    assert s.arrived() == []


def test_a_stopped_member_asks_no_more() -> None:
    s = script()
    send(s, WINDOW)
    send(s, 1)
    s.stack.stop()
    s.run(10)
    assert s.sent(HowFar) == []


# Bounds.


def net() -> Net:
    return Net(*(script(local) for local in (A, B, C)))


def test_a_message_of_many_windows_passes_if_each_part_is_taken() -> None:
    group = net()
    a = group.members[A]
    parts = [send(a, 400, None, TRAIN) for _ in range(50)]
    for _ in range(100):
        group.run(0.01)
        for member in group.members.values():
            take(member)
    assert [p.seqno for p in parts] == list(range(1, 51))


Step = tuple[str, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 700)),
        st.tuples(st.sampled_from(["take a", "take b", "take c"]), st.integers(1, 5)),
        st.tuples(st.sampled_from(["carry", "lose credit", "wait"]), st.just(0)),
    ),
    max_size=80,
)


@given(steps)
def test_however_slow_somebody_is_it_never_holds_more_than_a_window_and_a_bundle_of_a_sender(steps: list[Step]) -> None:
    group = net()
    a = group.members[A]
    sizes: list[int] = []
    packets: list[Packet] = []
    for what, number in steps:
        if what == "send":
            sizes.append(number)
            packets.append(send(a, number))
        elif what.startswith("take"):
            take(group.members[Address(what[-1], 1)], number)
        elif what == "carry":
            group.carry()
        elif what == "lose credit":
            group.carry(lambda source, target, packet: packet.proto == Flow.id)
        else:
            group.run(EVERY)
        for member in group.members.values():
            untaken = sum(len(p.body) for batch in member.roof.batches for p in batch)
            assert untaken < WINDOW + 700
        stamped = [p for p in packets if p.seqno]
        assert [p.seqno for p in stamped] == list(range(1, len(stamped) + 1))
        assert packets[: len(stamped)] == stamped  # in the order in which they were sent
    for _ in range(60 + len(sizes)):  # and in the end everything arrives
        group.run(EVERY)
        for member in group.members.values():
            take(member)
    assert all(p.seqno for p in packets)
    assert a.stack.held()["FLOW.waiting"] == 0
