"""Traces: what a node did, one event a line, in a schema that tools may rely on (docs/trace.md).

A tracer is off unless asked for; code on a hot path asks `trace.on` first. Events are per bundle, not per message, and
carry a checksum of the content. There is no global order across real nodes: `n` orders the events of one incarnation
of one node, and anything between nodes follows from views, positions and causality.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1
UNTRACED = "coterie.trace"
"""Nothing is written about queues whose names begin with this: they hold traces."""

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def is_text(text: str) -> bool:
    """Whether it can be written as UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _spelled(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_spelled(name): _spelled(each) for name, each in value.items()}
    return [_spelled(each) for each in value] if isinstance(value, list | tuple) else value


@dataclass(slots=True)
class Event:
    """One line of a trace. What does not apply to the kind is None and is left out of the JSON form."""

    run: str
    """Which run: all nodes of one cluster or one simulation share it."""
    node: str
    """The node's name."""
    inc: int
    """The node's incarnation: a restart is another one."""
    n: int
    """Number of this event within the incarnation, from 0 without holes."""
    t: float
    """Seconds: virtual in the simulator, monotonic on real nodes."""
    kind: str
    """What happened: see KINDS."""
    wall: float | None = None
    """Wall clock seconds (real nodes only)."""
    view: str | None = None
    """View id in which it happened, as `counter@creator#incarnation`."""
    pos: int | None = None
    """Position in the total order."""
    sender: str | None = None
    """Address of whoever sent the bundle, as `name#incarnation`."""
    first: int | None = None
    """First sequence number concerned."""
    last: int | None = None
    """Last sequence number concerned."""
    count: int | None = None
    """How many messages (or bytes, or entries: see the kind)."""
    sum: int | None = None
    """CRC-32 of the bundle's body."""
    queue: str | None = None
    """Queue identity, as `name#incarnation`."""
    data: dict[str, Json] = field(default_factory=dict)
    """What else the kind needs."""

    def to_json(self) -> str:
        """The line, without its end. Keys in a fixed order, so that equal events are equal bytes. Names of bytes that
        are no text are told as Python would spell them."""
        line = self._line()
        text = json.dumps(line, separators=(",", ":"), ensure_ascii=False)
        return text if is_text(text) else json.dumps(_spelled(line), separators=(",", ":"), ensure_ascii=False)

    @property
    def is_text(self) -> bool:
        """Whether all of it can be written as it is: half a surrogate pair cannot, though JSON can spell it."""
        return is_text(json.dumps(self._line(), ensure_ascii=False))

    def _line(self) -> dict[str, Any]:
        line: dict[str, Any] = {"v": SCHEMA_VERSION}
        for name in FIELDS:
            value = getattr(self, name)
            if value is not None:
                line[name] = value
        if self.data:
            line["data"] = self.data
        return line

    @classmethod
    def from_json(cls, line: str) -> Event:
        """Read a line back. Raises ValueError if it is not an event of a version that this code knows."""
        raw = json.loads(line)
        if not isinstance(raw, dict):
            raise ValueError("not a JSON object")
        if raw.pop("v", None) != SCHEMA_VERSION:
            raise ValueError(f"not a trace event of schema version {SCHEMA_VERSION}")
        data = raw.pop("data", {})
        if not raw.keys() <= _KNOWN:
            unknown = raw.keys() - _KNOWN
            raise ValueError(f"unknown keys: {', '.join(sorted(unknown))}")
        for name, types in _TYPES.items():
            value = raw.get(name)
            if (value is None and name in _REQUIRED) or (value is not None and value.__class__ not in types):
                raise ValueError(f"{name}: {value!r} is not what it should be")
        if not isinstance(data, dict):
            raise ValueError("data: not an object")
        return cls(**raw, data=data)


FIELDS = (
    "run", "node", "inc", "n", "t", "wall", "kind", "view", "pos", "sender", "first", "last", "count", "sum", "queue",
)  # fmt: skip
_KNOWN = frozenset(FIELDS)
_REQUIRED = ("run", "node", "inc", "n", "t", "kind")
_TYPES: Mapping[str, tuple[type, ...]] = {
    name: (str,) if name in ("run", "node", "kind", "view", "sender", "queue") else (int,) for name in FIELDS
} | {"t": (int, float), "wall": (int, float)}
"""Exactly these: to Python, true is a whole number too."""

