"""The broker's trace: what happens to messages, as events that the properties B1 to B12 are judged by.

One observer of every queue, and a few calls from where clients speak. It exists only while the runtime's tracer is on;
without it a batch costs one look at None. Events are per batch: positions are `first` and `last`, with `data.ranges`
where there are holes between them. What a property depends on is written out before anybody can see its effect: before
a confirm or a commit-ok goes out, and before the store writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from coterie.broker.consumer import Consumer, Sink
from coterie.broker.delivery import add_range, count_of, merged, positions_in, ranges_of
from coterie.broker.leases import Lease
from coterie.broker.observer import DEADLY, Arrived, QueueObserver, Reason
from coterie.broker.switchboard import kept
from coterie.trace import UNTRACED, Json, Tracer

if TYPE_CHECKING:
    from coterie.broker.delivery import Delivery, HeldRanges
    from coterie.broker.message import Message
    from coterie.broker.publish import Publish, Routed
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range
    from coterie.broker.rows import Row
    from coterie.broker.storage import Recovered, Store
    from coterie.broker.transaction import Transaction
    from coterie.broker.vhost import Vhost

SPAN_MAX = 1_000_000
"""Readers take numbers from `first` to `last` that are further apart for a corrupt line."""


class BrokerTrace(QueueObserver):
    """Of one broker."""

    def __init__(self, trace: Tracer, store: Store) -> None:
        self._trace = trace
        self._store = store
        self._names = 0
        self._channel = ""
        """Whose publishes are being routed just now."""
        self._numbers: dict[Message, int] = {}
        """Their publish sequence numbers."""
        self._routed: dict[Queue, list[int]] = {}
        self._source: Queue | None = None
        """Whose dead letters are on their way just now."""
        self._letters: dict[Message, int] = {}
        """By letter: the position that the message had there."""
        self._transaction: str | None = None

    # Life.

    def started(self) -> None:
        self._trace.emit("start", stack=["BROKER"])

    def stopped(self, done: Callable[[], None]) -> Callable[[], None]:
        """`done`, which is the last thing that happens."""

        def stopped() -> None:
            self._trace.emit("stop")
            self._trace.flush()
            done()

        return stopped

    def recovered(self, found: Recovered, queues: Iterable[Queue]) -> None:
        names: list[Json] = [name_of(queue) for queue in queues if not queue.name.startswith(UNTRACED)]
        self._trace.emit(
            "recovered", clean=found.clean, damage=len(found.damage), number=found.incarnation,
            previous=found.previous, queues=names,
        )  # fmt: skip

    def restored(self, queue: Queue) -> None:
        """Nothing has happened to what is in it since."""
        flagged = inclusive(queue.table.flagged.ranges()) or []
        live = [*queue.table.state.live.ranges()]
        self._ranges("recovered", queue, live, next=queue.next_position, redelivered=flagged)

    # Queues, and what observers are told.

    def declared(self, queue: Queue) -> None:
        self._say(
            "queue", queue=name_of(queue), state="declared", type=queue.kind, durable=self._keeps(queue),
            vhost=_vhost(queue),
        )  # fmt: skip

    def enqueued(self, queue: Queue, arrived: Arrived) -> None:
        messages = arrived.messages
        data: dict[str, Json] = {"sums": [crc32(message.body) for message in messages]}
        if self._keeps(queue):
            safe = [position for position, message in enumerate(messages, arrived.first) if message.persistent]
            data["persistent"] = pairs(safe)
        source = self._source
        if source is not None and messages[0] in self._letters:
            data["source"] = name_of(source)
            data["letters"] = pairs([self._letters[message] for message in messages])
        elif self._numbers and messages[0] in self._numbers:
            data["channel"] = self._channel
            data["numbers"] = pairs([self._numbers.get(message, 0) for message in messages])
        ranges = [(arrived.first, arrived.stop)]
        self._ranges("enqueue", queue, ranges, tx=self._transaction, log=self._store.written(), **data)

    def acquired(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        consumer = holder if isinstance(holder, Consumer) else None
        self._ranges(
            "acquire", queue, ranges, holder=holder_name(holder), tag=None if consumer is None else consumer.tag,
            no_ack=True if consumer is not None and consumer.no_ack else None,
            redelivered=inclusive(queue.table.flagged_of(ranges)),
        )  # fmt: skip

    def released(self, queue: Queue, ranges: Sequence[Range]) -> None:
        flagged = inclusive(queue.table.flagged_of(ranges))
        self._ranges("release", queue, ranges, tx=self._transaction, redelivered=flagged)

    def dequeued(self, queue: Queue, ranges: Sequence[Range], reason: Reason) -> None:
        dies = reason in DEADLY and queue.limits.dead_exchange is not None
        self._ranges(
            "dequeue", queue, ranges, reason=reason.value, dies=dies or None, tx=self._transaction,
            log=self._store.written(),
        )  # fmt: skip

    def deleted(self, queue: Queue) -> None:
        self._say(
            "queue", queue=name_of(queue), state="deleted", log=self._store.written(), vhost=_vhost(queue)
        )  # fmt: skip

    # Dead letters.

    def dying(self, queue: Queue) -> None:
        """What is enqueued from now on may be a letter of that queue."""
        self._source = queue
        self._letters.clear()

    def letter(self, letter: Message, position: int) -> None:
        self._letters[letter] = position

    def addressed(
        self, queue: Queue, ranges: Sequence[Range], reason: Reason, routed: Routed, unwritable: Sequence[int]
    ) -> None:
        """It is decided where they go; of some no letter could be made."""
        sent: dict[int, None] = {}
        for target, letters in routed.items():
            positions = [self._letters[letter] for letter in letters]
            if positions:
                sent.update(dict.fromkeys(positions))
                self._positions("dead_letter", queue, positions, reason=reason.value, to=name_of(target))
        dropped = [position for position in positions_in(ranges) if position not in sent]
        if dropped:
            said: dict[str, Json] = {"unwritable": pairs(unwritable)} if unwritable else {}
            self._positions("dead_letter", queue, dropped, reason=reason.value, **said)

    def buried(self) -> None:
        self._source = None
        self._letters.clear()

    # Publishers.

    def publishing(self, sink: Sink, publishes: Sequence[Publish], first: int) -> None:
        """They are routed next, within this call's turn. `first`: the number of the first of them."""
        self._channel = sink.traced_as
        self._numbers = {publish.message: number for number, publish in enumerate(publishes, first)}
        self._routed.clear()

    def rewritten(self, message: Message, instead: Message) -> None:
        """Queues get another one in its place."""
        number = self._numbers.get(message)
        if number is not None:
            self._numbers[instead] = number

    def routed(self, routed: Routed) -> None:
        numbers = self._numbers
        if numbers:
            for queue, messages in routed.items():
                self._routed.setdefault(queue, []).extend([numbers[each] for each in messages if each in numbers])

    def published(self, vhost: Vhost, publishes: Sequence[Publish]) -> None:
        """What became of them at once: one event for each queue, and one for those that no queue gets."""
        numbers, channel = self._numbers, self._channel
        for queue, found in self._routed.items():
            if found:
                self._trace.emit(
                    "publish", queue=name_of(queue), first=min(found), last=max(found), count=len(found),
                    channel=channel, numbers=pairs(found), vhost=_vhost(queue),
                )  # fmt: skip
        unroutable = [numbers[each.message] for each in publishes if each.unroutable]
        refused = [numbers[each.message] for each in publishes if each.refused]
        if unroutable or refused:
            self._trace.emit(
                "publish", count=len(unroutable) + len(refused), channel=channel, unroutable=pairs(unroutable) or None,
                refused=pairs(refused) or None, vhost=vhost.name,
            )  # fmt: skip
        self._numbers, self._channel = {}, ""
        self._routed.clear()

    def dropped(self, queue: Queue, messages: Sequence[Message]) -> None:
        """The queue has seen their message ids before."""
        numbers = [self._numbers[message] for message in messages if message in self._numbers]
        self._say(
            "duplicate", queue=name_of(queue), count=len(messages), channel=self._channel if numbers else None,
            numbers=pairs(numbers) or None, tx=self._transaction, vhost=_vhost(queue),
        )  # fmt: skip

    def confirm(self, sink: Sink, first: int, last: int, refused: Sequence[int]) -> None:
        """They are about to be told to the publisher."""
        self._trace.emit(
            "confirm", first=first, last=last, count=last - first + 1, channel=sink.traced_as,
            refused=pairs(refused) or None,
        )  # fmt: skip
        self._trace.flush()

    # Consumers.

    def channel(self, connection: int, number: int) -> str:
        """A channel was opened: the name that it has in the trace."""
        self._names += 1
        trace = self._trace
        name = f"{trace.node}#{trace.inc}/{connection}.{number}.{self._names}"
        trace.emit("client", what="channel", state="opened", channel=name)
        return name

    def closed(self, sink: Sink) -> None:
        """A channel is gone, with all that it held."""
        self._trace.emit("client", what="channel", state="closed", channel=sink.traced_as)

    def consumer(self, consumer: Consumer, state: str) -> None:
        queue = consumer.queue
        self._trace.emit(
            "client", queue=name_of(queue), what="consumer", state=state, channel=consumer.sink.traced_as,
            tag=consumer.tag, vhost=_vhost(queue),
        )  # fmt: skip

    def handed(self, sink: Sink, delivery: Delivery) -> None:
        """On their way to a client."""
        sums: list[Json] = [crc32(message.body) for message in delivery.messages]
        self._ranges(
            "handed", delivery.queue, delivery.ranges, holder=sink.traced_as, redelivered=inclusive(delivery.flagged),
            sums=sums,
        )  # fmt: skip

    def reading(self, queue: Queue, rows: Sequence[Row], lease: Lease) -> None:
        """On their way to whoever reads a lease."""
        sums: list[Json] = [crc32(row.message.body) for row in rows]
        self._positions("read", queue, [row.position for row in rows], holder=holder_name(lease), sums=sums)

    def retiring(self, lease: Lease, ranges: Sequence[Range]) -> None:
        """Whoever reads a lease has done with them."""
        self._ranges("accept", lease.queue, ranges, holder=holder_name(lease))

    def answered(self, kind: str, sink: Sink, answers: Iterable[HeldRanges]) -> None:
        """A client has said what is to become of some: `accept` or `reject`."""
        for queue, ranges in _by_queue(answers).items():
            self._ranges(kind, queue, ranges, holder=sink.traced_as)

    # Transactions.

    def begin(self, sink: Sink) -> str:
        """The next transaction is that channel's; gives the name that it has in the trace."""
        self._names += 1
        trace = self._trace
        self._transaction = name = f"{trace.node}#{trace.inc}/tx{self._names}"
        self._channel = sink.traced_as
        return name

    def applying(self, transaction: Transaction, vhost: str) -> None:
        enqueues: dict[str, Json] = {
            name_of(q): len(m)
            for q, m in transaction.routed.items()
            if not q.deleted and not q.name.startswith(UNTRACED)
        }
        self._say(
            "tx", state="begins", tx=self._transaction, channel=self._channel, enqueues=enqueues,
            accepts=_settling(transaction.accepts), rejects=_settling(transaction.rejects),
            requeues=_settling(transaction.requeues), vhost=None if vhost == "/" else vhost,
        )  # fmt: skip

    def applied(self) -> None:
        self._say("tx", state="ends", tx=self._transaction, log=self._store.written())

    def ended(self) -> None:
        self._transaction, self._channel = None, ""

    def committed(self, name: str) -> None:
        """The client is about to be told."""
        self._trace.emit("tx", state="committed", tx=name)
        self._trace.flush()

    # At rest.

    def inventory(self, vhosts: Iterable[Vhost]) -> None:
        """What every queue holds."""
        for vhost in vhosts:
            for queue in vhost.queues.values():
                held: dict[str, list[Range]] = {}
                ready: list[Range] = []
                for holder, ranges in queue.holders():
                    if holder is None:
                        ready = ranges
                    else:
                        held.setdefault(holder_name(holder), []).extend(ranges)
                self._trace.emit(
                    "inventory", queue=name_of(queue), count=queue.count, ready=inclusive(ready) or [],
                    held={name: inclusive(merged(found)) or [] for name, found in held.items()},
                    counted=[queue.ready, queue.unacked], next=queue.next_position, vhost=_vhost(queue),
                )  # fmt: skip

    def unsettled(self, sink: Sink, held: Iterable[HeldRanges]) -> None:
        """What a channel says that its client has."""
        for queue, ranges in _by_queue(held).items():
            self._ranges("unsettled", queue, sorted(ranges), holder=sink.traced_as)

    def flush(self) -> None:
        self._trace.flush()

    # Writing.

    def _say(self, kind: str, **data: Any) -> None:
        """Now, or when the step that is being taken has succeeded."""
        self._store.journal.say(partial(self._trace.emit, kind, **data))

    def _keeps(self, queue: Queue) -> bool:
        return self._store.durable and kept(queue.spec)

    def _positions(self, kind: str, queue: Queue, positions: list[int], **data: Json) -> None:
        self._ranges(kind, queue, ranges_of(positions), **data)

    def _ranges(self, kind: str, queue: Queue, ranges: Sequence[Range], **data: Json) -> None:
        first, last = (min(ranges)[0], max(ranges)[1] - 1) if ranges else (None, None)
        if first is not None and last is not None and last - first >= SPAN_MAX:
            first = last = None  # a restart may leap over very many; the ranges say it
        data |= {"ranges": inclusive(ranges) if len(ranges) > 1 else None, "vhost": _vhost(queue)}
        self._say(
            kind, first=first, last=last, count=count_of(ranges), queue=name_of(queue), **data
        )  # fmt: skip


