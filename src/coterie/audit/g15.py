"""G15 unicast: per connection exactly once, in order, without gaps, from the first; flushed on close.

A connection is one sender, one receiver (both with their incarnations) and one connection id. Ids of a pair rise: once
something of a newer connection was delivered, nothing of an older one is. When the sending side ends a connection, and
not because the peer left, everything that was sent on it is delivered, if the receiver lives.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from coterie.audit.fold import NOBODY, Found, Property, Split, Violation
from coterie.audit.lives import LIFE_KINDS, Lives
from coterie.audit.numbers import Line, Numbers
from coterie.trace import Event

Pair = tuple[str, str]
"""Sender and receiver."""


class Connection:
    """What is known of one connection, from both of its ends."""

    __slots__ = ("close_event", "closed_upto", "delivered", "first_delivery", "first_sent", "line", "open_sends")

    def __init__(self) -> None:
        self.first_sent: Event | None = None
        self.open_sends: dict[int, Event] = {}
        """Sent, and not seen delivered."""
        self.closed_upto: int | None = None
        """The highest number sent when the sending side closed."""
        self.close_event: Event | None = None
        self.line = Line()
        self.first_delivery: Event | None = None
        self.delivered = Numbers()


@dataclass(slots=True)
class State:
    connections: dict[tuple[Pair, int], Connection] = field(default_factory=dict)
    newest: dict[tuple[Pair, bool], tuple[int, Event]] = field(default_factory=dict)
    """The highest connection id of which something was delivered: to the application, to protocols. What is for the
    application may have to wait above, for a view, while protocols get what is theirs."""
    lives: Lives = field(default_factory=Lives)
    found: Found = field(default_factory=lambda: Found("G15"))


def pair_of(event: Event) -> Pair | None:
    """Which sender and receiver an event of a unicast connection is about."""
    who, data = f"{event.node}#{event.inc}", event.data
    if event.kind == "deliver":
        return (event.sender, who) if event.sender is not None else None
    if event.kind == "send":
        to = data.get("to")
        return (who, to) if isinstance(to, str) else None
    peer = data.get("peer")
    if not isinstance(peer, str):
        return None
    return (who, peer) if data.get("side") == "send" else (peer, who)


def by_pair(event: Event) -> Hashable | None:
    if event.kind in LIFE_KINDS:
        return None
    return NOBODY if event.data.get("conn") is None else pair_of(event)


class Unicast(Property[State]):
    name = "G15"
    title = "unicast"
    sentence = "Per connection, everything is delivered exactly once and in order; a connection is flushed on close."
    split_by = Split("connection: run, sender and receiver", by_pair)
    kinds = ("send", "deliver", "conn", *LIFE_KINDS)

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        conn = event.data.get("conn")
        if conn is None:
            if event.kind in LIFE_KINDS:
                state.lives.note(event)
            return
        pair = pair_of(event)
        if pair is None or not isinstance(conn, int):
            return
        connection = state.connections.get((pair, conn))
        if connection is None:
            connection = state.connections[pair, conn] = Connection()
        if event.kind == "conn":
            self._closed(connection, event)
        elif event.first is not None:
            if event.kind == "send":
                self._send(state, connection, pair, conn, event)
            else:
                self._deliver(state, connection, pair, conn, event)

    def _send(self, state: State, connection: Connection, pair: Pair, conn: int, event: Event) -> None:
        number = event.first
        assert number is not None
        if connection.close_event is not None:
            text = f"{pair[0]} sent number {number} to {pair[1]} on connection {conn}, which it had closed"
            state.found.add(text, connection.close_event, event)
        if connection.first_sent is None:
            connection.first_sent = event
        if number not in connection.delivered:
            connection.open_sends[number] = event

    def _closed(self, connection: Connection, event: Event) -> None:
        data = event.data
        if data.get("side") == "send" and data.get("state") == "CLOSED":
            connection.close_event = event
            if data.get("peer_left") is not True:
                connection.closed_upto = max(connection.open_sends, default=None)

    def _deliver(self, state: State, connection: Connection, pair: Pair, conn: int, event: Event) -> None:
        number = event.first
        assert number is not None
        for_application = event.data.get("app") is not False
        newest = state.newest.get((pair, for_application))
        if newest is None or newest[0] < conn:
            state.newest[pair, for_application] = conn, event
        elif newest[0] > conn:
            text = f"{pair[1]} delivered number {number} of {pair[0]}'s connection {conn} after connection {newest[0]}"
            state.found.add(text, newest[1], event)
        line = connection.line
        before = line.last
        problem = line.deliver(number, for_application, event)
        if problem is not None:
            state.found.add(f"{pair[1]} delivered {pair[0]}'s connection {conn}: {problem}", before, event)
        if connection.first_delivery is None and line.next is not None:
            connection.first_delivery = event
        connection.delivered.add(number)
        connection.open_sends.pop(number, None)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for (pair, conn), connection in state.connections.items():
            _started_at_the_first(state, pair, conn, connection)
            _flushed(state, pair, conn, connection)
        return state.found.close()


def _started_at_the_first(state: State, pair: Pair, conn: int, connection: Connection) -> None:
    sent, first = connection.first_sent, connection.line.first
    if sent is not None and sent.first is not None and first is not None and first > sent.first:
        text = f"{pair[1]} delivered {pair[0]}'s connection {conn} from number {first}, but it began at {sent.first}"
        state.found.add(text, sent, connection.first_delivery)


def _flushed(state: State, pair: Pair, conn: int, connection: Connection) -> None:
    if connection.closed_upto is None or state.lives.ended(pair[1]):
        return
    lost = [number for number in sorted(connection.open_sends) if number <= connection.closed_upto]
    if lost:
        text = f"{pair[0]} closed connection {conn} to {pair[1]}, which never delivered number {lost[0]}"
        state.found.add(text, connection.open_sends[lost[0]], connection.close_event)