KINDS: dict[str, str] = {
    "start": "a node's stack started; data.stack names its protocols",
    "stop": "a node's stack stopped in good order",
    "send": "a bundle got its sequence number; data.to: 'all' or an address, data.conn for unicasts, data.app",
    "receive": "a bundle of another member arrived for the first time (sender, first, last)",
    "deliver": "a bundle was handed to the application, or to the protocol it is for (data.app false); sum, count",
    "discard": "a member forgot the bundles of `sender` up to `last`; data.reason: stable, left, acked",
    "retransmit": "bundles were sent again (sender, first, last); data.to, data.reason: asked, highest, first",
    "ack": "a cumulative ack was sent; data.to, data.conn, last",
    "conn": "a unicast connection changed; data.side: send or receive, data.peer, data.conn, data.state",
    "view": "a view was installed; data.members, data.start: {address: number at which its stream starts here}, "
    "data.welcomed: {address: number at which ours starts there}, data.waiting: who is not owed ours yet; "
    "data.before: the view before it, data.agreed: true if the view is the same everywhere, "
    "data.subgroups: [[view id, members]] of a merge",
    "suspect": "data.members are suspected; data.proof: true if death is proven",
    "unsuspect": "data.members are trusted again",
    "block": "the gate shut: no application multicast is stamped before `unblock`; data.limit: seconds until then",
    "unblock": "the gate opened",
    "flush_joined": "a member takes part in a flush; data.leader, data.number, data.mode: view, shared, exclusive",
    "flush_left": "a member's part in a flush is over; data.leader, data.number, "
    "data.reason: stop, abort, suspect, view, timeout, failed",
    "flush_started": "its leader began a flush; data.number, data.mode, data.targets",
    "flush_held": "its leader knows that all data.targets are flushed and blocked; data.number, data.mode, "
    "data.total: it is for the whole view, whoever comes",
    "flush_ended": "its leader released a flush; data.number",
    "flush_lost": "its holder was told that an exclusive flush does not hold any more; data.number, data.reason",
    "flush_failed": "a flush failed at its leader; data.number, data.mode, data.reason",
    "suspend": "the view handler was suspended; data.reason: views, merge, merge_req; data.timeout of its Resumer",
    "resume": "the view handler was resumed; data.reason: done, failed, merge_view, leader_gone, resumer, cancelled",
    "state_cut": "the state was cut here; data.role: provider or requester, data.id, data.digest: {address: number}",
    "state_sent": "a provider has sent all of a state; data.id, count in bytes, sum",
    "state_set": "a requester's application has the whole state; data.id, count in bytes, sum",
    "state_failed": "a transfer ended before its end; data.id, data.reason",
    "ordered": "a bundle is here and its place in the total order is known (view, pos, sender, first)",
    "held": "a member was told that the order up to `pos` of `view` is held; data.by: majority or all, data.members; "
    "data.of, data.need: who counts, if the application has said so",
    "stable": "every member of the view has `sender`'s bundles up to `last`",
    "buffers": "sizes of what is kept; data: {name: bytes or entries}",
    "recovered": "what a restart found: clean, damage and data.queues; then for each queue its positions, data.next "
    "and data.redelivered",
    "synced": "everything up to `last` of the store's log is durable",
    "generation": "data.number of a store that is replaced: data.state opened (at a start), begun, filled, whole "
    "(from here on it counts) or dropped; `last`: how far the log has come",
    "logged": "a clustered broker's store was told everything up to event data.number of the cluster's log, and its "
    "own log goes up to `last`; data.life: of which life of the store that is",
    "queue": "a queue was declared (data.type, data.durable) or deleted; data.state",
    "client": "a channel or consumer was opened or closed; data.what, data.state, data.channel, data.tag",
    "publish": "messages of one channel were routed to `queue`, or to none; data.channel, data.numbers, "
    "data.unroutable, data.refused",
    "confirm": "a publisher is told that all up to `last` are safe; data.channel, data.refused",
    "enqueue": "messages took their places in a queue; data.persistent, data.sums, data.log; data.channel and "
    "data.numbers of their publisher, or data.source and data.letters of dead letters; data.tx",
    "duplicate": "publishes to a queue were dropped, as it has seen their message ids; data.channel, data.numbers, "
    "data.tx",
    "acquire": "messages were taken for data.holder; data.tag, data.no_ack, data.redelivered",
    "handed": "acquired messages are on their way to the client of data.holder; data.redelivered, data.sums",
    "accept": "a consumer has done with messages; data.holder",
    "release": "messages went back to their places; data.redelivered, data.tx",
    "reject": "a consumer refused messages; data.holder",
    "dequeue": "messages left their queue; data.reason, data.dies: as dead letters, data.log, data.tx",
    "dead_letter": "messages that left `queue` go to queue data.to, or nowhere; data.reason",
    "tx": "a transaction begins (data.enqueues, data.accepts, data.rejects, data.requeues), ends or is committed; "
    "data.tx, data.state, data.channel",
    "unsettled": "at rest: what the client of data.holder has of a queue",
    "inventory": "at rest: what a queue holds; data.ready, data.held, data.next",
    "serving": "a clustered broker serves or not, and with whom; data.state, data.cluster, data.voters, data.members: "
    "who is in step, data.epoch, data.number: events of the log that it has applied",
    "void": "an event could not be carried out, at any broker; data.epoch, data.era, data.number, data.event",
    "astray": "brokers were found to have made another state of the log; data.members, data.epoch, data.number",
    "strays": "a simulated broker was told to make another state of the log; data.life",
    "leaves": "a clustered broker cannot follow the log any more; data.error, data.excused",
    "replica": "what a clustered broker has after an event of the log that a majority holds; data.epoch, data.era, "
    "data.number, data.queues: {queue: [messages, next position, sum]}, data.holders: {queue: sum}, data.wiring, "
    "data.voters, data.updated: it got its state from another broker",
    "given": "a clustered broker hands messages to a client; data.redelivered, data.sums",
    "read": "messages go to somebody who reads them in bulk; data.sums; data.holder, or data.lease: by which lease",
    "promise": "a client is told that what it asked for was done; data.number: that it is on disk up to this event, "
    "data.rests: {address: life} of the brokers that have said so",
    "owner": "a queue changed hands",
    "credit": "a consumer's credit changed",
    "wiring": "queues, exchanges or bindings changed",
    "voters": "the voter set changed",
    "audit": "somebody did something, or tried: data.action, data.user, data.from, data.door, data.result, data.why; "
    "count: how often, if it is told in one line (docs/audit-log.md)",
    "fault": "the simulator injected a fault; data.fault and its parameters",
    "heal": "a fault ended; data.fault; data.last: true for the last one of the plan",
    "crash": "the node died",
    "restart": "the node starts again, as the incarnation of this event",
    "end": "the run is over; data.live: the addresses that run, data.held: what each still holds back",
    "truncated": "the trace of a killed node ends here: later events of this incarnation are missing, not absent",
}


