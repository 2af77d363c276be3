"""The connection side: what clients of this node want becomes events for the group.

It is called by the broker in the turns of connections and timers, changes nothing, and never waits: each call ends
with an event under way, and with an answer that comes when the log has brought the event back and enough brokers hold
it (`core`). What the log allots to consumers of this node is handed on here.
"""

from __future__ import annotations

import struct
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.amqp.codes import NOT_IMPLEMENTED
from coterie.broker import records
from coterie.broker.cluster import Cluster, LeaseShape, read_place
from coterie.broker.transaction import Transaction
from coterie.broker.wiring import EndOwner
from coterie.cluster import changes, wire
from coterie.cluster.consumers import Getter, Subscriber
from coterie.cluster.expiring import Expiring
from coterie.cluster.hollow import is_hollow
from coterie.cluster.homes import has_home
from coterie.cluster.local_messages import Asked
from coterie.cluster.remote_replies import tag_of
from coterie.cluster.voids import Void
from coterie.cluster.wire import Credit, Kind
from coterie.errors import ProtocolError
from coterie.log import Log
from coterie.runtime.base import Buffer

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.broker.consumer import Consumer, Sink
    from coterie.broker.entry import Entry
    from coterie.broker.leases import Lease, LeaseStep
    from coterie.broker.message import Message
    from coterie.broker.publish import Publish, Routed
    from coterie.broker.queue import Queue
    from coterie.broker.specs import QueueSpec
    from coterie.broker.vhost import PseudoQueue, Vhost
    from coterie.broker.wiring import Change
    from coterie.cluster.consumers import Peer
    from coterie.cluster.core import Core
    from coterie.replication.steps import Answer
    from coterie.runtime.base import Runtime, Timer

R = TypeVar("R")
log = Log(__name__)
GATHERING = 0.02
"""How long an accept may wait for others, if its consumer has room enough meanwhile."""
INSISTING = 0.1
INSISTING_MAX = 60.0
"""Seconds until something that was void, and must be, is sent again: the first time, and at most."""
STRAYS = 100
"""So often something may be allotted to a consumer that is gone."""
UNDER_WAY = 2
"""While so many of our events have not come back, publishes are gathered: an event costs more than its messages."""
PROMPT = 1.0
"""Seconds that what is allotted may take to be held by a majority, and still be in time when it was so on the log."""
GATHERED_MAX = 256 << 10
"""Bytes of publishes that wait for that at most."""


class Client:
    """A consumer of this node: who it is on the log, and what was allotted to it and waits for its socket."""

    __slots__ = ("consumer", "gone", "number", "pumped_later", "sent", "told", "waiting")

    def __init__(self, number: int, consumer: Consumer) -> None:
        self.number = number
        self.consumer = consumer
        self.told = Credit(number, 0, 0, 0, 0)
        """What the log knows of its limits."""
        self.waiting: deque[tuple[Subscriber, Entry]] = deque()
        self.sent = 0
        """Delivered without acknowledgement, and the log does not know yet."""
        self.gone = False
        self.pumped_later = False
        """The body of what is next is on its way."""


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
            self.size += sum(len(message.body) for message in messages)
        self.publishes += publishes
        self.dones.append(done)

    def done(self, _: object) -> None:
        for done in self.dones:
            done()


