"""The proposer: what clients of this node want becomes events for the group (the cluster plan's Proposer).

It is called by the broker in the turns of connections and timers, changes nothing, and never waits: each call ends
with an event under way, and with an answer that comes when the log has brought the event back and enough brokers hold
it (`commit`). What the log allots to consumers of this node is handed on by local_consumers.py.
"""

from __future__ import annotations

import struct
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.amqp.wire.codes import NOT_IMPLEMENTED
from coterie.broker.cluster import Cluster, LeaseShape, read_place
from coterie.broker.delivery import Delivery, HeldRanges, add_range
from coterie.broker.transaction import Transaction
from coterie.broker.wiring import EndOwner
from coterie.cluster import changes, settling, wire
from coterie.cluster.bodiless import is_bodiless
from coterie.cluster.consumers import GETTER, Getter, Subscriber
from coterie.cluster.expiring import Expiring
from coterie.cluster.local_consumers import LocalConsumers
from coterie.cluster.local_queues import has_home
from coterie.cluster.outbox import Asked
from coterie.cluster.remote_replies import tag_of
from coterie.cluster.settling import share_of
from coterie.cluster.voids import Void
from coterie.cluster.wire import Kind
from coterie.errors import ProtocolError
from coterie.logs import Log
from coterie.runtime.base import Buffer

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.broker.consumer import Consumer, Sink
    from coterie.broker.entry import Entry
    from coterie.broker.following.steps import Answer
    from coterie.broker.leases import Lease, LeaseStep
    from coterie.broker.message import Message
    from coterie.broker.publish import Publish, Routed
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range
    from coterie.broker.rows import Row
    from coterie.broker.specs import QueueSpec
    from coterie.broker.vhost import PseudoQueue, Vhost
    from coterie.broker.wiring import Change
    from coterie.cluster.answers import Answers
    from coterie.cluster.applier import Applier
    from coterie.cluster.catchup.catchup import Catchup
    from coterie.cluster.consumers import Peer
    from coterie.cluster.local_queues import LocalQueues
    from coterie.cluster.outbox import Outbox
    from coterie.cluster.remote_replies import RemoteReplies
    from coterie.cluster.standing import Standing
    from coterie.cluster.traced import ClusterTrace
    from coterie.cluster.turn import Turn
    from coterie.runtime.base import Runtime, Timer

R = TypeVar("R")
log = Log(__name__)
GATHERING = 0.02
"""How long an accept may wait for others, if its consumer has room enough meanwhile."""
INSISTING = 0.1
INSISTING_MAX = 60.0
"""Seconds until something that was void, and must be, is sent again: the first time, and at most."""
UNDER_WAY = 2
"""While so many of our events have not come back, publishes are gathered: an event costs more than its messages."""
APART = 10.0
"""Seconds after an event of several publishers that was void in which each publishes by events of its own: so that only
whoever is to blame is told that it has failed."""
GATHERED_MAX = 256 << 10
"""Bytes of publishes that wait for that at most."""
COPY = 32
"""What each of them counts besides its body, for each queue: whoever sends nothing has others do much."""


class Publishing:
    """Publishes that will be one event."""

    __slots__ = ("dones", "on_disk", "publishes", "routed", "size")

    def __init__(self, on_disk: bool) -> None:
        self.on_disk = on_disk
        self.routed: dict[Queue, list[Message]] = {}
        self.publishes: list[Publish] = []
        self.dones: list[Callable[[], None]] = []
        self.size = 0

    def add(self, routed: Routed, done: Callable[[], None], publishes: Sequence[Publish]) -> None:
        for queue, messages in routed.items():
            self.routed.setdefault(queue, []).extend(messages)
            self.size += sum(len(message.body) for message in messages) + COPY * len(messages)
        self.publishes += publishes
        self.dones.append(done)

    def done(self, _: object) -> None:
        for done in self.dones:
            done()