class Tracer:
    """Writes one node's events to a sink. `on` is False without one, and then nothing else is called."""

    __slots__ = ("_clock", "_flush", "_n", "_sink", "_wall", "inc", "node", "on", "run")

    def __init__(
        self,
        run: str = "",
        node: str = "",
        inc: int = 0,
        sink: Callable[[Event], None] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        wall: Callable[[], float] | None = None,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self.on = sink is not None
        self.run, self.node, self.inc = run, node, inc
        self._sink, self._clock, self._wall, self._flush = sink, clock, wall, flush
        self._n = 0

    def emit(
        self,
        kind: str,
        *,
        view: object = None,
        pos: int | None = None,
        sender: object = None,
        first: int | None = None,
        last: int | None = None,
        count: int | None = None,
        sum: int | None = None,
        queue: str | None = None,
        **data: Json,
    ) -> None:
        """Record an event. Addresses and view ids are given as they are and written as text."""
        if self._sink is None or (queue is not None and queue.startswith(UNTRACED)):
            return
        event = Event(
            self.run,
            self.node,
            self.inc,
            self._n,
            self._clock(),
            kind,
            None if self._wall is None else self._wall(),
            None if view is None else str(view),
            pos,
            None if sender is None else str(sender),
            first,
            last,
            count,
            sum,
            queue,
            {key: value for key, value in data.items() if value is not None},
        )
        self._n += 1
        self._sink(event)

    def flush(self) -> None:
        """Write out what is buffered: called before anything that a property depends on becomes visible to others."""
        self._flush()
