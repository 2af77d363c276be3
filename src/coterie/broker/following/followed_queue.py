"""A queue that follows one of another broker: what it has of it, and how it takes the steps of a link.

The *mark* is the highest position of the source that was taken. It is saved in one unit with the messages that it
covers, so what is sent again after a crash of either side, at or below the mark, is dropped and confirmed. In a cluster
every broker decides that alike, when the step comes in its place of the log.

A message has the position here that it has at the source, unless positions beyond were given here already: after a
crash the store goes on behind those that it may have given. So there are *runs*: from which position of the source on,
and how much further.

While it follows, a queue's limits are the source's business, and it takes nothing from publishers: both sides would
drift apart. Whoever wants to go on here promotes it: then it is a queue as any other, and its source is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.broker import records
from coterie.broker.delivery import positions_in
from coterie.broker.following import steps
from coterie.broker.following.ranges import Range, ranges_of
from coterie.broker.following.steps import Answer, Step
from coterie.broker.observer import Reason
from coterie.broker.specs import QueueSpec
from coterie.broker.wiring import Change, DeclareQueue
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.broker.queue import Queue
    from coterie.broker.storage import Record
    from coterie.broker.vhost import Vhost

PAGE_RANGES: Final = 2000
PAGE_POSITIONS: Final = 50_000
"""What one answer tells about at most."""
PAGE_QUEUES: Final = 500


@dataclass(slots=True)
class Replica:
    """Of one queue of another broker."""

    source: str
    incarnation: int
    """Of the source's queue."""
    session: str = ""
    """Of the link that may speak."""
    mark: int = 0
    runs: list[tuple[int, int]] = field(default_factory=lambda: [(1, 0)])
    """By rising positions of the source: from there on, positions here are higher by so many."""
    promoted: bool = False

    def record(self, queue: Queue) -> Record:
        return {
            "queue": queue.incarnation, "source": self.source, "incarnation": self.incarnation,
            "session": self.session, "mark": self.mark, "runs": [[*run] for run in self.runs],
            "promoted": self.promoted,
        }  # fmt: skip

    @staticmethod
    def of(record: dict[str, Any]) -> Replica:
        runs = [(first, shift) for first, shift in record["runs"]]
        source, session = str(record["source"]), str(record["session"])
        return Replica(source, record["incarnation"], session, record["mark"], runs, record["promoted"])

    # Positions.

    def place(self, position: int, next_position: int) -> int:
        """Where a message of the source, above the mark, is to stand, if `next_position` is the first that is free."""
        first, shift = self.runs[-1]
        if position + shift < next_position:
            shift = next_position - (self.mark + 1)
            if first > self.mark:
                self.runs.pop()  # nothing was taken since it began
            self.runs.append((self.mark + 1, shift))
        return position + shift

    def here(self, found: Range) -> Iterator[Range]:
        """Where the positions of a range, as far as they were taken, stand here."""
        first, last = found[0], min(found[1], self.mark)
        for at, (begin, shift) in enumerate(self.runs):
            end = self.runs[at + 1][0] - 1 if at + 1 < len(self.runs) else self.mark
            if max(first, begin) <= min(last, end):
                yield max(first, begin) + shift, min(last, end) + shift

    def there(self, positions: Sequence[int]) -> Iterator[int]:
        """Which positions of the source stand at these, which rise; what came otherwise is left out."""
        at = 0
        runs = self.runs
        for position in positions:
            while at + 1 < len(runs) and sum(runs[at + 1]) <= position:
                at += 1
            begin, shift = runs[at]
            end = runs[at + 1][0] - 1 if at + 1 < len(runs) else self.mark
            if begin <= position - shift <= end:
                yield position - shift

    def forget_runs(self, first: int) -> None:
        """Nothing below this position is here any more."""
        while len(self.runs) > 1 and sum(self.runs[1]) <= first:
            del self.runs[0]


def follows(queue: Queue) -> bool:
    return queue.replica is not None and not queue.replica.promoted


def save(queue: Queue) -> None:
    vhost = queue.vhost
    record = None if queue.replica is None else queue.replica.record(queue)
    key = records.key_of(vhost.name, queue.name)
    if queue.journal.effects.on:
        queue.journal.effects.record(records.REPLICA, key, record)
    vhost.store.save(records.REPLICA, key, record)


def restore(queue: Queue, record: dict[str, Any]) -> None:
    """As another broker of the cluster has it."""
    queue.vhost.follow(queue, Replica.of(record))
    save(queue)


@dataclass(frozen=True, slots=True)
class Promote(Change[None]):
    """From now on a queue that followed is its own."""

    name: str

    def apply(self, vhost: Vhost) -> None:
        queue = vhost.queue(self.name)
        if queue.replica is None:
            raise ProtocolError(PRECONDITION_FAILED, f"{queue.what} follows no other queue")
        queue.keep()
        queue.replica.promoted = True
        vhost.store.begin()
        try:
            save(queue)
            vhost.follow(queue, queue.replica)
        finally:
            vhost.store.end()


# Steps.


class Refused(Exception):
    """A step that is not taken, and why."""


def take(vhost: Vhost, step: Step) -> Answer:
    """The same on every broker of a cluster: it looks at the step and at the vhost's state only."""
    try:
        return _STEPS[step.do](vhost, step)
    except Refused as error:
        return {"error": str(error)}
    except ProtocolError as error:
        return {"error": f"{error}"}