class BrokerHandler(Cluster):
    """The cluster, as a broker sees it."""

    immediate = False

    def __init__(self, core: Core, credit_max: int) -> None:
        self._core = core
        self._credit_max = credit_max
        self._clients: dict[Consumer, Client] = {}
        self._by_number: dict[int, Client] = {}
        self._numbers = 0
        self._life = 0
        """Another one whenever this broker begins anew."""
        self._released = 0
        """How often something was given back."""
        self._pools: dict[object, int] = {}
        self._owners: dict[object, int] = {}
        self._unsaid: dict[Client, None] = {}
        self._untold: dict[Client, None] = {}
        """Those with other limits than the log knows, while too much waits to be sent."""
        self._accepted: dict[Queue, list[Entry]] = {}
        """By our consumers, and not told yet."""
        self._sharing: dict[Queue, int] = {}
        """Of queues that we own and others consume: the tenure that a timer will look at."""
        self._publishing: Publishing | None = None
        """What waits for events of ours to come back."""
        self._until_ready: list[Callable[[], None]] = []
        """What waits until a queue has all of its messages."""
        self._accepts_due: Timer | None = None
        self._strays: dict[int, int] = {}
        """Consumers that are gone, and how often something was allotted to each all the same."""
        self._expiring = Expiring(self._send_expired)

    def start(self, runtime: Runtime) -> None:
        super().start(runtime)
        self._runtime = runtime

    def attach(self, broker: Broker, us: Peer) -> None:
        self._us = us
        self._homes = self._core.homes
        if self._core.handler.owners is not None:
            self._core.handler.owners.owned = self._owned
        us.allotted = self._allotted
        us.ended = self._ended

    # What the broker asks of a cluster.

    def place(self) -> str:
        progress = self._core.progress
        return f"{progress.epoch}.{progress.index}"

    def has_come_to(self, place: str) -> bool:
        progress = self._core.progress
        return read_place(place) <= (progress.epoch, progress.index)

    def may_serve(self) -> str:
        core = self._core
        if not core.serves:
            return core.why or "it does not serve"
        return "" if core.lease.valid() else "it has not heard of a majority for a while"

    def is_absent(self, entries: Iterable[Entry]) -> bool:
        return self._core.filling is not None and any(map(is_hollow, entries))

    def reading(self, queue: Queue, rows: Sequence[tuple[Entry, Message]], lease: Lease | None) -> None:
        if self._core.traced is not None:
            self._core.traced.reading(queue, rows, lease)

    def wall(self) -> float:
        return self._core.wall()

    def now(self) -> float:
        return self._core.now()

    def lead(self) -> float:
        return 0.0

    @property
    def sifts(self) -> bool:
        return self._core.time.begun

    def soon(self, call: Callable[[], None]) -> None:
        self._core.soon(call)

    def new_incarnation(self) -> int | None:
        return self._core.new_incarnation()

    def keeps_time(self) -> bool:
        return self._core.keeps_time()

    def when_held(self, call: Callable[[], None]) -> None:
        self._core.when_held(call)

    def keeps(self, spec: QueueSpec) -> bool:
        """Not what ends with this process; but what the store has, it has until the queue is deleted."""
        return self._core.handler.declaring is None or not has_home(spec)

    def opened(self, queue: Queue) -> None:
        self._core.handler.opened(queue)

    def reply_tag(self) -> str:
        return tag_of(self._core.us)

    def replies_elsewhere(self, vhost: Vhost, name: str) -> PseudoQueue | None:
        return self._core.replies.find(vhost.name, name)

    def waits_elsewhere(self, vhost: Vhost, name: str, done: Callable[[bool], None]) -> None:
        self._core.replies.ask(vhost.name, name, done)

    # Messages.

    def tell(self, kind: Kind, data: bytes) -> None:
        """An event that nobody waits for, but that others cannot do without."""
        self._insist(kind, data)

    def _insist(self, kind: Kind, data: bytes, pause: float = INSISTING) -> None:
        """What must be so in the end, as whoever wanted it is gone: if it is void, it is sent again after a while."""
        life = self._life

        def again() -> None:
            if life == self._life:
                self._insist(kind, data, min(2 * pause, INSISTING_MAX))

        self._ask(kind, (data,), Asked(b"", failed=lambda error: self._later(pause, again)))

    def _later(self, pause: float, call: Callable[[], None]) -> None:
        self._runtime.call_later(pause, call)

    def _send(self, kind: Kind, parts: Sequence[Buffer], done: Callable[[Any], None] | None = None) -> None:
        self._ask(kind, parts, Asked(b"", done))

    def _ask(self, kind: Kind, parts: Sequence[Buffer], asked: Asked) -> None:
        """Nothing overtakes what waits."""
        self.flush()
        self._core.sending.send(kind, parts, asked)

    def flush(self) -> None:
        """Send what is gathered."""
        if self._accepted:
            self._send_accepted()
        if self._publishing is not None:
            self._send_published()

    def publish(
        self, vhost: Vhost, routed: Routed, done: Callable[[], None], publishes: Sequence[Publish] = ()
    ) -> None:
        if self._homes.here:
            routed = self._homes.enqueue(routed, publishes)
        if not routed:
            if self._publishing is None:
                self._core.sending.behind_answers(done)
            else:
                self._publishing.dones.append(done)
            return
        on_disk = any(
            queue.spec.durable and queue.home is None and any(message.persistent for message in messages)
            for queue, messages in routed.items()
        )
        waiting = self._publishing
        if waiting is not None and waiting.on_disk != on_disk:
            self._send_published()
        if self._publishing is None:
            self._publishing = Publishing(on_disk)
        self._publishing.add(routed, done, publishes)
        if self._core.local.under_way < UNDER_WAY or self._publishing.size > GATHERED_MAX:
            self._send_published()

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
            self._core.sending.behind_answers(partial(waiting.done, None))
            return
        self._ask(kind, parts, Asked(b"", waiting.done, waiting.routed, waiting.publishes, waiting.on_disk))

    def came_back(self) -> None:
        """Some of our events have: those that wait for that may go."""
        if self._untold and not self._core.sending.is_full:
            untold, self._untold = self._untold, {}
            for client in untold:
                self.wake(client.consumer.queue, client.consumer)
        if self._publishing is not None and self._core.local.under_way < UNDER_WAY:
            self._send_published()

    def acquire(self, queue: Queue, consumer: Consumer, entries: list[Entry]) -> None:
        """It follows from the log: everybody takes this step now."""
        queue.apply_acquire(consumer, entries)

    def accept(self, queue: Queue, entries: Sequence[Entry]) -> None:
        """Nobody waits for it, unless a consumer runs short of room: so several accepts become one event."""
        gathered = self._accepted.get(queue)
        if gathered is None:
            self._accepted[queue] = [*entries]
        else:
            gathered += entries
        if any(map(_runs_short, {entry.holder for entry in entries})):
            self._send_accepted()
        elif self._accepts_due is None:
            self._accepts_due = self._runtime.call_later(GATHERING, self._send_accepted)

    def _send_accepted(self) -> None:
        if self._accepts_due is not None:
            self._accepts_due.cancel()
            self._accepts_due = None
        accepted, self._accepted = self._accepted, {}
        for queue, entries in accepted.items():
            asked = Asked(b"", done=None, failed=partial(self._not_settled, queue, entries))
            self._core.sending.send(Kind.ACCEPT, (wire.settle(queue.incarnation, entries),), asked)

    def reject(self, queue: Queue, entries: Sequence[Entry]) -> None:
        asked = Asked(b"", failed=partial(self._not_settled, queue, entries))
        self._ask(Kind.REJECT, (wire.settle(queue.incarnation, entries),), asked)

    def _not_settled(self, queue: Queue, entries: Sequence[Entry], error: Void) -> None:
        """Their holders believe that they are done with them: they are told, and the messages go back."""
        held = [entry for entry in entries if isinstance(entry.holder, (Subscriber, Getter))]
        sinks = {self._sink(entry.holder): None for entry in held}
        if held:
            self.release(queue, held, redelivered=True)
        for sink in sinks:
            if sink is not None:
                sink.failed(error)

    def _sink(self, holder: object) -> Sink | None:
        client = self._by_number.get(holder.number) if isinstance(holder, Subscriber) else None
        return None if client is None else client.consumer.sink

    def release(self, queue: Queue, entries: Sequence[Entry], redelivered: bool) -> None:
        self._released += 1
        self._insist(Kind.RELEASE, wire.release(queue.incarnation, entries, redelivered))

    def expire(self, queue: Queue) -> None:
        if self.keeps_time():
            self._expiring.found(queue, queue.lanes.expired(self.now()), self._runtime.now())

    def _send_expired(self, queue: Queue, entries: Sequence[Entry]) -> None:
        def failed(error: Void) -> None:
            self._expiring.failed(queue, entries, self._runtime.now())

        asked = Asked(b"", failed=failed, after=[partial(self._expiring.over, queue)])
        self._ask(Kind.EXPIRE, (wire.settle(queue.incarnation, entries),), asked)

    def get(
        self, queue: Queue, holder: object, no_ack: bool, done: Callable[[Entry | ProtocolError | None], None]
    ) -> None:
        unready = self._us.unready
        if unready and (no_ack or queue.incarnation in unready):
            self._until_ready.append(partial(self.get, queue, holder, no_ack, done))
            return

        def answered(entry: Entry | ProtocolError | None) -> None:
            filling = self._core.filling
            if isinstance(entry, ProtocolError):
                done(entry)
                return
            if entry is not None and filling is not None and is_hollow(entry):
                filling.when_filled(partial(answered, entry))
                return
            before = self._released
            done(entry)
            traced = self._core.traced
            if entry is not None and traced is not None and self._released == before:
                traced.given(queue, [entry])  # whoever asked was still there

        self._numbers += 1
        self._send(Kind.GET, (wire.get(queue.incarnation, self._numbers, no_ack),), answered)

    def queues_ready(self) -> None:
        """Some have all of their messages, which was not so before."""
        waiting, self._until_ready = self._until_ready, []
        for call in waiting:
            call()

    def transaction(
        self, vhost: Vhost, transaction: Transaction, done: Callable[[], None], publishes: Sequence[Publish] = ()
    ) -> None:
        answers = [
            {queue.incarnation: [entry.position for entry in entries] for queue, entries in part.items()}
            for part in (transaction.accepts, transaction.rejects, transaction.requeues)
        ]
        parts: list[Buffer] = []
        wire.encode_transaction(answers, transaction.routed, parts)
        settled = (transaction.accepts, transaction.rejects, transaction.requeues)

        def failed(error: Void) -> None:
            for part in settled:
                for queue, entries in part.items():
                    self._not_settled(queue, entries, error)

        asked = Asked(b"", lambda _: done(), transaction.routed, publishes, True, failed=failed)
        self._ask(Kind.TRANSACTION, parts, asked)

    # The wiring.

    def wiring(self, vhost: Vhost, change: Change[R], done: Callable[[R | ProtocolError], None]) -> None:
        if isinstance(change, EndOwner) and change.owner not in self._owners:
            return  # it never was the owner of anything
        said = changes.encode(change, self._owner_number)
        said["vhost"] = vhost.name
        if isinstance(change, EndOwner):
            del self._owners[change.owner]
            self._insist(Kind.WIRING, wire.encode_json(said))
            return
        asked = Asked(b"", done, on_disk=True, everywhere=True)  # type: ignore[arg-type]
        self._ask(Kind.WIRING, (wire.encode_json(said),), asked)

    def replicate(self, vhost: Vhost, step: bytes, done: Callable[[Answer], None]) -> None:
        """What is no step is refused here: on the log it would be everybody's trouble."""
        read = vhost.read_step(step)
        if isinstance(read, dict):
            done(read)
        else:

            def answered(answer: Any) -> None:
                done({"error": str(answer)} if isinstance(answer, Void) else answer)

            self._ask(Kind.REPLICATE, wire.step(vhost.name, step), Asked(b"", answered, on_disk=True))

    def lease(self, queue: Queue, step: LeaseStep, done: Callable[[LeaseShape | ProtocolError], None]) -> None:
        if self._core.versions.spoken < wire.LEASES:
            done(ProtocolError(NOT_IMPLEMENTED, "a voter of the cluster is too old for leases: upgrade it"))
            return
        try:
            step.check()  # what is no step is refused here: on the log it would be everybody's trouble
        except ProtocolError as error:
            done(error)
            return
        said = {"queue": queue.incarnation, "step": step.to_json()}
        asked = Asked(b"", done, on_disk=queue.spec.durable)  # type: ignore[arg-type]
        self._ask(Kind.LEASE, (wire.encode_json(said),), asked)

    def administer(self, broker: Broker, said: dict[str, object], done: Callable[[Any], None]) -> None:
        self._ask(Kind.ADMINISTRATION, (wire.encode_json(said),), Asked(b"", done, on_disk=True, everywhere=True))

    def _owner_number(self, owner: object) -> int:
        number = self._owners.get(owner)
        if number is None:
            number = self._owners[owner] = self._new_number()
            self._us.owners[number] = owner
        return number

    # Consumers.

    def consume(self, consumer: Consumer, done: Callable[[ProtocolError | None], None]) -> None:
        client = Client(self._new_number(), consumer)
        self._clients[consumer] = self._by_number[client.number] = client
        client.told = credit = self._limits(client)
        said = {
            "queue": consumer.queue.incarnation, "number": client.number, "tag": consumer.tag,
            "flags": [consumer.no_ack, consumer.exclusive], "priority": consumer.priority, "limit": credit.limit,
            "pool": [credit.pool, credit.pool_limit], "args": records.pack(consumer.arguments),
            "details": consumer.sink.details(),
        }  # fmt: skip

        def answered(error: ProtocolError | None) -> None:
            if error is not None:
                self._forget(client)
            done(error)

        self._send(Kind.CONSUME, (wire.encode_json(said),), answered)

    def cancel(self, consumer: Consumer) -> None:
        client = self._clients.get(consumer)
        if client is not None:
            self._forget(client)
            self._insist(Kind.CANCEL, wire.credit(Credit(client.number, 0, 0, 0, 0), self._core.versions.spoken))
            self._give_back(client)

    def _new_number(self) -> int:
        """Of a consumer, a connection or a limit that consumers share: none that is in use. While an old voter keeps
        old events spoken, it has 32 bits."""
        while True:
            self._numbers += 1
            number = self._numbers
            if self._core.versions.spoken >= wire.WIDE:
                return number
            number = (number - 1) % wire.NARROW_MAX + 1
            if not (number in self._by_number or number in self._us.owners or number in self._us.pools):
                return number

    def _forget(self, client: Client) -> None:
        client.gone = True
        self._clients.pop(client.consumer, None)
        self._by_number.pop(client.number, None)
        pool = client.told.pool
        if pool and all(other.told.pool != pool for other in self._clients.values()):
            self._pools = {group: number for group, number in self._pools.items() if number != pool}

    def wake(self, queue: Queue, consumer: Consumer) -> None:
        """It may have room again, or other limits."""
        client = self._clients.get(consumer)
        if client is None:
            return
        credit = self._limits(client)
        if credit != client.told:
            if self._core.sending.is_full:  # a client may change its mind as often as it likes
                self._untold[client] = None
            else:
                client.told = credit
                self._send_credit(client, credit)
        self._pump(client)

    def _limits(self, client: Client) -> Credit:
        consumer = client.consumer
        if consumer.no_ack:
            return Credit(client.number, self._credit_max, 0, 0, 0)
        limit, group, together = consumer.sink.limits(consumer)
        pool = 0
        if together:
            pool = self._pools.get(group, 0)
            if not pool:
                pool = self._pools[group] = self._new_number()
        return Credit(client.number, limit or self._credit_max, pool, together, 0)

    # Queues that this broker owns, and others want.

    def _owned(self, queue: Queue, tenure: int) -> None:
        owners = self._core.handler.owners
        assert owners is not None
        found = owners.of(queue)
        if found.owner is self._us and len(found.circle) > 1 and self._sharing.get(queue) != tenure:
            self._sharing[queue] = tenure
            delay = self._core.settings.ownership_time
            self._runtime.call_later(delay, self._share, queue, tenure, queue.next_position)

    def _share(self, queue: Queue, tenure: int, position: int) -> None:
        """Long enough, if anything has come meanwhile, or is left: nobody wants to wait for a queue at rest."""
        owners = self._core.handler.owners
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

    # What the log allots to them.

    def _allotted(self, subscriber: Subscriber, entries: list[Entry]) -> None:
        client = self._by_number.get(subscriber.number)
        if client is None:
            if not subscriber.no_ack:
                self.release(subscriber.queue, entries, redelivered=False)
            self._end_stray(subscriber.number)
            return
        self._core.when_held(partial(self._hand_on, client, subscriber, entries))

    def _end_stray(self, number: int) -> None:
        """Something is allotted to a consumer that is gone. Mostly its cancel is under way; but if that goes on and on,
        the log knows of a consumer that there never was, and must be told."""
        self._strays[number] = self._strays.get(number, 0) + 1
        if self._strays[number] >= STRAYS:
            self._insist(Kind.CANCEL, wire.credit(Credit(number, 0, 0, 0, 0)))
        if self._strays[number] >= STRAYS or len(self._strays) > STRAYS:
            self._strays.clear()

    def _hand_on(self, client: Client, subscriber: Subscriber, entries: list[Entry]) -> None:
        waited = bool(client.waiting)
        client.waiting.extend((subscriber, entry) for entry in entries)
        self._pump(client, waited)

    def _pump(self, client: Client, waited: bool = True) -> None:
        """As far as it has room. `waited`: it had none before."""
        waiting, consumer = client.waiting, client.consumer
        if client.gone:
            self._give_back(client)
            return
        now = None
        if consumer.queue.expiry.mortal and self.sifts and not consumer.no_ack:
            now = self.now() - (0.0 if waited else PROMPT)
        while waiting and (room := consumer.sink.room(consumer)) > 0:
            entries: list[Entry] = []
            gone: list[Entry] = []
            late: list[Entry] = []
            while waiting and len(entries) < room and not self._comes_later(client):
                subscriber, entry = waiting.popleft()
                if not consumer.no_ack and entry.holder is not subscriber:
                    gone.append(entry)
                else:
                    (late if now is not None and _is_over(entry, now) else entries).append(entry)
            if not entries and not gone and not late:
                return
            self._write_off(consumer.queue, gone)
            if late:  # they have waited until their time was over: on the log, nobody is given them any more
                self.release(consumer.queue, late, redelivered=False)
            if entries:
                if self._core.traced is not None:
                    self._core.traced.given(consumer.queue, entries)
                consumer.sink.deliver(consumer, entries)
                if consumer.no_ack:
                    client.sent += len(entries)
                    if not self._unsaid:
                        self._runtime.call_soon(self._say_sent)
                    self._unsaid[client] = None

    def _comes_later(self, client: Client) -> bool:
        """Whether the body of what is next is on its way to this broker, which catches up."""
        filling = self._core.filling
        subscriber, entry = client.waiting[0]
        if filling is None or entry.holder is not subscriber or not is_hollow(entry):
            return False
        if not client.pumped_later:  # once, however often it is looked at meanwhile
            client.pumped_later = True
            filling.when_filled(partial(self._pump_later, client))
        return True

    def _pump_later(self, client: Client) -> None:
        client.pumped_later = False
        self._pump(client)

    def _say_sent(self) -> None:
        unsaid, self._unsaid = self._unsaid, {}
        for client in unsaid:
            self._send_credit(client, Credit(client.number, 0, 0, 0, client.sent))
            client.sent = 0

    def _send_credit(self, client: Client, credit: Credit) -> None:
        data = wire.credit(credit, self._core.versions.spoken)
        self._ask(Kind.CREDIT, (data,), Asked(b"", failed=client.consumer.sink.failed))

    def _give_back(self, client: Client) -> None:
        """It never saw them."""
        entries = [entry for subscriber, entry in client.waiting if entry.holder is subscriber]
        gone = [entry for subscriber, entry in client.waiting if entry.holder is not subscriber]
        client.waiting.clear()
        if client.consumer.no_ack:
            return
        if entries:
            self.release(client.consumer.queue, entries, redelivered=False)
        self._write_off(client.consumer.queue, gone)

    def _write_off(self, queue: Queue, entries: list[Entry]) -> None:
        """They left their queue after they were allotted, and nobody will answer for them: off the account."""
        if entries:
            self._insist(Kind.ACCEPT, wire.settle(queue.incarnation, entries))

    def _ended(self, subscriber: Subscriber) -> None:
        """Its queue is gone."""
        client = self._by_number.get(subscriber.number)
        if client is not None:
            self._forget(client)
            self._give_back(client)
            client.consumer.sink.cancelled(client.consumer)

    def clear(self) -> None:
        """This broker begins anew, without clients."""
        self._life += 1
        for client in self._clients.values():
            client.gone = True
        self._clients.clear()
        self._by_number.clear()
        self._owners.clear()
        self._pools.clear()
        self._unsaid.clear()
        self._untold.clear()
        self._accepted.clear()
        self._sharing.clear()
        self._until_ready.clear()
        self._expiring.clear()
        self._publishing = None


def _is_over(entry: Entry, now: float) -> bool:
    return entry.expires is not None and entry.expires <= now


def _runs_short(holder: object) -> bool:
    """Whether a consumer, or its channel, holds more than half of what it may."""
    if not isinstance(holder, Subscriber):
        return False
    pool = holder.pool
    if pool is not None and pool.limit and pool.held * 2 > pool.limit:
        return True
    return holder.held * 2 > holder.limit