class Proposer(Cluster):
    """The cluster, as a broker sees it."""

    immediate = False

    def __init__(self, standing: Standing, turn: Turn, credit_max: int, ownership_time: float) -> None:
        self._standing = standing
        self._turn = turn
        self._credit_max = credit_max
        self._ownership_time = ownership_time
        self._numbers = 0
        self._life = 0
        """Another one whenever this broker begins anew."""
        self._released = 0
        """How often something was given back."""
        self._owners: dict[object, int] = {}
        self._accepted: dict[Queue, dict[object, list[Range]]] = {}
        """By our consumers, of each queue and holder, and not told yet."""
        self._sharing: dict[Queue, int] = {}
        """Of queues that we own and others consume: the tenure that a timer will look at."""
        self._publishing: Publishing | None = None
        """What waits for events of ours to come back."""
        self._apart_until = 0.0
        """Until then nothing is gathered."""
        self._until_ready: list[Callable[[], None]] = []
        """What waits until a queue has all of its messages."""
        self._accepts_due: Timer | None = None
        self._expiring = Expiring(self._send_expired)

    def start(self, runtime: Runtime) -> None:
        super().start(runtime)
        self._runtime = runtime

    def attach(
        self, outbox: Outbox, answers: Answers, applier: Applier, replies: RemoteReplies, catchup: Catchup,
        traced: ClusterTrace | None,
    ) -> None:  # fmt: skip
        """Where events go, where answers wait, and who applies events: none of them is there before the broker, which
        needs this one."""
        self._outbox = outbox
        self._answers = answers
        self._applier = applier
        self._local_queues: LocalQueues = applier.local_queues
        self._replies = replies
        self._catchup = catchup
        self._traced = traced
        self._consumers = LocalConsumers(
            self._runtime, self._standing, self._turn, self, answers, catchup, traced, self._credit_max
        )
        if applier.owners is not None:
            applier.owners.owned = self._owned
        self.begin_anew()

    def begin_anew(self) -> None:
        """Events are applied from nothing, or from another broker's state."""
        self._us: Peer = self._applier.peer(self._standing.us)
        self._us.allotted = self._consumers.allotted
        self._us.ended = self._consumers.ended

    # What the broker asks of a cluster.

    def place(self) -> str:
        progress = self._standing.progress
        return f"{progress.epoch}.{progress.index}"

    def has_come_to(self, place: str) -> bool:
        progress = self._standing.progress
        return read_place(place) <= (progress.epoch, progress.index)

    def may_serve(self) -> str:
        if not self._standing.serves:
            return self._standing.why or "it does not serve"
        return "" if self._answers.may_speak() else "it has not heard of a majority for a while"

    def is_absent(self, messages: Iterable[Message | None]) -> bool:
        return self._catchup.backfill is not None and any(map(is_bodiless, messages))

    def reading(self, queue: Queue, rows: Sequence[Row], lease: Lease | None) -> None:
        if self._traced is not None:
            self._traced.reading(queue, rows, lease)

    def wall(self) -> float:
        return self._turn.wall()

    def now(self) -> float:
        return self._turn.now()

    def lead(self) -> float:
        return 0.0

    @property
    def sifts(self) -> bool:
        return self._turn.sifts

    def soon(self, call: Callable[[], None]) -> None:
        self._turn.soon(call)

    def new_incarnation(self) -> int | None:
        return self._turn.new_incarnation()

    def keeps_time(self) -> bool:
        return self._standing.keeps_time()

    def when_held(self, call: Callable[[], None]) -> None:
        self._answers.deliver(self._standing.place, call)

    def keeps(self, spec: QueueSpec) -> bool:
        """Not what ends with this process; but what the store has, it has until the queue is deleted."""
        return self._applier.declaring is None or not has_home(spec)

    def opened(self, queue: Queue) -> None:
        self._applier.opened(queue)

    def reply_tag(self) -> str:
        return tag_of(self._standing.us)

    def replies_elsewhere(self, vhost: Vhost, name: str) -> PseudoQueue | None:
        return self._replies.find(vhost.name, name)

    def waits_elsewhere(self, vhost: Vhost, name: str, done: Callable[[bool], None]) -> None:
        self._replies.ask(vhost.name, name, done)

    # Messages.

    def tell(self, kind: Kind, data: bytes) -> None:
        """An event that nobody waits for, but that others cannot do without."""
        self.insist(kind, lambda _: data)

    def insist(self, kind: Kind, encode: Callable[[int], bytes], pause: float = INSISTING) -> None:
        """What must be so in the end, as whoever wanted it is gone: if it is void, it is sent again after a while.
        `encode`: the same in another version of events, if another one is spoken then."""
        life = self._life

        def again() -> None:
            if life == self._life:
                self.insist(kind, encode, min(2 * pause, INSISTING_MAX))

        self.flush()
        data = encode(self._standing.versions.spoken)
        self.ask(kind, (data,), Asked(b"", failed=lambda error: self._later(pause, again)))

    def _later(self, pause: float, call: Callable[[], None]) -> None:
        self._runtime.call_later(pause, call)

    def _send(self, kind: Kind, parts: Sequence[Buffer], done: Callable[[Any], None] | None = None) -> None:
        self.ask(kind, parts, Asked(b"", done))

    def ask(self, kind: Kind, parts: Sequence[Buffer], asked: Asked) -> None:
        """Nothing overtakes what waits."""
        self.flush()
        self._outbox.send(kind, parts, asked)

    @property
    def is_full(self) -> bool:
        """Too much waits to be sent: what can wait elsewhere must."""
        return self._outbox.is_full

    def flush(self) -> None:
        """Send what is gathered."""
        if self._accepted:
            self._send_accepted()
        if self._publishing is not None:
            self._send_published()

    def in_turn(self, done: Callable[[], None]) -> None:
        """It needs no event: it comes after all answers that are due before it."""
        self.flush()
        self._outbox.behind_answers(done)

    def publish(
        self, vhost: Vhost, routed: Routed, done: Callable[[], None], publishes: Sequence[Publish] = ()
    ) -> None:
        if self._local_queues.here:
            left = self._local_queues.enqueue(routed, publishes)
            if left is not routed:
                routed, publishes = left, _owed(left, publishes)
        if not routed:
            if self._publishing is None:
                self._outbox.behind_answers(done)
            else:
                self._publishing.dones.append(done)
            return
        on_disk = any(
            queue.spec.durable and queue.home is None and any(message.persistent for message in messages)
            for queue, messages in routed.items()
        )
        waiting = self._publishing
        apart = self._runtime.now() < self._apart_until
        if waiting is not None and (waiting.on_disk != on_disk or apart):
            self._send_published()
        if self._publishing is None:
            self._publishing = Publishing(on_disk)
        self._publishing.add(routed, done, publishes)
        if apart or self._outbox.local.under_way < UNDER_WAY or self._publishing.size > GATHERED_MAX:
            self._send_published()

    def _keep_apart(self, error: Void) -> None:
        self._apart_until = self._runtime.now() + APART

    def _send_published(self) -> None:
        waiting, self._publishing = self._publishing, None
        assert waiting is not None
        parts: list[Buffer] = []
        try:
            kind = wire.encode_publish(waiting.routed, parts)
        except (struct.error, OverflowError):
            log.error("messages that cannot be told to others are refused", error=traceback.format_exc())
            for publish in waiting.publishes:
                publish.refused = True
            self._outbox.behind_answers(partial(waiting.done, None))
            return
        failed = self._keep_apart if len(waiting.dones) > 1 else None
        asked = Asked(b"", waiting.done, waiting.routed, waiting.publishes, waiting.on_disk, failed=failed)
        self.ask(kind, parts, asked)

    def came_back(self) -> None:
        """Some of our events have: those that wait for that may go."""
        if self._consumers.some_wait and not self._outbox.is_full:
            self._consumers.room_again()
        if self._publishing is not None and self._outbox.local.under_way < UNDER_WAY:
            self._send_published()

    def acquire(self, queue: Queue, consumer: Consumer, entries: list[Entry]) -> None:
        """It follows from the log: everybody takes this step now."""
        queue.apply_acquire(consumer, entries)

    def accept(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        """Nobody waits for it, unless a consumer runs short of room: so several accepts become one event."""
        gathered = self._accepted.setdefault(queue, {}).setdefault(holder, [])
        for first, stop in ranges:
            add_range(gathered, first, stop)
        if _runs_short(holder):
            self._send_accepted()
        elif self._accepts_due is None:
            self._accepts_due = self._runtime.call_later(GATHERING, self._send_accepted)

    def _send_accepted(self) -> None:
        if self._accepts_due is not None:
            self._accepts_due.cancel()
            self._accepts_due = None
        accepted, self._accepted = self._accepted, {}
        for queue, by_holder in accepted.items():
            settled = [HeldRanges(queue, holder, ranges) for holder, ranges in by_holder.items()]
            asked = Asked(b"", done=None, failed=partial(self._not_settled, settled))
            self._outbox.send(Kind.ACCEPT, (self._settle(queue, settled),), asked)

    def reject(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        settled = [HeldRanges(queue, holder, ranges)]
        asked = Asked(b"", failed=partial(self._not_settled, settled))
        self.ask(Kind.REJECT, (self._settle(queue, settled),), asked)

    def _settle(self, queue: Queue, settled: Sequence[HeldRanges]) -> bytes:
        shares = [share_of(holder, ranges) for _, holder, ranges in settled]
        return settling.settle(queue, shares, self._standing.versions.spoken)

    def _not_settled(self, settled: Sequence[HeldRanges], error: Void) -> None:
        """Their holders believe that they are done with them: they are told, and the messages go back."""
        sinks: dict[Sink, None] = {}
        for held in self._put_back(settled):
            sink = self._consumers.sink(held.holder)
            if sink is not None:
                sinks[sink] = None
        for sink in sinks:
            sink.failed(error)

    def _put_back(self, settled: Sequence[HeldRanges]) -> list[HeldRanges]:
        """What somebody still holds of these, for the log: nobody does any more. What has left its queue meanwhile is
        off their accounts too, or they would have less room for ever."""
        found: list[HeldRanges] = []
        for queue, holder, ranges in settled:
            if not isinstance(holder, (Subscriber, Getter)):
                continue
            held = queue.still_held(holder, ranges)
            if held:
                self.release(queue, holder, held, redelivered=True)
                found.append(HeldRanges(queue, holder, held))
            self._consumers.write_off(queue, holder, ranges, held)
        return found

    def release(self, queue: Queue, holder: object, ranges: Sequence[Range], redelivered: bool) -> None:
        self._released += 1
        self.insist(Kind.RELEASE, partial(settling.release, queue, [share_of(holder, ranges)], redelivered))

    def expire(self, queue: Queue) -> None:
        if self.keeps_time():
            self._expiring.found(queue, queue.ready_over(), self._runtime.now())

    def _send_expired(self, queue: Queue, ranges: Sequence[Range]) -> None:
        def failed(error: Void) -> None:
            self._expiring.failed(queue, ranges, self._runtime.now())

        asked = Asked(b"", failed=failed, after=[partial(self._expiring.over, queue)])
        self.ask(Kind.EXPIRE, (self._settle(queue, [HeldRanges(queue, None, ranges)]),), asked)

    def get(
        self, queue: Queue, holder: object, no_ack: bool, done: Callable[[Delivery | ProtocolError | None], None]
    ) -> None:
        unready = self._us.unready
        if unready and (no_ack or queue.incarnation in unready):
            self._until_ready.append(partial(self.get, queue, holder, no_ack, done))
            return

        def answered(found: Delivery | ProtocolError | None) -> None:
            backfill = self._catchup.backfill
            if found is None or isinstance(found, ProtocolError):
                done(found)
                return
            if backfill is not None and any(map(is_bodiless, found.messages)):
                backfill.when_filled(partial(answered, found))
                return
            before = self._released
            done(found)
            traced = self._traced
            if traced is not None and self._released == before:
                traced.given(found)  # whoever asked was still there

        self._send(Kind.GET, (wire.get(queue.incarnation, GETTER, no_ack),), answered)

    def queues_ready(self) -> None:
        """Some have all of their messages, which was not so before."""
        waiting, self._until_ready = self._until_ready, []
        for call in waiting:
            call()

    def transaction(
        self,
        vhost: Vhost,
        transaction: Transaction,
        done: Callable[[ProtocolError | None], None],
        publishes: Sequence[Publish] = (),
    ) -> None:
        settled = transaction.accepts, transaction.rejects, transaction.requeues
        parts: list[Buffer] = []
        answers = settling.encode_answers(settled, self._standing.versions.spoken)
        wire.encode_transaction(answers, transaction.routed, parts)

        def failed(error: Void) -> None:
            self._put_back([each for part in settled for each in part])

        asked = Asked(b"", done, transaction.routed, publishes, True, failed=failed)  # type: ignore[arg-type]
        self.ask(Kind.TRANSACTION, parts, asked)

    # The wiring.

    def wiring(self, vhost: Vhost, change: Change[R], done: Callable[[R | ProtocolError], None]) -> None:
        if isinstance(change, EndOwner) and change.owner not in self._owners:
            return  # it never was the owner of anything
        said = changes.encode(change, self._owner_number)
        said["vhost"] = vhost.name
        if isinstance(change, EndOwner):
            del self._owners[change.owner]
            self.insist(Kind.WIRING, lambda _: wire.encode_json(said))
            return
        asked = Asked(b"", done, on_disk=True, everywhere=True)  # type: ignore[arg-type]
        self.ask(Kind.WIRING, (wire.encode_json(said),), asked)

    def replicate(self, vhost: Vhost, step: bytes, done: Callable[[Answer], None]) -> None:
        """What is no step is refused here: on the log it would be everybody's trouble."""
        read = vhost.read_step(step)
        if isinstance(read, dict):
            done(read)
        else:

            def answered(answer: Any) -> None:
                done({"error": str(answer)} if isinstance(answer, Void) else answer)

            self.ask(Kind.REPLICATE, wire.step(vhost.name, step), Asked(b"", answered, on_disk=True))

    def lease(self, queue: Queue, step: LeaseStep, done: Callable[[LeaseShape | ProtocolError], None]) -> None:
        if self._standing.versions.spoken < wire.LEASES:
            done(ProtocolError(NOT_IMPLEMENTED, "a voter of the cluster is too old for leases: upgrade it"))
            return
        try:
            step.check()  # what is no step is refused here: on the log it would be everybody's trouble
        except ProtocolError as error:
            done(error)
            return
        said = {"queue": queue.incarnation, "step": step.to_json()}
        asked = Asked(b"", done, on_disk=queue.spec.durable)  # type: ignore[arg-type]
        self.ask(Kind.LEASE, (wire.encode_json(said),), asked)

    def administer(self, broker: Broker, said: dict[str, object], done: Callable[[Any], None]) -> None:
        self.ask(Kind.ADMINISTRATION, (wire.encode_json(said),), Asked(b"", done, on_disk=True, everywhere=True))

    def _owner_number(self, owner: object) -> int:
        number = self._owners.get(owner)
        if number is None:
            number = self._owners[owner] = self.new_number()
            self._us.owners[number] = owner
        return number

    # Consumers.

    def consume(self, consumer: Consumer, done: Callable[[ProtocolError | None], None]) -> None:
        self._consumers.consume(consumer, done)

    def cancel(self, consumer: Consumer) -> None:
        self._consumers.cancel(consumer)

    def end(self, consumer: Consumer, done: Callable[[], None]) -> None:
        self._consumers.end(consumer, done)

    def wake(self, queue: Queue, consumer: Consumer) -> None:
        self._consumers.wake(consumer)

    def new_number(self) -> int:
        """Of a consumer, a connection or a limit that consumers share: none that is in use. While an old voter keeps
        old events spoken, it has 32 bits."""
        while True:
            self._numbers += 1
            number = self._numbers
            if self._standing.versions.spoken >= wire.WIDE:
                return number
            number = (number - 1) % wire.NARROW_MAX + 1
            if not (number in self._consumers.numbers or number in self._us.owners or number in self._us.pools):
                return number

    # Queues that this broker owns, and others want.

    def _owned(self, queue: Queue, tenure: int) -> None:
        owners = self._applier.owners
        assert owners is not None
        found = owners.of(queue)
        if found.owner is self._us and len(found.circle) > 1 and self._sharing.get(queue) != tenure:
            self._sharing[queue] = tenure
            delay = self._ownership_time
            self._runtime.call_later(delay, self._share, queue, tenure, queue.next_position)

    def _share(self, queue: Queue, tenure: int, position: int) -> None:
        """Long enough, if anything has come meanwhile, or is left: nobody wants to wait for a queue at rest."""
        owners = self._applier.owners
        if self._sharing.get(queue) != tenure:
            return  # it went and came back meanwhile, and the timer of this tenure is another one
        del self._sharing[queue]
        if owners is None or queue.deleted:
            return
        found = owners.of(queue)
        if found.owner is self._us and found.tenure == tenure:
            if (queue.ready or queue.next_position != position) and len(owners.interested(queue)) > 1:
                self._send(Kind.SHARE, (wire.share(queue.incarnation, tenure),))
            self._owned(queue, tenure)

    def clear(self) -> None:
        """This broker begins anew, without clients."""
        self._life += 1
        self._consumers.clear()
        self._owners.clear()
        self._accepted.clear()
        self._sharing.clear()
        self._until_ready.clear()
        self._expiring.clear()
        self._publishing = None


def _runs_short(holder: object) -> bool:
    """Whether a consumer, or its channel, holds more than half of what it may."""
    if not isinstance(holder, Subscriber):
        return False
    pool = holder.pool
    if pool is not None and pool.limit and pool.held * 2 > pool.limit:
        return True
    return holder.held * 2 > holder.limit


def _owed(left: Routed, publishes: Sequence[Publish]) -> list[Publish]:
    """Those of which something is left for the log: what became of the others is decided."""
    messages = {message for each in left.values() for message in each}
    return [publish for publish in publishes if publish.enqueued in messages]