def _list(vhost: Vhost, step: Step) -> Answer:
    after = step.said["after"]
    found = sorted(
        (queue.name, queue.replica.incarnation)
        for queue in vhost.queues.values()
        if queue.replica is not None and queue.replica.source == step.source and queue.name > after
    )
    page = found[:PAGE_QUEUES]
    return {"queues": page, "more": len(found) > PAGE_QUEUES, "upto": page[-1][0] if page else after}


def _begin(vhost: Vhost, step: Step) -> Answer:
    said, existing = step.said, vhost.queues.get(step.queue)
    if existing is not None and existing.replica is None and existing.count:
        raise Refused(f"{existing.what} has messages of its own: purge it there, or delete it, and it is replicated to")
    replica = None if existing is None else existing.replica
    if replica is not None:
        if replica.promoted:
            raise Refused(f"{step.queue}: it was promoted there: delete it there to have it follow again")
        if replica.source != step.source:
            raise Refused(f"{step.queue}: it follows another source there: promote or delete it there first")
    spec = QueueSpec(True, said["auto_delete"], False, step.arguments)
    if not spec.replicated:  # no link asks for it: there would be no broker whose queue it is
        raise Refused(f"queue '{step.queue}' is not to be replicated, by its arguments")
    queue = DeclareQueue(step.queue, spec).apply(vhost)
    if replica is None or replica.incarnation != said["incarnation"]:
        if replica is not None:
            _remove(queue, replica, [(1, replica.mark)])
        replica = Replica(step.source, said["incarnation"])
    queue.keep()
    replica.session = step.session
    vhost.follow(queue, replica)
    save(queue)
    return {"mark": replica.mark, **_page(queue, replica, 0)}


def _present(vhost: Vhost, step: Step) -> Answer:
    queue, replica = _of_session(vhost, step)
    return _page(queue, replica, step.said["after"])


def _page(queue: Queue, replica: Replica, after: int) -> Answer:
    """Which positions of the source above `after` are here, and up to where that is the whole truth."""
    positions: list[int] = []
    for first, last in replica.here((after + 1, replica.mark)):
        left = PAGE_POSITIONS - len(positions)
        if left <= 0:
            break
        positions += positions_in(queue.browse(first, last, left))
    complete = len(positions) < PAGE_POSITIONS
    found = list(ranges_of(replica.there(positions)))
    if len(found) > PAGE_RANGES:
        found, complete = found[:PAGE_RANGES], False
    return {"present": found, "upto": replica.mark if complete else found[-1][1]}


def _enqueue(vhost: Vhost, step: Step) -> Answer:
    queue, replica = _of_session(vhost, step)
    queue.keep()
    at, count = 0, len(step.positions)
    shift = max(replica.runs[-1][1], queue.next_position - (replica.mark + 1))
    if count and step.positions[-1] + shift >= steps.NUMBER_MAX:
        raise Refused(f"queue '{step.queue}': there are no positions left for these")
    while at < count and step.positions[at] <= replica.mark:
        at += 1
    while at < count:
        place = replica.place(step.positions[at], queue.next_position)
        stop = at + 1
        while stop < count and step.positions[stop] == step.positions[stop - 1] + 1:
            stop += 1
        for message in step.messages[at:stop]:
            message.persistent = True  # the mark is on disk, and so must be what it covers
        queue.table.leap(place)
        replica.mark = step.positions[stop - 1]
        queue.enqueue(step.messages[at:stop])
        at = stop
    save(queue)
    return {}


def _removed(vhost: Vhost, step: Step) -> Answer:
    queue, replica = _of_session(vhost, step)
    _remove(queue, replica, step.said["ranges"])
    queue.keep()
    if len(replica.runs) > 1:
        replica.forget_runs(queue.first_position)
        save(queue)
    return {}


def _remove(queue: Queue, replica: Replica, ranges: Sequence[Range]) -> None:
    """What a consumer holds here is left to it."""
    gone = queue.table.ready_of([(first, last + 1) for each in ranges for first, last in replica.here(each)])
    if gone:
        queue.leave(gone, Reason.PURGED)


def _end(vhost: Vhost, step: Step) -> Answer:
    """The queue goes with the source's, unless somebody uses it here, or it is its own by now."""
    queue = vhost.queues.get(step.queue)
    replica = None if queue is None else queue.replica
    if queue is None or replica is None or replica.promoted:
        return {}
    if replica.source == step.source and replica.incarnation == step.said["incarnation"]:
        _remove(queue, replica, [(1, replica.mark)])
        if not queue.count and not queue.consumers:
            vhost.remove_queue(queue)
    return {}


def _of_session(vhost: Vhost, step: Step) -> tuple[Queue, Replica]:
    queue = vhost.queues.get(step.queue)
    replica = None if queue is None else queue.replica
    if queue is None or replica is None or replica.promoted:
        raise Refused(f"queue '{step.queue}' does not follow any more")
    if replica.source != step.source or replica.session != step.session:
        raise Refused(f"queue '{step.queue}': another link speaks for its source now")
    return queue, replica


_STEPS: Final = {
    steps.BEGIN: _begin,
    steps.PRESENT: _present,
    steps.ENQUEUE: _enqueue,
    steps.REMOVE: _removed,
    steps.LIST: _list,
    steps.END: _end,
}