def name_of(queue: Queue) -> str:
    return f"{queue.name}#{queue.incarnation}"


def holder_name(holder: object) -> str:
    """A channel, by its name in the trace; anything else is a lease, by the name of what it is."""
    if isinstance(holder, Lease):
        return f"lease {holder.name}"
    sink = holder.sink if isinstance(holder, Consumer) else holder
    if isinstance(sink, Sink) and sink.traced_as:
        return sink.traced_as
    return f"lease {type(sink).__name__}"


def pairs(numbers: Sequence[int]) -> list[Json]:
    """As unbroken ranges, [first, last], in the order given."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [[*each] for each in found]


def inclusive(ranges: Iterable[Range]) -> list[Json] | None:
    """As [first, last]; None: there are none."""
    return [[first, stop - 1] for first, stop in ranges] or None


def _by_queue(held: Iterable[HeldRanges]) -> dict[Queue, list[Range]]:
    found: dict[Queue, list[Range]] = {}
    for queue, _, ranges in held:
        for first, stop in ranges:
            add_range(found.setdefault(queue, []), first, stop)
    return found


def _settling(held: Iterable[HeldRanges]) -> dict[str, Json]:
    return {
        name_of(queue): inclusive(ranges) or []
        for queue, ranges in _by_queue(held).items()
        if not queue.name.startswith(UNTRACED)
    }


def _vhost(queue: Queue) -> str | None:
    """The default one goes without saying."""
    return None if queue.vhost.name == "/" else queue.vhost.name
