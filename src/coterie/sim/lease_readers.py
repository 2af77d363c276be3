"""A simulated reader of a stream: it leases, reads from any broker, retires, crashes, and takes over its own lease.

It is what asks a broker's console, without the HTTP between them: a request reaches a broker that serves, or nobody; an
answer that takes too long, or whose broker died, is not waited for. What it has committed survives its crashes, as a
checkpoint does; everything else it must learn again from the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from coterie.broker.leases import ACQUIRE, END, RELEASE, RETIRE, TAKE, Gone, Lease, LeaseStep
from coterie.broker.reading import LeaseRead, Slice
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
        self._waits = 0
        self._asked = 0
        self._since = 0.0
        self._given_back: set[tuple[int, int]] = set()
        """By lease and offset: what it has released, or may have; it comes again with another offset."""
        self._retired_at: dict[str, str] = {}
        """By name: as of which place of the log it is retired."""
        self.ending = False
        """It gives everything back."""
        self.ended = False

    # What it does.

    def step(self) -> None:
        """Again and again."""
        if self.ended:
            return
        if self._waits and self._world.time - self._since > PATIENCE:
            self._waits = 0
        if not self._waits:
            self._do()
        self._world.after(STEP * (0.5 + self._rng.random()), self._world.nature, self.step)

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
            first = self._rng.randint(known["first"], known["next"])
            self._given_back.update((known["id"], offset) for offset in range(first, known["next"]))
            self._ask(RELEASE, id=known["id"], first=first)
        else:
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
            self._ask(RETIRE, id=known["id"], upto=upto)

    # Requests.

    def _broker(self) -> tuple[ClusterHost, Queue] | None:
        """One that lets clients in and has the queue."""
        names = [name for name, host in self._hosts.items() if host.node.alive and host.core and host.core.serves]
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
                self.ended = self.ending  # there is none, or no queue
            return
        if step.do == RETIRE:  # whoever waits for it: it is true for ever
            self._retired(answer, step.upto)
        if current:
            self._waits, self._known, self._takes_over = 0, answer, False
            self._memory.homely[f"lease.{step.do}"] += 1
            if step.do == END and not answer["more"]:
                self.ended = True

    def _retired(self, answer: Answer, upto: int) -> None:
        if answer["first"] < upto and answer["count"]:
            self._complain(f"offset {upto} of {self._queue} was to be retired, and {answer['first']} is still there")
        for (id, offset), name in self._read.items():
            if id == answer["id"] and offset < upto and (id, offset) not in self._given_back:
                self._memory.accepted.add((self._queue, name))
                self._retired_at.setdefault(name, answer["at"])

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
            # A broker that has not come to where something was retired may still give it to who did not wait for that.
            retired = {name for name, at in self._retired_at.items() if queue.cluster.has_come_to(at)}
            self._next(read, lease, retired)

    def _next(self, read: LeaseRead, lease: Lease, retired: set[str]) -> None:
        def given(part: Slice | Exception) -> None:
            if isinstance(part, Exception):
                return
            assert part.offsets is not None
            for offset, (_, message) in zip(part.offsets, part.rows, strict=True):
                self._see(lease.id, offset, message.body.partition(b"|")[0].decode(), retired)
            self._memory.homely["lease.read"] += 1
            if not part.last:
                self._world.soon(self._world.owner, self._next, read, lease, retired)

        read.next(given)

    def _see(self, id: int, offset: int, name: str, retired: set[str]) -> None:
        before = self._read.setdefault((id, offset), name)
        if before != name:
            self._complain(f"offset {offset} of a lease of {self._queue} was {before}, and is {name}")
        if name in retired:
            self._complain(f"{name} of {self._queue} was read through a lease after it had been accepted")
        self._memory.seen.add(name)
