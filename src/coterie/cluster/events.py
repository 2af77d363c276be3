"""Events of brokers, each in its place of the log: whether it counts, what is made of it, and who is told when.

An event counts if its broker serves, and it is that broker's next one. What it does is done as a whole, or it is void
(voids.py), at every broker alike.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from coterie.broker.journal import NO_VERDICT, Broken
from coterie.cluster import wire
from coterie.cluster.voids import Void, Voids
from coterie.cluster.wire import Kind

if TYPE_CHECKING:
    from coterie.broker.storage import Store
    from coterie.cluster.answers import Answers
    from coterie.cluster.applier import Applier
    from coterie.cluster.disk_sync import DiskSync
    from coterie.cluster.outbox import Asked, LocalMessages
    from coterie.cluster.replica import Replica
    from coterie.cluster.traced import ClusterTrace
    from coterie.cluster.turn import Turn
    from coterie.group.members import Address

EVERYWHERE = frozenset((Kind.WIRING, Kind.ADMINISTRATION, Kind.HOME))
"""Events whose senders wait until every broker that serves has applied them."""


class Events:
    """Of one broker."""

    def __init__(
        self, replica: Replica, turn: Turn, applier: Applier, local: LocalMessages, answers: Answers, store: Store,
        disk_sync: DiskSync, voids: Voids, traced: ClusterTrace | None,
    ) -> None:  # fmt: skip
        self._replica = replica
        self._turn = turn
        self._applier = applier
        self._local = local
        self._answers = answers
        self._store = store
        self._disk_sync = disk_sync
        self._voids = voids
        self._traced = traced
        self._disk_matters = False
        self._all_wait = False

    def take_disk_matters(self) -> bool:
        """Whether an event was applied since whose sender waits for disks."""
        found, self._disk_matters = self._disk_matters, False
        return found

    def take_all_wait(self) -> bool:
        """Whether one was applied since whose sender waits until everybody has."""
        found, self._all_wait = self._all_wait, False
        return found

    def take(self, sender: Address, head: wire.Head, data: memoryview) -> None:
        """The next of the log."""
        replica, local = self._replica, self._local
        origin = self._applier.peer(sender) if replica.follows and replica.serves_with(sender) else None
        counts = origin is not None and head.number == origin.events + 1
        asked = local.back(counts) if sender == replica.us and local.under_way else None
        if origin is not None and counts:
            self._turn.settle()
            origin.events += 1
            self._apply(sender, origin.effect_name, head, data, asked)

    def _apply(self, sender: Address, name: bytes, head: wire.Head, data: memoryview, asked: Asked | None) -> None:
        replica, turn = self._replica, self._turn
        before, effects = replica.progress, turn.journal.effects
        replica.begin_event(self._store.written())
        turn.begin(self._time_of(head))
        effects.begin(turn.wall())
        if head.kind in EVERYWHERE:
            self._all_wait = True
        if head.on_disk:
            self._disk_sync.awaited_by(sender)
            self._disk_matters = True
        try:
            answer = turn.journal.run(partial(self._do, head.kind, sender, data, asked))
        except (*NO_VERDICT, Broken):
            replica.take_back(before)
            raise
        except Exception:
            answer = self._void(sender, head.kind)
            effects.void()
            if asked is not None:
                asked.fail()
        finally:
            turn.end()
            made = effects.take()
        replica.end_event(head, name, data, made)
        if self._traced is not None:
            self._traced.applied()
        if asked is not None:
            self.answer(asked, answer)
            if isinstance(answer, Void) and asked.failed is not None:
                self._answers.deliver(replica.place, partial(asked.failed, answer))

    def _do(self, kind: Kind, sender: Address, data: memoryview, asked: Asked | None) -> object:
        answer = self._applier.apply(kind, sender, data, asked)
        self._turn.finish()
        return answer

    def _void(self, sender: Address, kind: Kind) -> Void:
        found = self._voids.add(self._replica.progress, sender, kind)
        if self._traced is not None:
            self._traced.void(kind.name)
        return found

    def _time_of(self, head: wire.Head) -> float:
        time, knows = self._turn.time, head.version >= wire.LOG_TIME
        if time.begun:
            return time.reach(head.wall if knows else None)
        if knows:  # the first event of the new version: what there is begins its time anew, alike everywhere
            time.begin(head.wall)
            for queue in self._applier.queues.values():
                if queue.home is None:
                    queue.expiry.begin_anew(head.wall)
        return head.wall

    def answer(self, asked: Asked, answer: object) -> None:
        """To whoever asked for an event, when it may be told."""
        place, at = self._replica.place, self._replica.progress.index
        index = at if asked.on_disk and self._store.durable else 0
        if asked.done is not None:
            if asked.everywhere:
                answer_later = partial(self._answers.answer_when_known, place, index, at)
            else:
                answer_later = partial(self._answers.answer, place, index)
            if self._traced is not None:
                answer_later(partial(self._traced.promised, index))
            answer_later(partial(asked.done, answer))
        for done in asked.after:
            self._answers.answer(place, index, done)
