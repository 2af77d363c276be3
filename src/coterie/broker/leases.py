"""Named leases of a queue: messages that are one reader's, whatever becomes of its processes.

A lease is a holder, as a consumer is, that belongs to no connection and to no broker. What it takes from the ready ones
gets an *offset*, which counts what the lease has ever taken: so a range of offsets names the same messages for ever,
in whichever order positions were ready. Each step (`LeaseStep`) is one decision that every broker takes alike, and
what a lease is then is kept in one unit with what happened to its messages.

| step    | what happens to messages                                  | to the lease                        |
|---------|-----------------------------------------------------------|-------------------------------------|
| acquire | ready ones, as consumers would get them: ACQUIRED         | it begins, if there is none         |
| retire  | those below an offset: accepted                           |                                     |
| release | those from an offset on: READY again, flagged redelivered |                                     |
| take    |                                                           | another session may change it       |
| end     | all: READY again, flagged redelivered                     | it ends, when it holds nothing more |

One step concerns `lease_rows_max` messages at most; its answer says whether there is more to do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coterie.amqp.wire.codes import ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, RESOURCE_LOCKED
from coterie.broker import records, validation
from coterie.broker.delivery import add_range, count_of, positions_in
from coterie.broker.lease_expiry import LeaseExpiry
from coterie.broker.observer import Reason
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range
    from coterie.broker.storage import Record
    from coterie.runtime.base import Runtime

ACQUIRE: Final = "acquire"
RETIRE: Final = "retire"
RELEASE: Final = "release"
TAKE: Final = "take"
END: Final = "end"
NAME_MAX: Final = 255
"""Characters of the name of a lease, and of a session."""
PIECES_MAX: Final = 10_000
"""Pieces of one lease: it takes nothing more while it has so many."""


class Gone(ProtocolError):
    """What is asked about was there, and will never be again."""

    def __init__(self, text: str) -> None:
        super().__init__(NOT_FOUND, text)


class Piece(NamedTuple):
    """Neighbours: their offsets and positions rise together, and all of them have the same flag."""

    offset: int
    first: int
    last: int
    redelivered: bool

    @property
    def stop(self) -> int:
        """The offset behind it."""
        return self.offset + self.last - self.first + 1

    def cut(self, first: int, stop: int) -> Piece:
        """The part with offsets from `first` up to, and without, `stop`."""
        begin, end = max(first, self.offset), min(stop, self.stop)
        shift = self.first - self.offset
        return Piece(begin, begin + shift, end - 1 + shift, self.redelivered)


class Lease:
    """One of them; to its messages it is the holder."""

    __slots__ = (
        "bytes", "count", "effect_name", "id", "name", "next", "pieces", "queue", "replaced", "session", "since",
        "used", "user",
    )  # fmt: skip

    def __init__(self, queue: Queue, name: str, id: int, user: str, session: str, since: int) -> None:
        self.queue = queue
        self.name = name
        self.id = id
        """No other lease of any queue has or had it."""
        self.effect_name = b"lease %d" % id
        self.user = user
        self.session = session
        """Who may change it."""
        self.since = since
        """Milliseconds since 1970."""
        self.next = 0
        """The offset of what it takes next."""
        self.pieces: list[Piece] = []
        """What it holds, by rising offsets."""
        self.replaced: set[int] = set()
        """Positions that it holds of which a last-value queue has had a newer value: they are not given back."""
        self.count = 0
        self.bytes = 0
        self.used = 0.0
        """When a step of it was taken last, by this broker's clock."""

    def __repr__(self) -> str:
        return f"<Lease {self.name} of {self.queue.name}: {self.count}>"

    @property
    def first(self) -> int:
        """The lowest offset that it holds."""
        return self.pieces[0].offset if self.pieces else self.next

    @property
    def lag(self) -> int:
        """How many messages its reader has not retired: those that it holds, and those that it may take."""
        return self.queue.ready + self.count

    @property
    def idle(self) -> float:
        """Seconds since a step of it was taken, as far as this broker knows."""
        return self.queue.leases.expiry.idle(self)

    def add(self, piece: Piece, size: int) -> None:
        """It holds these too; their offsets are above all others. Neighbours of the last piece become a part of it."""
        pieces = self.pieces
        last = pieces[-1] if pieces else None
        if (
            last
            and last.stop == piece.offset
            and last.last + 1 == piece.first
            and last.redelivered == piece.redelivered
        ):
            pieces[-1] = last._replace(last=piece.last)
        else:
            pieces.append(piece)
        self.count += piece.stop - piece.offset
        self.bytes += size

    def extend(self, ranges: Sequence[Range]) -> None:
        """These, which are in the queue, are held with the next offsets."""
        table = self.queue.table
        for first, stop in ranges:
            flagged = table.flagged_of([(first, stop)])
            for begin, end in [*flagged, (stop, stop)]:
                for low, high, flag in ((first, begin, False), (begin, end, True)):
                    if low < high:
                        self.add(Piece(self.next, low, high - 1, flag), table.bytes_of([(low, high)]))
                        self.next += high - low
                first = end

    def between(self, first: int, stop: int) -> Iterator[Piece]:
        """What it holds of these offsets, `stop` not among them."""
        pieces = self.pieces
        at = max(bisect_right(pieces, first, key=lambda piece: piece.offset) - 1, 0)
        while at < len(pieces) and pieces[at].offset < stop:
            if pieces[at].stop > first:
                yield pieces[at].cut(first, stop)
            at += 1

    def fits(self, first: int, size: int, most: int) -> int:
        """The offset up to which what it holds from `first` on has so many bytes together: one message at least, and
        `most` of them at most."""
        left, stop = size, first
        for piece in self.between(first, self.next):
            for at, length in enumerate(self.queue.table.sizes([(piece.first, piece.last + 1)]), piece.offset):
                left -= length
                if most <= 0 or (left < 0 and stop > first):
                    return stop
                most -= 1
                stop = at + 1
        return self.next

    def drop(self, first: int, stop: int, ranges: list[Range], size: int) -> None:
        """It holds these, which are those between the offsets, no more."""
        kept: list[Piece] = []
        for piece in self.pieces:
            if piece.stop <= first or piece.offset >= stop:
                kept.append(piece)
            else:
                if piece.offset < first:
                    kept.append(piece.cut(piece.offset, first))
                if piece.stop > stop:
                    kept.append(piece.cut(stop, piece.stop))
        self.pieces = kept
        if self.replaced:
            self.replaced.difference_update(positions_in(ranges))
        self.count -= count_of(ranges)
        self.bytes -= size

    def end_step(self) -> LeaseStep:
        """Ends it, unless another session takes it over before."""
        return LeaseStep(END, self.name, self.user, session=self.session, id=self.id)

    def record(self) -> Record:
        return {
            "queue": self.queue.incarnation, "name": self.name, "id": self.id, "user": self.user,
            "session": self.session, "since": self.since, "next": self.next,
            "pieces": [[*each] for each in self.pieces], "replaced": sorted(self.replaced),
        }  # fmt: skip

    def shape(self, pieces: bool = True) -> dict[str, Any]:
        """As tools and readers are told."""
        found: dict[str, Any] = {
            "vhost": self.queue.vhost.name, "queue": self.queue.name, "incarnation": self.queue.incarnation,
            "name": self.name, "id": self.id, "user": self.user, "session": self.session, "since": self.since,
            "first": self.first, "next": self.next, "count": self.count, "bytes": self.bytes,
            "lag": self.lag, "idle": int(self.idle),
            "expires_after": self.queue.leases.expiry.after,
            "first_position": min((piece.first for piece in self.pieces), default=None),
            "last_position": max((piece.last for piece in self.pieces), default=None),
        }  # fmt: skip
        return found | {"pieces": [[*each] for each in self.pieces]} if pieces else found


