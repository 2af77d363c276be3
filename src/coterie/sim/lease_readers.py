"""A simulated reader of a stream: it leases, reads from any broker, retires, crashes, and takes over its own lease.

It is what asks a broker's console, without the HTTP between them: a request reaches a broker that serves, or nobody; an
answer that takes too long, or whose broker died, is not waited for. What it has committed survives its crashes, as a
checkpoint does; everything else it must learn again from the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from coterie.amqp.wire.codes import NOT_FOUND
from coterie.broker.leases import ACQUIRE, END, RELEASE, RETIRE, TAKE, Gone, Lease, LeaseStep
from coterie.broker.reading import LeaseRead, Slice
from coterie.errors import ProtocolError
from coterie.sim.broker_clients import Memory

if TYPE_CHECKING:
    from coterie.broker.queue import Queue
    from coterie.sim.clock import World
    from coterie.sim.cluster_node import ClusterHost

STEP: Final = 0.03
"""Seconds between two things that it does."""
PATIENCE: Final = 1.0
"""Seconds after which it waits for an answer no more."""
SLICE: Final = 300
"""Bytes of a slice, so that a read has several."""
USER: Final = "reader"
Answer = dict[str, Any]


class LeaseReader:
    """Of one queue."""

    def __init__(
        self,
        world: World,
        hosts: Mapping[str, ClusterHost],
        queue: str,
        memory: Memory,
        complain: Callable[[str], None],
    ) -> None:
        self._world = world
        self._hosts = hosts
        self._queue = queue
        self._memory = memory
        self._complain = complain
        self._rng = world.rng(f"lease/{queue}")
        self._session = 0
        self._takes_over = False
        """It has crashed, and its successor must have the lease first."""
        self._known: Answer | None = None
        """What the lease is, as it was told last."""
        self._read: dict[tuple[int, int], str] = {}
        """By lease and offset: what was read there, whenever and wherever."""
        self._retiring: list[tuple[int, int]] = []
        """Incarnation and position of what the retirement that is under way is about."""
        self._gone: set[tuple[int, int]] = set()
        """And of what was retired."""
        self._since_place = "0.0"
        """Of the log: there they were gone."""
        self._waits = 0
        self._asked = 0
        self._since = 0.0
        self.ending = False
        """It gives everything back."""
        self.ended = False

    # What it does.

    def step(self) -> None:
        """Again and again."""
        if self.ended and self._is_there():
            self.ended = False  # a request that was not waited for has made it again
        if not self.ended:
            self._go_on()
        self._world.after(STEP * (0.5 + self._rng.random()), self._world.nature, self.step)

    def _go_on(self) -> None:
        if self._waits and self._world.time - self._since > PATIENCE:
            self._waits = 0
            self._crash()  # what is still under way must not count later
        if not self._waits:
            self._do()
        self.look_back()

    def _is_there(self) -> bool:
        """Whether a broker that serves has the lease."""
        brokers = [host.broker for host in self._hosts.values() if host.serves and host.broker is not None]
        queues = [broker.vhosts["/"].queues.get(self._queue) for broker in brokers]
        return any(queue is not None and queue.leases.get("stream") is not None for queue in queues)

    def _do(self) -> None:
        if self.ending:
            self._ask(END, session=None)
            return
        known, chance = self._known, self._rng.random()
        if self._takes_over:
            self._ask(TAKE)
        elif known is None or chance < 0.35:
            after = None if known is None else known["next"]
            self._ask(ACQUIRE, rows=self._rng.choice((1, 3, 20)), after=after)
        elif chance < 0.65:
            self._read_some(known)
        elif chance < 0.9:
            self._retire(known)
        elif chance < 0.95:
            self._ask(RELEASE, id=known["id"], first=self._rng.randint(known["first"], known["next"]))
        else:
            self._crash()

    def _crash(self) -> None:
        """Its successor takes the lease over, and learns from it what it has."""
        self._known, self._takes_over = None, True
        self._session += 1

    def _retire(self, known: Answer) -> None:
        """What it has read, from the first on."""
        upto = known["first"]
        for offset, first, last, _ in known["pieces"]:
            if offset != upto:
                upto = offset  # what is between was released
            while upto <= offset + last - first and (known["id"], upto) in self._read:
                upto += 1
            if upto <= offset + last - first:
                break
        if upto > known["first"]:
            self._retiring = [
                (known["incarnation"], first + n)
                for offset, first, last, _ in known["pieces"]
                for n in range(last - first + 1)
                if offset + n < upto
            ]
            self._ask(RETIRE, id=known["id"], upto=upto)

    # Requests.

    def _broker(self) -> tuple[ClusterHost, Queue] | None:
        """One that lets clients in and has the queue."""
        names = [
            name for name, host in self._hosts.items() if host.node.alive and host.member and host.member.replica.serves
        ]
        host = self._hosts[self._rng.choice(names)] if names else None
        if host is None or host.broker is None:
            return None
        queue = host.broker.vhosts["/"].queues.get(self._queue)
        return None if queue is None else (host, queue)

    def _ask(self, do: str, **more: Any) -> None:
        found = self._broker()
        if found is None:
            return
        host, queue = found
        step = LeaseStep(do, "stream", USER, **{"session": str(self._session), **more})
        self._asked += 1
        number = self._waits = self._asked
        self._since = self._world.time
        process = host.node.process
        assert process is not None

        def answered(answer: Answer | Exception) -> None:
            self._world.soon(self._world.nature, self._answered, number, step, answer)

        self._world.soon(process.owner, queue.cluster.lease, queue, step, answered)

    def _answered(self, number: int, step: LeaseStep, answer: Answer | Exception) -> None:
        current = number == self._waits
        if isinstance(answer, Exception):
            if current:
                self._waits, self._known, self._takes_over = 0, None, False
                gone = isinstance(answer, ProtocolError) and answer.reply_code == NOT_FOUND
                self.ended = self.ending and gone  # there is none, or no queue
            return
        if current:
            if step.do == RETIRE:
                self._retired(answer, step.upto)
            self._waits, self._known, self._takes_over = 0, answer, False
            self._memory.homely[f"lease.{step.do}"] += 1
            if step.do == END and not answer["more"]:
                self.ended = True

    def _retired(self, answer: Answer, upto: int) -> None:
        if answer["first"] < upto and answer["count"]:
            self._complain(f"offset {upto} of {self._queue} was to be retired, and {answer['first']} is still there")
        self._gone.update(self._retiring)
        self._since_place = answer["at"]

    def look_back(self) -> None:
        """What was retired is nowhere, on no broker that has come so far."""
        for host in self._hosts.values():
            if host.broker is None or host.member is None or not host.serves:
                continue
            queue = host.broker.vhosts["/"].queues.get(self._queue)
            if queue is not None and queue.cluster.has_come_to(self._since_place):
                back = [position for position in queue.positions() if (queue.incarnation, position) in self._gone]
                if back:
                    self._complain(f"{host.node.name} has positions {back} of {self._queue}, which were retired")

    # Reading.

    def _read_some(self, known: Answer) -> None:
        """A part of what it has, in slices, from any broker that has come so far."""
        found = self._broker()
        if found is None or not known["count"]:
            return
        host, queue = found
        cluster = queue.cluster
        if cluster.may_serve() or not cluster.has_come_to(known["at"]):
            return
        offset, first, last, _ = self._rng.choice(known["pieces"])
        process = host.node.process
        assert process is not None
        begin = partial(self._begin, queue, known["id"], offset, offset + last - first + 1)
        self._world.soon(process.owner, cluster.when_held, begin)

    def _begin(self, queue: Queue, id: int, first: int, stop: int) -> None:
        lease = queue.leases.get("stream")
        if lease is not None and lease.id == id and stop <= lease.next:
            try:
                read = LeaseRead(lease, first, stop, SLICE)
            except Gone:
                return  # it was retired or released meanwhile
            self._next(read, lease)

    def _next(self, read: LeaseRead, lease: Lease) -> None:
        def given(part: Slice | Exception) -> None:
            if isinstance(part, Exception):
                return
            assert part.offsets is not None
            for offset, row in zip(part.offsets, part.rows, strict=True):
                message = row.message
                self._see(lease.id, offset, message.body.partition(b"|")[0].decode())
            self._memory.homely["lease.read"] += 1
            if not part.last:
                self._world.soon(self._world.owner, self._next, read, lease)

        read.next(given)

    def _see(self, id: int, offset: int, name: str) -> None:
        before = self._read.setdefault((id, offset), name)
        if before != name:
            self._complain(f"offset {offset} of a lease of {self._queue} was {before}, and is {name}")
        self._memory.seen.add(name)
