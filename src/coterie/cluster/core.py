"""The core of a clustered broker: it holds the parts together, and knows whether this broker may serve.

A broker is *in step* if its state is what the ordered log says. While brokers that are in step are a majority of the
voters, they serve. The log is the total order of the group, view after view; only what is ordered while there is a
majority counts, and whoever sent something that did not count sends it again. A member that is lost is lost at the
place of the next view in the log. Whoever was away, or comes back alone, is updated by one that is in step: as soon as
it knows of every message it serves, and while it gets their bodies it is *catching up*: its events count, but nobody
counts on it.

  JOINING    not in step: waits for an update, or for enough others to begin with
  SERVING    in step or catching up, with a majority
  STRANDED   in step, without a majority: publishers are blocked, nothing is confirmed, accepted or delivered
  DRAINED    it has handed over what it held, given up its vote, and left
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from coterie.broker.journal import NO_VERDICT, Broken
from coterie.cluster import chain, wire
from coterie.cluster.alarms import Alarms
from coterie.cluster.broker_handler import BrokerHandler
from coterie.cluster.disks import Disks
from coterie.cluster.forget import Forgetting
from coterie.cluster.franchise import Franchise
from coterie.cluster.homes import Homes
from coterie.cluster.lease import Lease
from coterie.cluster.local_messages import Asked
from coterie.cluster.log_time import LogTime
from coterie.cluster.message_handler import MessageHandler
from coterie.cluster.own_store import NOTHING, WayBack
from coterie.cluster.ownership import Owners
from coterie.cluster.pending import Pending, Place
from coterie.cluster.remote_replies import RemoteReplies
from coterie.cluster.reports import Everywhere
from coterie.cluster.sending import ALARM, Sending
from coterie.cluster.settings import ClusterSettings
from coterie.cluster.standing import Standing
from coterie.cluster.status import ClusterStatus, describe
from coterie.cluster.stepping_back import SteppingBack
from coterie.cluster.traced import ClusterTrace
from coterie.cluster.update import Update, Updates
from coterie.cluster.versions import Versions
from coterie.cluster.voids import Void, Voids
from coterie.cluster.voters import Era, Progress, majority
from coterie.cluster.whereabouts import Whereabouts
from coterie.cluster.wire import Kind
from coterie.cluster.words import Words
from coterie.errors import PeerError
from coterie.group.channel import Channel, Delivery, Receiver
from coterie.group.members import Address, MergeView, View, ViewId
from coterie.log import Log
from coterie.runtime.base import Buffer, Runtime

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.cluster.drain import Drain
    from coterie.cluster.filling import Filling

log = Log(__name__)
EVERYWHERE = frozenset((Kind.WIRING, Kind.ADMINISTRATION, Kind.HOME))
"""Events whose senders wait until every broker that serves has applied them."""
RECORD = "cluster"
"""The kind of the record in the store that says how far its content has come."""


def _nothing() -> None:
    pass


class State(Enum):
    JOINING = "joining"
    SERVING = "serving"
    STRANDED = "stranded"
    DRAINED = "drained"


class Core(Receiver):
    """One of them for each broker. `connect` once the broker has recovered."""

    def __init__(self, runtime: Runtime, settings: ClusterSettings) -> None:
        self.runtime = runtime
        self.settings = settings
        self.state = State.JOINING
        self.progress = Progress()
        self.chain = chain.UNKNOWN
        """Of all that the log has brought so far."""
        self._kept = self.progress, self.chain
        """As they were at the last event of which the store keeps something. It is the same everywhere."""
        self._kept_at = 0
        self.content = NOTHING
        """Of the store, as it was found."""
        self.era = Era()
        self.cluster = ""
        self.voters: tuple[str, ...] = ()
        self.versions = Versions()
        self.damaged = False
        self.updating = False
        """What it had is not right, and what it is to have is not complete."""
        self.way_back = WayBack(self)
        self._goal = Progress()
        """While it is updated: of the state that it is to have."""
        self.filling: Filling | None = None
        """While it gets the bodies of its messages."""
        self.questions = count(1)
        """The numbers of those that ask for bodies, over all updates."""
        self.why = "not connected yet"
        """Why it does not serve."""
        self.in_step: list[Address] = []
        """Who is, in the order of the view."""
        self.catching_up: dict[Address, Progress] = {}
        """Who is, and where the state was cut that it gets."""
        self.lives: dict[Address, Progress] = {}
        """Of those who serve: where in the log the present life of each one's store began."""
        self.members: tuple[Address, ...] = ()
        """Of the view, as of the place of the log that was applied last."""
        self.cut_off: list[Callable[[str], None]] = []
        """Told when this broker's clients must go: it was away, and is to be updated."""
        self.changed: list[Callable[[], None]] = []
        """Told when the state, the view or the voters have changed."""
        self.draining: Drain | None = None
        """An operator wants it to leave: no client may come in."""
        self.forgetting = Forgetting(self)
        self.franchise = Franchise(self)
        self.replies = RemoteReplies(self)
        self.interface = BrokerHandler(self, settings.credit_max)
        self.pending = Pending(self._may_speak)
        self.sending = Sending(self)
        self.local = self.sending.local
        self.words = Words(self)
        self.whereabouts = Whereabouts(self)
        self.lease = Lease(runtime, settings.lease, self._ping, self._look)
        self.place = Place(0, 0)
        """Of the event that is being applied, or was the last."""
        self.standing = Standing(self)
        self.disks = Disks(self)
        self.everywhere = Everywhere(self)
        self.alarms = Alarms(self)
        self.stepping = SteppingBack(self)
        self.time = LogTime(runtime)
        self.voids = Voids(self)
        self._wall: float | None = None
        self.last_wall = 0.0
        """Of the last event that was applied."""
        self._late: list[tuple[Place, Address, bytes]] | None = None
        """What was ordered at the end of a view, until it is known who goes on; None: the order has not ended."""
        self._made = 0
        """Queues that the event which is being applied has made."""
        self._disk_matters = False
        """Something was written, or an event was applied whose sender waits for disks."""
        self._all_wait = False
        """An event was applied whose sender waits until everybody has."""
        self._soon: list[Callable[[], None]] = []

    def attach(self, broker: Broker, channel: Channel) -> None:
        """The broker was made with `interface`; the channel with this as its receiver."""
        self.broker = broker
        self.channel = channel
        self.us = channel.local
        self.homes = Homes(self)
        owners = Owners(broker.journal) if self.settings.dispatch == "ownership" else None
        self.handler = MessageHandler(broker, self.homes, owners)
        self.updates = Updates(self)
        self.update: Update | None = None
        self.traced = ClusterTrace(self) if self.runtime.trace.on else None
        self.interface.attach(broker, self.handler.peer(self.us))
        self.alarms.attach(broker)
        broker.set_alarm(ALARM, True)

    def recovered(self, record: dict[str, object] | None) -> None:
        """What the store has kept of the cluster."""
        if record is None:
            return
        epoch, index, voters = record.get("epoch"), record.get("index"), record.get("voters")
        self.updating, self.damaged = bool(record.get("updating")), bool(record.get("damaged"))
        if isinstance(epoch, int) and isinstance(index, int) and isinstance(voters, list):
            self.progress = self._goal = Progress(epoch, index)
            self.chain = bytes.fromhex(str(record.get("chain", "")))
            self._kept = self.progress, self.chain
            self.era = Era.from_json(record.get("era"))
            self.cluster = str(record.get("cluster"))
            self.voters = tuple(str(name) for name in voters)
            self.versions.spoken = int(str(record.get("version", 1)))
            time = record.get("time")
            if isinstance(time, float):
                self.time.begin(max(time, self.runtime.wall()))

    # What the broker needs to know while an event is applied.

    @property
    def applying(self) -> bool:
        """An event is being applied, or what follows from a place of the log."""
        return self._wall is not None

    def wall(self) -> float:
        return self.runtime.wall() if self._wall is None else self._wall

    def now(self) -> float:
        """The time by which messages expire."""
        return self.time.now() if self._wall is None else self._wall

    def soon(self, call: Callable[[], None]) -> None:
        """At the end of the event that is being applied: everywhere alike."""
        if self._wall is None:
            log.debug("something was put off outside of any event", what=repr(call))
        self._soon.append(call)

    def new_incarnation(self) -> int:
        self._made += 1
        return ((self.progress.epoch & 0xFFFF) << 48 | self.progress.index << 12) + self._made

    def keeps_time(self) -> bool:
        """The oldest one in step decides what has expired."""
        return self.state is State.SERVING and bool(self.in_step) and self.in_step[0] == self.us

    def when_held(self, call: Callable[[], None]) -> None:
        self.pending.deliver(self.place, call)

    # Receiving.

    def receive(self, batch: list[Delivery]) -> None:
        self._or_leave(partial(self._receive, batch))

    def _or_leave(self, step: Callable[[], None]) -> None:
        """What is raised here follows from no event, but from this process or its disk: it cannot follow the log."""
        try:
            step()
        except Exception as error:
            log.error(
                "this broker cannot follow the log any more, and leaves the cluster", error=traceback.format_exc()
            )
            if self.traced is not None:
                self.traced.leaves(error)
            self.runtime.call_soon(self._fail)

    def _fail(self) -> None:
        self.channel.stack.stop()
        self.closed("an event could not be applied: see the log of this broker")

    def _receive(self, batch: list[Delivery]) -> None:
        store = self.broker.store
        before, progress = store.written(), self.progress
        store.begin()
        try:
            for delivery in batch:
                if delivery.multicast:
                    self.place = Place(self.place.view, delivery.position)
                    for message in delivery.messages:
                        self._ordered(delivery.sender, message)
                else:
                    for message in delivery.messages:
                        self.words.heard(delivery.sender, message)
        finally:  # also if it cannot follow any further: what is stored and how far it has come belong together
            if self.progress != progress and store.written() != before and self.state is State.SERVING:
                self._save()
                self._disk_matters = True
            store.end()
        if self._disk_matters:
            self._disk_matters = False
            self.disks.look()
        if self._all_wait:
            self._all_wait = False
            self.everywhere.tell()
        self.pending.look()
        self.sending.drain()
        self.interface.came_back()

    def _look(self) -> None:
        self.pending.look()

    def _may_speak(self) -> bool:
        return self.state is State.SERVING and self.lease.valid()

    def _ordered(self, sender: Address, data: memoryview) -> None:
        head = self._head(sender, data)
        if head is None:
            return
        if self._late is not None:
            self._late.append((self.place, sender, bytes(data)))
            return
        update = self.update
        if update is not None and update.keeps and sender != self.us and head.kind is not Kind.STATUS:
            update.keep(self.place, sender, bytes(data))
        elif head.number:
            self._event(sender, head, data)
        else:
            self.standing.heard(sender, head.kind, data)

    def _head(self, sender: Address, data: memoryview) -> wire.Head | None:
        """None: nobody can read it, so nobody takes any notice of it. Raises TooNew."""
        try:
            return wire.read_head(data, self.versions.spoken if self.follows else None)
        except PeerError as error:
            log.error("an event that cannot be read", sender=sender, error=error)
        except wire.TooNew as error:
            if self.follows:
                raise
            log.error("an event that cannot be read", sender=sender, error=error)
        return None

    def replay(self, place: Place, sender: Address, data: memoryview) -> None:
        """What was kept during an update, in its turn."""
        self.place = place
        head = self._head(sender, data)
        if head is None:
            return
        if head.number:
            self._event(sender, head, data)
        else:
            self.standing.heard(sender, head.kind, data)

    @property
    def follows(self) -> bool:
        """Events are applied here."""
        return self.state is State.SERVING or (self.update is not None and self.update.complete)

    def _event(self, sender: Address, head: wire.Head, data: memoryview) -> None:
        """One of a broker, in its place of the log. It counts if that broker serves, and it is its next one."""
        peer = self.handler.peer(sender) if self.follows and self.serves_with(sender) else None
        counts = peer is not None and head.number == peer.events + 1
        asked = self.local.back(counts) if sender == self.us and self.local.under_way else None
        if peer is None or not counts:
            return
        if self._soon:
            self.follow(_nothing)
        before = self.progress, self.chain
        peer.events += 1
        self.advance(head.kind, sender, data)
        self._wall = self.last_wall = self._time_of(head)
        self._made = 0
        if head.kind in EVERYWHERE:
            self._all_wait = True
        if head.on_disk:
            self.disks.awaited_by(sender)
            self._disk_matters = True
        try:
            answer = self.broker.journal.run(partial(self._apply, head.kind, sender, data, asked))
        except (*NO_VERDICT, Broken):
            self.progress, self.chain = before
            raise
        except Exception:
            answer = self.voids.add(sender, head.kind)
            if asked is not None:
                asked.fail()
        finally:
            self._wall = None
            self._soon.clear()
        if self.traced is not None:
            self.traced.applied()
        if asked is not None:
            self.answer(asked, answer)
            if isinstance(answer, Void) and asked.failed is not None:
                self.when_held(partial(asked.failed, answer))

    def _apply(self, kind: Kind, sender: Address, data: memoryview, asked: Asked | None) -> object:
        answer = self.handler.apply(kind, sender, data, asked)
        self._finish_event()
        return answer

    def _time_of(self, head: wire.Head) -> float:
        knows = head.version >= wire.LOG_TIME
        if self.time.begun:
            return self.time.reach(head.wall if knows else None)
        if knows:  # the first event of the new version: what there is begins its time anew, alike everywhere
            self.time.begin(head.wall)
            for queue in self.handler.queues.values():
                if queue.home is None:
                    queue.expiry.begin_anew(head.wall)
        return head.wall

    def answer(self, asked: Asked, answer: object) -> None:
        index = self.progress.index if asked.on_disk and self.broker.store.durable else 0
        if asked.done is not None:
            if asked.everywhere:
                answer_later = partial(self.pending.answer_when_known, self.place, index, self.progress.index)
            else:
                answer_later = partial(self.pending.answer, self.place, index)
            if self.traced is not None:
                answer_later(partial(self.traced.promised, index))
            answer_later(partial(asked.done, answer))
        for done in asked.after:
            self.pending.answer(self.place, index, done)

    def follow(self, step: Callable[[], None]) -> None:
        """What follows from a place of the log that is no event of a broker: at the time of the log, not of this
        node's clock, and nothing of it waits for the next event. If it fails, it fails everywhere alike."""
        journal = self.broker.journal
        self._wall = self.last_wall if self.time.last is None else self.time.last
        try:
            journal.apart(step, "what follows from a change of the members")
            while self._soon:
                calls, self._soon = self._soon, []
                for call in calls:
                    journal.apart(call, "giving messages to consumers")
        finally:
            self._wall = None

    def advance(self, kind: Kind, sender: Address, data: Buffer = b"") -> None:
        """The log has come one further."""
        self._note()
        self.progress = Progress(self.progress.epoch, self.progress.index + 1)
        self.chain = chain.link(self.chain, self.progress, b"%d %s" % (kind, str(sender).encode()), data)

    def _finish_event(self) -> None:
        while self._soon:
            calls, self._soon = self._soon, []
            for call in calls:
                call()

    # What this broker keeps of itself.

    def _note(self) -> None:
        """If the store was told something, it keeps that since the last event, and all that was before."""
        written = self.broker.store.written()
        if written != self._kept_at:
            self._kept, self._kept_at = (self.progress, self.chain), written

    @property
    def kept(self) -> int:
        """The last event of which the store keeps something."""
        self._note()
        return self._kept[0].index

    def save(self) -> None:
        """Something about the members has changed, at a place of the log."""
        self._kept, self._kept_at = (self.progress, self.chain), self.broker.store.written()
        self._save()

    def _save(self, goal: Progress | None = None) -> None:
        """`goal`: what it has is of no use; but whoever has come so far has all that it ever had."""
        self._note()
        progress, link = (goal, chain.UNKNOWN) if goal is not None else self._kept
        self.broker.store.save(
            RECORD,
            "state",
            {
                "epoch": progress.epoch, "index": progress.index, "cluster": self.cluster,
                "voters": list(self.voters), "version": self.versions.spoken, "updating": goal is not None,
                "era": self.era.to_json(), "chain": link.hex(), "damaged": self.damaged, "time": self.time.last,
            },
        )  # fmt: skip
        self._kept_at = self.broker.store.written()

    # Between members, one to one.

    def _ping(self, number: int) -> None:
        if self.state is State.SERVING:
            self.lease.heard(self.us.name, number)
            self.words.ping(number, self.in_step)
            self.disks.tell(self.servants)
            self.everywhere.tell()
            self.alarms.tell()
            self.stepping.look()

    # Views.

    def held(self, view: ViewId, position: int, everyone: bool) -> None:
        if view == self.channel.view.id:
            self.pending.held = max(self.pending.held, Place(self.place.view, position))
            self.pending.look()

    def order_ends(self) -> None:
        """What follows counts only if we go on with a majority: others may have ordered it otherwise."""
        self._late = []

    def view_accepted(self, view: View) -> None:
        self._or_leave(partial(self._view_accepted, view))

    def _view_accepted(self, view: View) -> None:
        together = self._came_together(view, self.in_step)
        goes_on = self.state is State.SERVING and majority(self.voters, {member.name for member in together})
        self._take_late(goes_on)
        self.members = view.members
        self.place = Place(self.place.view + 1, 0)
        self.standing.view_changed()
        self.update = None  # whoever gave it may be gone; another one begins
        self.updates.view_changed(view)
        if self.state is State.SERVING:
            together = self._came_together(view, self.in_step)  # late ones may be in step by now
            here = together | self._came_together(view, self.catching_up)
            lost = [member for member in self.servants if member not in here]
            self.in_step = [member for member in view.members if member in together]
            self.catching_up = {member: cut for member, cut in self.catching_up.items() if member in here}
            if goes_on:
                self._go_on(lost)
            elif self._incomplete:
                self._give_up()
            else:
                self._strand()
        self._count_voters()
        if self.state is not State.SERVING:
            self.stop_filling()
            self.update = Update(self)
            if not self.way_back.under_way:  # else when that is done
                self.standing.send_status()
        self.told_of_change()
        self.interface.came_back()

    def _take_late(self, counts: bool) -> None:
        late, self._late = self._late or [], None
        for place, sender, data in late:
            if counts:
                self.replay(place, sender, memoryview(data))
            elif sender == self.us and wire.number_of(memoryview(data)) and self.local.under_way:
                self.local.back(counts=False)

    def _came_together(self, view: View, members: Iterable[Address]) -> set[Address]:
        """Those of the members that came from the same view as we did, and so have what we have."""
        with_us = view.members
        if isinstance(view, MergeView):
            with_us = next((part.members for part in view.subgroups if self.us in part.members), (self.us,))
        return {member for member in members if member in with_us and member in view.members}

    def _go_on(self, lost: list[Address]) -> None:
        """The next view still has a majority. Whatever came before it is held by all who are here; but they may be on
        their way to another view, with others: until a majority has said something in this one, it is kept quiet."""
        self._note()
        self.progress = Progress(self.progress.epoch + 1, self.progress.index)
        self.era = Era.of(self.channel.view, self.in_step)
        self.chain = chain.link(self.chain, self.progress, b"", self.era.view.encode())
        store = self.broker.store
        store.begin()
        try:
            for member in lost:
                log.warning("a broker is lost", broker=member)
                self.lives.pop(member, None)
                self.disks.lost(member)
                self.everywhere.lost(member)
            self.lose(lost)
            self.save()
        finally:
            store.end()
        self._begin_lease()
        self.disks.tell_all()
        self.everywhere.tell()
        if self.keeps_time():
            self.sending.multicast(Kind.HERE, b"{}")
        if self.filling is not None:
            self.filling.view_changed()

    def lose(self, lost: Sequence[Address]) -> None:
        """What they held goes back, and to others, here and now."""
        for member in lost:
            self.follow(partial(self._lose, member))

    def _lose(self, member: Address) -> None:
        self.handler.lose(member)
        self.homes.lose(str(member))

    @property
    def _incomplete(self) -> bool:
        """It is being updated, and lacks something yet."""
        return self.updating and not (self.filling is not None and self.filling.whole)

    def _give_up(self) -> None:
        """What this broker has is not complete, and there is no majority that it could get the rest from."""
        self.state = State.JOINING
        self.why = "no majority is left of those who brought this broker up to date"
        self.progress = self._goal
        self.lease.stop()
        self.sending.alarm()
        self._cut_off(self.why)

    def step_back(self, why: str) -> None:
        """Others go on without this broker, and it knows. What it has is what the log says up to here."""
        log.error("this broker steps back until it can be updated", why=why)
        self.why = why
        if self._incomplete:
            self.state, self.progress = State.JOINING, self._goal
        else:
            self.state = State.STRANDED
            self.updating = False
            self.save()
        self.lease.stop()
        self.stop_filling()
        self.update = None
        self.sending.alarm()
        self._cut_off(why)
        self.sending.begin_anew()
        self.interface.attach(self.broker, self.handler.peer(self.us))
        self._count_voters()
        self.told_of_change()

    def _strand(self) -> None:
        self.state = State.STRANDED
        self.updating = False
        self.catching_up.clear()
        there = ", ".join(member.name for member in self.in_step)
        self.why = f"{there or 'nobody'} of the voters {', '.join(self.voters)}: that is no majority"
        log.warning("no majority: publishers are blocked", why=self.why)
        self.lease.stop()
        self.sending.alarm()

    def _begin_lease(self) -> None:
        if self.traced is not None:
            self.traced.state()
        self.lease.begin([member.name for member in self.in_step], self.voters)

    def _count_voters(self) -> None:
        """Who counts for what a majority holds."""
        members = [member for member in self.in_step if member.name in self.voters]
        self.channel.count_holders(members, len(self.voters) // 2 + 1)

    def told_of_change(self) -> None:
        self.versions.settle(self.voters, [member.name for member in self.in_step])
        if self.traced is not None:
            self.traced.state()
        for listener in self.changed:
            listener()

    # Those who are not in step.

    def serve(self) -> None:
        """With a majority, in step or catching up."""
        self.state = State.SERVING
        self.why = ""
        self.update = None
        self.lose([address for address in self.handler.peers if not self.serves_with(address)])
        for home in self.homes.strangers(self.servants):
            self.follow(partial(self.homes.lose, home))
        self.disks.begin()
        self.everywhere.begin()
        self.pending.held = max(self.pending.held, self.place)
        self.members_changed()
        self.sending.alarm()
        log.info("the broker serves", members=len(self.in_step), voters=",".join(self.voters))
        self.pending.look()
        self.sending.drain()

    def members_changed(self) -> None:
        """Others are in step, catch up or vote."""
        self.save()
        self._begin_lease()
        self._count_voters()
        self.disks.tell_all()
        self.everywhere.tell()
        self.told_of_change()

    def voters_changed(self) -> None:
        """One votes no more."""
        self._disk_matters = True
        self.save()
        self._begin_lease()
        self._count_voters()

    def refused(self, why: str) -> None:
        """The others go on without this broker: it belongs elsewhere, or is set up otherwise."""
        self.update = None
        self.standing.refused = True
        self.why = f"the cluster refuses this broker: {why}"
        log.error("the cluster refuses this broker", why=why)
        self.told_of_change()

    def updated(
        self, progress: Progress, era: Era, cluster: str, voters: tuple[str, ...], in_step: list[Address],
        catching_up: dict[Address, Progress], lives: dict[Address, Progress], wall: float,
    ) -> None:  # fmt: skip
        """This broker has the state of another one, as it was at the place of our status in the log."""
        if self.traced is not None:
            self.traced.updated()
        self.progress, self.era, self.cluster, self.voters, self.last_wall = progress, era, cluster, voters, wall
        self.in_step, self.catching_up, self.lives = in_step, catching_up, lives

    def stop_filling(self) -> None:
        if self.filling is not None:
            self.filling.stop()
            self.filling = None

    # Beginning and end.

    async def connect(self) -> None:
        await self.channel.connect()

    async def close(self) -> None:
        self.lease.stop()
        await self.channel.close()

    async def leave(self, why: str) -> None:
        """For good, in this life: it serves nobody any more."""
        await self.channel.close()
        self.lease.stop()
        self.state, self.why = State.DRAINED, why
        self.sending.alarm()
        self.told_of_change()

    @property
    def serves(self) -> bool:
        return self.state is State.SERVING

    @property
    def stranded(self) -> bool:
        return self.state is State.STRANDED

    @property
    def servants(self) -> list[Address]:
        """Those in step, and those that catch up."""
        return [*self.in_step, *self.catching_up]

    def serves_with(self, member: Address) -> bool:
        return member in self.in_step or member in self.catching_up

    def status(self) -> ClusterStatus:
        return describe(self, self.disks.upto)

    def closed(self, why: str) -> None:
        self.state = State.JOINING
        self.why = why
        self.sending.alarm()
        self._cut_off(why)

    def _cut_off(self, why: str) -> None:
        """Our clients' questions will never be answered. Connections end first: what they give back is of no use, and
        numbered as the events that are forgotten here."""
        for listener in self.cut_off:
            listener(why)
        self.local.clear()
        self.homes.clear()
        self.pending.clear()
        self.interface.clear()
        self.disks.clear()

    def reset(self, why: str, to: Progress, era: Era, cluster: str, voters: tuple[str, ...]) -> None:
        """What this broker has is not right: it is about to be updated, from nothing, to what another one has on disk.
        Until that is complete its store keeps what it had, as it may be needed yet. If that was of no use, it knows who
        has all that it had, even if its own store was damaged."""
        if self.state is State.STRANDED:
            log.warning("this broker begins anew", why=why)
        of_use = self.way_back.is_there if self.updating else self.progress.epoch > 0 and not self.damaged
        self.begin_anew(why)
        self.lives.clear()
        was_updating, self.updating, self.damaged = self.updating, True, False
        self._goal = self.progress = to
        self.era, self.cluster, self.voters = era, cluster, voters
        self.way_back.is_there = of_use
        if not was_updating and not of_use:
            self._save(goal=to)
        self.broker.wipe()

    def begin_anew(self, why: str) -> None:
        """Of what it has in memory nothing stays."""
        self.state = State.JOINING
        self._cut_off(why)
        self.sending.begin_anew()
        self.handler.peers.clear()
        self.interface.attach(self.broker, self.handler.peer(self.us))
        self.stop_filling()