class Leases:
    """Of one queue."""

    __slots__ = ("_by_name", "_queue", "bytes", "count", "expiry")

    def __init__(self, queue: Queue, runtime: Runtime) -> None:
        self._queue = queue
        self.expiry = LeaseExpiry(queue, runtime)
        self._by_name: dict[str, Lease] = {}
        self.count = 0
        """Messages that any of them holds."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Lease]:
        return iter([*self._by_name.values()])

    def get(self, name: str) -> Lease | None:
        return self._by_name.get(name)

    # Steps.

    def begin(self, name: str, user: str, session: str) -> Lease:
        vhost = self._queue.vhost
        since = int(vhost.cluster.wall() * 1000)
        self._queue.keep()
        lease = self._by_name[name] = Lease(self._queue, name, vhost.new_incarnation(), user, session, since)
        return lease

    def hold(self, lease: Lease, ranges: list[Range]) -> None:
        """Ready ones, in the order in which it takes them."""
        queue, before = self._queue, lease.bytes
        queue.keep()
        lease.extend(ranges)
        count = count_of(ranges)
        self._count(count, lease.bytes - before)
        queue.lease(ranges, lease)
        queue.table.tie(ranges)
        queue.counters.got += count
        queue.counters.redelivered += count_of(queue.table.flagged_of(ranges))
        if queue.expiry.mortal:
            queue.expiry.arm()  # there may be another head

    def retire(self, lease: Lease, stop: int, most: int) -> bool:
        """Accept what is below the offset; whether there is more of it."""
        self._queue.keep()
        pieces, more = _limited(lease.between(0, stop), most)
        if pieces:
            ranges = ranges_in(pieces)
            traced = self._queue.vhost.traced
            if traced is not None:
                traced.retiring(lease, ranges)
            self._drop(lease, pieces[0].offset, pieces[-1].stop, ranges)
            self._queue.dequeue(lease, ranges, Reason.ACCEPTED)
        return more

    def release(self, lease: Lease, first: int, most: int) -> bool:
        """Give back what is from the offset on, the highest first; whether there is more of it."""
        self._queue.keep()
        pieces, more = _limited_back([*lease.between(first, lease.next)], most)
        if pieces:
            ranges = ranges_in(pieces)
            self._drop(lease, pieces[0].offset, pieces[-1].stop, ranges)
            self._queue.table.untie(ranges)
            self._queue.give_back(lease, ranges, redelivered=True)
        return more

    def _drop(self, lease: Lease, first: int, stop: int, ranges: list[Range]) -> None:
        size = self._queue.table.bytes_of(ranges)
        lease.drop(first, stop, ranges, size)
        self._count(-count_of(ranges), -size)

    def _count(self, count: int, size: int) -> None:
        self.count += count
        self.bytes += size

    def end(self, lease: Lease) -> None:
        self._queue.keep()
        del self._by_name[lease.name]
        self._tell(lease.name, None)
        self._save(lease.name, None)

    def end_all(self) -> None:
        """The queue is gone, with what they held."""
        for lease in self:
            self.end(lease)
        self.count = self.bytes = 0

    def image(self) -> tuple[dict[str, Lease], int, int]:
        return dict(self._by_name), self.count, self.bytes

    def restore_all(self, by_name: dict[str, Lease], count: int, size: int) -> None:
        """As they were."""
        self._by_name, self.count, self.bytes = by_name, count, size
        self.expiry.arm()

    # What is kept.

    def save(self, lease: Lease) -> None:
        self._tell(lease.name, [lease.id, lease.user, lease.session, lease.since, lease.next, lease.count])
        self._save(lease.name, lease.record())

    def _save(self, name: str, record: Record | None) -> None:
        queue, store = self._queue, self._queue.vhost.store
        if store in queue.observers:
            store.save(records.LEASE, records.key_of(queue.vhost.name, queue.name, name), record)

    def _tell(self, name: str, told: list[object] | None) -> None:
        """What it holds, its messages have told."""
        effects = self._queue.journal.effects
        if effects.on:
            effects.record(records.LEASE, f"{self._queue.incarnation} {name}", told)

    def records(self) -> list[Record]:
        return [lease.record() for lease in self._by_name.values()]

    def restore(self, record: dict[str, Any]) -> None:
        """As the store kept it, or another broker has it; what it holds is in the queue, and ready."""
        queue, table = self._queue, self._queue.table
        lease = Lease(queue, record["name"], record["id"], record["user"], record["session"], record["since"])
        for piece in (Piece(*each) for each in record["pieces"]):
            ranges = table.ready_of([(piece.first, piece.last + 1)])  # what is missing was transient
            for first, stop in ranges:
                offset = piece.offset + first - piece.first
                lease.add(Piece(offset, first, stop - 1, piece.redelivered), table.bytes_of([(first, stop)]))
            if ranges:
                (table.flag if piece.redelivered else table.unflag)(ranges)
                table.acquire(lease, ranges)
                table.tie(ranges)
        lease.next = record["next"]
        lease.replaced = {position for position in record.get("replaced", ()) if position in table.state.live}
        self._by_name[lease.name] = lease
        self._count(lease.count, lease.bytes)
        self.expiry.used(lease)


def ranges_in(pieces: Sequence[Piece]) -> list[Range]:
    """Positions, in the order of offsets."""
    found: list[Range] = []
    for piece in pieces:
        add_range(found, piece.first, piece.last + 1)
    return found


def _limited(pieces: Iterator[Piece], most: int) -> tuple[list[Piece], bool]:
    """The first of them, up to so many messages; and whether others follow."""
    found: list[Piece] = []
    for piece in pieces:
        if most <= 0:
            return found, True
        size = piece.stop - piece.offset
        found.append(piece if size <= most else piece.cut(piece.offset, piece.offset + most))
        if size > most:
            return found, True
        most -= size
    return found, False


def _limited_back(pieces: list[Piece], most: int) -> tuple[list[Piece], bool]:
    """The last of them."""
    found: list[Piece] = []
    more = False
    for piece in reversed(pieces):
        if most <= 0:
            more = True
            break
        size = piece.stop - piece.offset
        found.append(piece if size <= most else piece.cut(piece.stop - most, piece.stop))
        more = size > most
        most -= size
    return found[::-1], more


# Decisions.


@dataclass(frozen=True, slots=True)
class LeaseStep:
    """What somebody wants of a lease."""

    do: str
    name: str
    user: str
    operator: bool = False
    """It may do to anybody's lease what operators do."""
    session: str | None = None
    """None: none in particular, as somebody who releases it from outside."""
    id: int | None = None
    """Of the lease that is meant; None: whichever has the name."""
    rows: int | None = None
    bytes: int | None = None
    after: int | None = None
    """Take something only if this is the next offset."""
    first: int = 0
    """Positions to take from there on, or offsets to release."""
    last: int | None = None
    """Positions to take up to there."""
    upto: int = 0
    """Offsets below it are retired."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(said: dict[str, Any]) -> LeaseStep:
        """Raises TypeError or KeyError for what is none."""
        return LeaseStep(**{field.name: said[field.name] for field in fields(LeaseStep) if field.name in said})

    def check(self) -> None:
        """Raises ProtocolError 406 for what is no step of a lease."""
        if self.do not in _DEEDS:
            raise ProtocolError(PRECONDITION_FAILED, f"a lease knows no '{self.do}' (there are: {', '.join(_DEEDS)})")
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                validation.refuse(check(value), f"{name} of a lease")

    def apply(self, queue: Queue) -> Answer:
        """Raises ProtocolError; nothing has happened then."""
        self.check()
        store = queue.vhost.store
        lease = self._find(queue)
        queue.expiry.used()
        store.begin()
        try:
            return self._do(queue, lease)
        finally:
            store.end()

    def _find(self, queue: Queue) -> Lease | None:
        """The lease, if whoever asks may do that to it."""
        lease = queue.leases.get(self.name)
        if lease is None:
            if self.do != ACQUIRE:
                raise ProtocolError(NOT_FOUND, f"no lease '{self.name}' of {queue.what}")
            if self.id is not None:
                raise Gone(f"the lease '{self.name}' of {queue.what} has ended")
            self._check_new(queue)
            return None
        if lease.user != self.user and not self.operator:
            raise ProtocolError(
                ACCESS_REFUSED,
                f"the lease '{self.name}' of {queue.what} is that of the user '{lease.user}': only an administrator "
                "may change it",
            )
        if self.id is not None and self.id != lease.id:
            raise Gone(f"the lease '{self.name}' of {queue.what} has ended, and another one of that name begun")
        free = self.do == TAKE or (self.session is None and self.do in (RELEASE, END))
        if not free and self.session != lease.session:
            raise ProtocolError(
                RESOURCE_LOCKED, f"the lease '{self.name}' of {queue.what} is with another session: take it over first"
            )
        return lease

    def _check_new(self, queue: Queue) -> None:
        if queue.home is not None or queue.spec.exclusive:
            raise ProtocolError(
                PRECONDITION_FAILED, f"{queue.what} cannot be leased: it ends with a connection, or with one broker"
            )
        if len(queue.leases) >= queue.vhost.settings.leases_max:
            raise ProtocolError(PRECONDITION_FAILED, f"{queue.what} has too many leases (broker.leases_max)")

    def _do(self, queue: Queue, lease: Lease | None) -> Answer:
        leases, most = queue.leases, queue.vhost.settings.lease_rows_max
        acquired, more, new = 0, False, lease is None
        if lease is None:
            lease = leases.begin(self.name, self.user, self.session or "")
        if self.do != END:
            leases.expiry.used(lease)
        before = lease.count, lease.next, lease.session
        if self.do == ACQUIRE:
            if self.after is None or self.after == lease.next:
                ranges, more = self._select(queue, lease, most)
                acquired = count_of(ranges)
                if ranges:
                    leases.hold(lease, ranges)
        elif self.do == RETIRE:
            more = leases.retire(lease, self.upto, most)
        elif self.do == TAKE:
            queue.keep()
            lease.session = self.session or ""
        else:
            more = leases.release(lease, self.first if self.do == RELEASE else 0, most)
            if self.do == END and not more:
                leases.end(lease)
                return Answer(lease, 0, False)
        if new or (lease.count, lease.next, lease.session) != before:
            leases.save(lease)
        return Answer(lease, acquired, more)

    def _select(self, queue: Queue, lease: Lease, most: int) -> tuple[list[Range], bool]:
        """Ready ones in their order; and whether there may be others."""
        if len(lease.pieces) >= PIECES_MAX:
            return [], True
        most = most if self.rows is None else min(most, self.rows)
        found: list[Range] = []
        size = 0
        for first, stop in self._candidates(queue):
            for position, length in enumerate(queue.table.sizes([(first, stop)]), first):
                if most <= 0:
                    return found, True
                if self.bytes is not None and found and size + length > self.bytes:
                    return found, True
                add_range(found, position, position + 1)
                most -= 1
                size += length
        return found, False

    def _candidates(self, queue: Queue) -> Iterator[Range]:
        """What is ready of the positions that are asked for, and not over."""
        stop = queue.next_position if self.last is None else min(self.last + 1, queue.next_position)
        now = queue.cluster.now() if queue.expiry.mortal and queue.cluster.sifts else None
        for lane in queue.table.state.in_order():
            spans = lane.ranges(min(self.first, stop), stop)
            if now is None:
                yield from spans
            else:
                for begin, end, time in queue.table.expiries(spans):
                    if time is None or time > now:
                        yield begin, end


def _label(value: object) -> str:
    """The name of a lease, or of a session: no client writes it as a short string."""
    wrong = validation.text(value)
    if wrong or not isinstance(value, str):
        return wrong
    return "" if len(value) <= NAME_MAX else f"it may have {NAME_MAX} characters, and has {len(value)}"


def _name(value: object) -> str:
    return "it must not be empty" if value == "" else _label(value)


_DEEDS: Final = (ACQUIRE, RETIRE, RELEASE, TAKE, END)
_CHECKS: Final[dict[str, validation.Check]] = {
    "name": _name,
    "user": _label,
    "operator": validation.flag,
    "session": _label,
    "id": validation.Whole(0, 2**64 - 1),
    **dict.fromkeys(("rows", "bytes", "after", "first", "last", "upto"), validation.Whole(0)),
}
_OPTIONAL: Final = frozenset({"session", "id", "rows", "bytes", "after", "last"})


class Answer(NamedTuple):
    """Of a step that was taken."""

    lease: Lease
    acquired: int
    more: bool
    """There is, or may be, more to do: ask again."""

    def shape(self) -> dict[str, Any]:
        """At once: a lease changes."""
        place = self.lease.queue.vhost.cluster.place()
        return self.lease.shape() | {"acquired": self.acquired, "more": self.more, "at": place}
