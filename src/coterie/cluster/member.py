"""A broker as a member of its cluster: what connects the replica with the group, the broker and its store.

It decides nothing. What the group brings is fed to the replica, or applied by the applier if the replica says that it
counts; and what the replica answers with is carried out here, effect by effect (ready.py).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.broker.broker import CLUSTER, DISK
from coterie.broker.journal import NO_VERDICT
from coterie.cluster import peer_messages as peer
from coterie.cluster import ready, wire
from coterie.cluster.alarms import Alarms
from coterie.cluster.answers import Answers
from coterie.cluster.applier import Applier
from coterie.cluster.catchup.backfill import ASK, BODIES, answer
from coterie.cluster.catchup.catchup import Catchup
from coterie.cluster.catchup.own_store import take_marks
from coterie.cluster.catchup.source import UPDATE, UpdateSource
from coterie.cluster.chain import Link
from coterie.cluster.commit import Place
from coterie.cluster.console_addresses import WHERE, ConsoleAddresses
from coterie.cluster.disk_sync import DiskSync
from coterie.cluster.disk_watch import DiskWatch
from coterie.cluster.drain import Drain
from coterie.cluster.events import Events
from coterie.cluster.head_counts import COUNTS, HeadCounts
from coterie.cluster.liveness_lease import LivenessLease
from coterie.cluster.local_queues import LocalQueues
from coterie.cluster.outbox import ALARM, Asked, Outbox
from coterie.cluster.peer_messages import PeerMessages
from coterie.cluster.proposer import Proposer
from coterie.cluster.queue_ownership import Owners
from coterie.cluster.quorum import needed
from coterie.cluster.ready import Ready
from coterie.cluster.recovering.mark import given_up
from coterie.cluster.remote_replies import WORDS, RemoteReplies
from coterie.cluster.replica import Replica
from coterie.cluster.settings import ClusterSettings
from coterie.cluster.standing import Disk
from coterie.cluster.status import ClusterStatus, describe, why_closed
from coterie.cluster.traced import ClusterTrace
from coterie.cluster.turn import Turn
from coterie.cluster.voids import Voids
from coterie.cluster.voter_changes import Forgetting, NewVoters
from coterie.cluster.wire import Kind
from coterie.errors import PeerError
from coterie.group.channel import Channel, Delivery, Receiver
from coterie.group.members import Address, View, ViewId
from coterie.logs import Log
from coterie.runtime.base import Runtime
from coterie.settings import shared_values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coterie.broker.broker import Broker

log = Log(__name__)
WHY_MAX = 1000
"""Characters of a reason that are shown."""


class Member(Receiver):
    """One of them for each broker: make the broker with `proposer`, the channel with this as its receiver, `attach`
    both, `load` when the broker has recovered, then `connect`."""

    def __init__(self, runtime: Runtime, settings: ClusterSettings, us: Address) -> None:
        self._runtime = runtime
        self.settings = settings
        self.replica = Replica(us, settings.size, settings.unsynced_max)
        self.turn = Turn(runtime, self.replica)
        self.proposer = Proposer(self.replica, self.turn, settings.credit_max, settings.ownership_time)
        self.answers = Answers(self.replica.commit, self._may_speak)
        self.lease = LivenessLease(runtime, settings.lease, self._tick, self.answers.look)
        self.voids = Voids()
        self.changed: list[Callable[[], None]] = []
        """Told when the state, the view or the voters have changed."""
        self.cut_off: list[Callable[[str], None]] = []
        """Told when this broker's clients must go: it was away, and is to be updated."""
        self.draining: Drain | None = None
        """An operator wants it to leave: no client may come in."""
        self._late: list[tuple[Place, Address, bytes]] | None = None
        """What was ordered at the end of a view, until it is known who goes on; None: the order has not ended."""
        self._disk_matters = False
        """Something was written, or somebody waits for disks for another reason than an event."""

    def attach(self, broker: Broker, channel: Channel) -> None:
        runtime, settings, replica, turn = self._runtime, self.settings, self.replica, self.turn
        self.broker = broker
        self.channel = channel
        turn.journal = broker.journal
        replica.shared = shared_values(broker=broker.settings, cluster=settings)
        replica.replaces = lambda: given_up(broker.records)
        owners = Owners(broker.journal) if settings.dispatch == "ownership" else None
        self.local_queues = LocalQueues(
            runtime, replica, turn, self.proposer, broker.journal, broker.vhosts, self._answer_asked
        )
        self.applier = Applier(broker, self.local_queues, owners)
        self.traced = None
        if runtime.trace.on:
            replica.commit.explains = True
            self.traced = ClusterTrace(runtime.trace, replica, broker, self.applier, self.voids, self._when_held)
        self.messages = PeerMessages(runtime, replica, channel)
        self.outbox = Outbox(
            runtime, replica, channel, turn.time, self.answers, settings.backlog_max, partial(broker.set_alarm, ALARM)
        )
        self._disk_sync = DiskSync(runtime, replica, broker.store, self.traced, self._synced)
        self._events = Events(
            replica, turn, self.applier, self.outbox.local, self.answers, broker.store, self._disk_sync, self.voids,
            self.traced,
        )  # fmt: skip
        self._disk_watch = DiskWatch(
            runtime, self._may_wait, lambda: replica.is_unwell(self._disk()), self._ask_to_be_updated
        )
        self._source = UpdateSource(runtime, replica, turn, self.voids, broker, self.applier, channel)
        self.catchup = Catchup(
            runtime, settings, replica, turn, self.voids, broker, self.applier, self.messages, self.traced,
            self._carry_out, self._save, self._send_status, self._multicast, self._replay,
        )  # fmt: skip
        self.new_voters = NewVoters(replica, self._when_held, self._multicast)
        self.forgetting = Forgetting(replica, self._when_held, self._multicast)
        self.replies = RemoteReplies(runtime, replica, channel, broker.vhosts, settings.backlog_max)
        self.console_addresses = ConsoleAddresses(replica, self.messages)
        self.head_counts = HeadCounts(runtime, replica, channel)
        self.alarms = Alarms(replica, broker, self.messages)
        self.proposer.attach(self.outbox, self.answers, self.applier, self.replies, self.catchup, self.traced)
        self.changed += [
            self.forgetting.look, self.new_voters.look, self.replies.look, self.console_addresses.tell,
            self.head_counts.members_changed, self.alarms.members_changed,
        ]  # fmt: skip
        self.cut_off += [self.forgetting.fail, lambda why: self.replies.clear()]
        self._take_messages()
        broker.set_alarm(ALARM, True)

    def _take_messages(self) -> None:
        """Who hears what of other brokers."""
        self.messages.short |= {
            peer.DISK: lambda sender, number, life: self._disk_reached(sender, peer.read_short(number), life),
            peer.APPLIED: lambda sender, number, life: self._log_reached(sender, peer.read_short(number), life),
            peer.ALARMS: lambda sender, number, _: self.alarms.heard(sender, number),
            peer.PONG: lambda sender, number, _: self.lease.heard(sender.name, number),
        }
        self.messages.long |= {
            UPDATE: self.catchup.part,
            peer.DISK_AT: lambda sender, data: self._disk_reached(sender, *peer.read_report(data)),
            peer.APPLIED_AT: lambda sender, data: self._log_reached(sender, *peer.read_report(data)),
            ASK: self._asked_for_bodies,
            BODIES: self.catchup.bodies,
            WHERE: self.console_addresses.heard,
            COUNTS: self.head_counts.heard,
            peer.REFUSED: self._refused,
            **{what: partial(self.replies.heard, what) for what in WORDS},
        }

    # Beginning and end.

    async def load(self) -> None:
        """What the store has kept, when the broker has recovered."""
        await self.catchup.load()

    async def connect(self) -> None:
        await self.channel.connect()

    async def close(self) -> None:
        self.lease.stop()
        await self.channel.close()

    def drain(self) -> Drain:
        """An operator wants this broker to leave."""
        self.draining = draining = Drain(
            self._runtime, self.replica, self.proposer, self.outbox, self.applier, self.forgetting, self._leave
        )
        self.cut_off.append(draining.ended)
        self.changed.append(draining.look)
        return draining

    async def _leave(self, why: str) -> None:
        """For good, in this life."""
        await self.channel.close()
        self._carry_out(self.replica.left(why))

    def closed(self, why: str) -> None:
        self._carry_out(self.replica.closed(why))

    def status(self) -> ClusterStatus:
        return describe(self.replica, self.channel.view, self.broker, self.lease, self.voids, self.draining)

    def why_closed(self) -> str:
        """Why clients may not come in; nothing: they may."""
        return why_closed(self.replica, self.draining)

    # Receiving.

    def receive(self, batch: list[Delivery]) -> None:
        if self.replica.state.ended:
            return
        try:
            if len(batch) == 1 and self.messages.is_report(batch[0]):
                self._hear(batch[0])
                self.answers.look()
            else:
                self._receive(batch)
        except Exception as error:
            self._cannot_follow(error)

    def _cannot_follow(self, error: Exception) -> None:
        """What was raised follows from no event, but from this process or its disk: it leaves the cluster."""
        log.error("this broker cannot follow the log any more, and leaves the cluster", error=traceback.format_exc())
        if self.traced is not None:
            self.traced.leaves(error)
        self._runtime.call_soon(self._fail)

    def _fail(self) -> None:
        self.channel.stack.stop()
        self.closed("an event could not be applied: see the log of this broker")

    def _receive(self, batch: list[Delivery]) -> None:
        replica, store = self.replica, self.broker.store
        before, progress = store.written(), replica.progress
        store.begin()
        try:
            for delivery in batch:
                if delivery.multicast:
                    replica.place = Place(replica.place.view, delivery.position)
                    for message in delivery.messages:
                        self._ordered(delivery.sender, message)
                else:
                    self._hear(delivery)
        finally:  # also if it cannot follow any further: what is stored and how far it has come belong together
            if replica.progress != progress and store.written() != before and replica.serves:
                self._save_record()
                self._disk_matters = True
            store.end()
        if self._events.take_disk_matters() or self._disk_matters:
            self._disk_matters = False
            self._disk_sync.look()
        if self._events.take_all_wait():
            self._report_applied()
        if replica.divergence.waits:
            self._carry_out(replica.come_so_far())
        self.answers.look()
        self.outbox.drain()
        self.proposer.came_back()

    def _hear(self, delivery: Delivery) -> None:
        """What another broker says to this one alone."""
        for message in delivery.messages:
            self.messages.heard(delivery.sender, message)

    def _ordered(self, sender: Address, data: memoryview) -> None:
        head = self._head(sender, data)
        if head is None:
            return
        if self._late is not None:
            self._late.append((self.replica.place, sender, bytes(data)))
        elif not self.catchup.keeps(self.replica.place, sender, head.kind, data):
            self._in_turn(sender, head, data)

    def _in_turn(self, sender: Address, head: wire.Head, data: memoryview) -> None:
        if head.number:
            self._events.take(sender, head, data)
        else:
            self._about_members(sender, head.kind, data)

    def _head(self, sender: Address, data: memoryview) -> wire.Head | None:
        """None: nobody can read it, so nobody takes any notice of it. Raises TooNew."""
        follows = self.replica.follows
        try:
            return wire.read_head(data, self.replica.versions.spoken if follows else None)
        except PeerError as error:
            log.error("an event that cannot be read", sender=sender, error=error)
        except wire.TooNew as error:
            if follows:
                raise
            log.error("an event that cannot be read", sender=sender, error=error)
        return None

    def _replay(self, place: Place, sender: Address, data: memoryview) -> None:
        """What was kept during an update, or ordered at the end of a view, in its turn."""
        self.replica.place = place
        head = self._head(sender, data)
        if head is not None:
            self._in_turn(sender, head, data)

    def _about_members(self, sender: Address, kind: Kind, data: memoryview) -> None:
        """What cannot be read is void, at every broker alike."""
        try:
            said = wire.decode_json(data[wire.HEAD :])
            step = self.replica.read(sender, kind, said, self._disk())
        except NO_VERDICT:
            raise
        except Exception as error:
            log.error("malformed membership event", sender=sender, kind=kind.name, error=repr(error))
            return
        if step is not None:
            self._carry_out(step())

    # Answers.

    def _answer_asked(self, asked: Asked, answer: object) -> None:
        self._events.answer(asked, answer)

    def _when_held(self, call: Callable[[], None]) -> None:
        """A majority holds the log up to here."""
        self.answers.deliver(self.replica.place, call)

    def _may_speak(self) -> bool:
        """Not while it is in doubt whether this broker has made of the log what the others have."""
        return self.replica.serves and self.lease.valid() and not self.replica.divergence.in_doubt

    # Views.

    def held(self, view: ViewId, position: int, everyone: bool) -> None:
        if view == self.channel.stack.view.id:
            self._carry_out(self.replica.held(position))

    def order_ends(self) -> None:
        """What follows counts only if we go on with a majority: others may have ordered it otherwise."""
        self._late = []

    def view_accepted(self, view: View) -> None:
        if not self.replica.state.ended:
            try:
                self._view_accepted(view)
            except Exception as error:
                self._cannot_follow(error)

    def _view_accepted(self, view: View) -> None:
        goes_on = self.replica.goes_on(view)
        self._take_late(goes_on)
        self.catchup.drop_update()  # whoever gave it may be gone; another one begins
        self._source.view_changed()
        self._carry_out(self.replica.view_changed(goes_on, self.broker.store.written()))
        self.proposer.came_back()

    def _take_late(self, counts: bool) -> None:
        late, self._late = self._late or [], None
        local = self.outbox.local
        for place, sender, data in late:
            if counts:
                self._replay(place, sender, memoryview(data))
            elif sender == self.replica.us and wire.number_of(memoryview(data)) and local.under_way:
                local.back(counts=False)

    # The disk, and the clock.

    def _disk(self) -> Disk:
        store = self.broker.store
        return Disk(store.written(), store.unsynced(), self.broker.alarms.get(DISK, False), store.keeps_old)

    def _synced(self, there: Link, waiting: Iterable[Address]) -> None:
        """All that the log has brought up to that event is on our disk."""
        self._disk_reached(self.replica.us, there, self.replica.life())
        self._report_disk(waiting)

    def _disk_reached(self, member: Address, there: Link, life: int) -> None:
        self._carry_out(self.replica.disk_reached(member, there, life))

    def _log_reached(self, member: Address, there: Link, life: int) -> None:
        self._carry_out(self.replica.log_reached(member, there, life))

    def _tick(self, number: int) -> None:
        if self.replica.serves:
            self._carry_out(self.replica.tick(number, self._disk()))
            self.alarms.tell()
            self.head_counts.look()

    def _may_wait(self) -> bool:
        return not self.replica.serves and self.channel.stack.running

    def _ask_to_be_updated(self) -> None:
        self.catchup.await_update()
        self._send_status()

    # What other brokers ask and say.

    def _asked_for_bodies(self, sender: Address, data: memoryview) -> None:
        self.messages.send(sender, answer(self.applier.queues if self.replica.serves else {}, data))

    def _refused(self, sender: Address, data: memoryview) -> None:
        """We may not join, as one says."""
        told, replica = wire.decode_json(data), self.replica
        if replica.serves or sender not in replica.view.members or not isinstance(told, dict):
            return
        why = str(told.get("why"))[:WHY_MAX]
        if replica.cluster in ("", told.get("cluster")) or not self.catchup.awaited:
            self._carry_out(replica.refused(why))
        elif self.catchup.put_off():
            self._carry_out(replica.refused_elsewhere(why))

    # What follows, as the replica says.

    def _carry_out(self, found: Ready) -> None:
        """What is applied and kept is one unit in the store; what is said about it comes after that."""
        if len(found) == 1 and isinstance(found[0], ready.LetOut):  # what most inputs come to
            self.answers.look()
            return
        kept = 0
        while kept < len(found) and isinstance(found[kept], (ready.Apply, ready.Persist)):
            kept += 1
        if kept:
            store = self.broker.store
            store.begin()
            try:
                for effect in found[:kept]:
                    self._do(effect)
            finally:
                store.end()
        for effect in found[kept:]:
            self._do(effect)

    def _do(self, effect: Any) -> None:
        match effect:
            case ready.LetOut():
                self.answers.look()
            case ready.Apply():
                self._do_apply(effect)
            case ready.Save():
                self._save(effect.goal)
            case ready.Send():
                self._do_send(effect)
            case _:
                self._do_tell(effect)

    def _do_apply(self, effect: ready.Apply) -> None:
        applier, turn, replica = self.applier, self.turn, self.replica
        match effect:
            case ready.Lose(member):
                replica.follows_from(turn.follow_alike(partial(self._lose, member)))
            case ready.LoseStrangers():
                for member in [member for member in applier.peers if not replica.serves_with(member)]:
                    turn.follow(partial(self._lose, member))
                for home in self.local_queues.strangers(replica.servants):
                    turn.follow(partial(self.local_queues.lose, home))
            case ready.TakeMarks(marks, given):
                take_marks(self.broker, marks, given)
            case ready.BeginTime(time):
                turn.time.begin(time)
            case ready.Unready(member, queues):
                applier.peer(member).unready = {*queues}
            case ready.HasMessages(member, queues):
                found = applier.peer(member)
                if queues is not None or found.unready:
                    step = partial(found.ready, [*found.unready] if queues is None else queues)
                    replica.follows_from(turn.follow_alike(step))
            case ready.BeginAnew(why):
                self._cut_off(why)
                self.outbox.begin_anew()
                applier.peers.clear()
                self.proposer.begin_anew()
                self.catchup.stop_backfill()
            case ready.Wipe():
                self.broker.wipe()
            case _:
                raise TypeError(f"nobody carries out {effect}")

    def _lose(self, member: Address) -> None:
        self.applier.lose(member)
        self.local_queues.lose(str(member))

    def _do_send(self, effect: ready.Send) -> None:
        match effect:
            case ready.SendStatus():
                self._send_status()
            case ready.Multicast(kind, said):
                self._multicast(kind, said)
            case ready.Refuse(member, why):
                self.messages.refuse(member, why)
            case ready.GiveUpdate(member):
                self._source.begin(member)
            case ready.Sync(None):
                self._disk_sync.for_all()
            case ready.Sync(member) if member is not None:
                self._disk_sync.awaited_by(member)
                self._disk_matters = True
            case ready.ReportDisk():
                self._report_disk(self.replica.servants)
            case ready.ReportApplied():
                self._report_applied()
            case ready.Ping(number):
                self.lease.heard(self.replica.us.name, number)
                self.messages.ping(number, self.replica.in_step)
            case _:
                raise TypeError(f"nobody carries out {effect}")

    def _do_tell(self, effect: Any) -> None:
        replica, catchup = self.replica, self.catchup
        match effect:
            case ready.BeginLease():
                self._trace_state()
                self.lease.begin([member.name for member in replica.in_step], replica.voters)
            case ready.StopLease():
                self.lease.stop()
            case ready.BeginLife():
                self._disk_sync.begin()
            case ready.CountHolders():
                self.channel.count_holders(replica.voters_in_step, needed(replica.voters))
            case ready.CountDisks():
                self._carry_out(replica.count_disks())
            case ready.Changed():
                self._trace_state()
                for listener in self.changed:
                    listener()
            case ready.CutOff(why):
                self._cut_off(why)
            case ready.SetAlarm():
                self.outbox.alarm()
            case ready.SendWaiting():
                self.outbox.drain()
            case ready.QueuesReady():
                self.proposer.queues_ready()
            case ready.ForgetEvents():
                self.outbox.begin_anew()
                self.proposer.begin_anew()
            case ready.NewUpdate(if_none):
                catchup.await_update(if_none)
            case ready.DropUpdate():
                catchup.drop_update()
            case ready.KeepFromHere():
                catchup.keep_from_here()
            case ready.StartBackfill():
                catchup.start_backfill()
            case ready.AskAgain():
                catchup.ask_again()
            case ready.StopBackfill():
                catchup.stop_backfill()
            case ready.GoBack():
                catchup.go_back()
            case ready.KeepStore():
                self.broker.store.keep_aside()
            case ready.FoundWrong(members, place):
                if self.traced is not None:
                    self.traced.wrong(members, place)
            case ready.WatchDisk():
                self._disk_watch.said(unwell=True)
            case ready.VoterDecided():
                self.new_voters.decided()
            case ready.ForgetDecided(name, why):
                index = replica.progress.index if self.broker.store.durable else 0
                self.forgetting.decided(name, why, partial(self.answers.answer, replica.place, index))
            case _:
                raise TypeError(f"nobody carries out {effect}")

    def _trace_state(self) -> None:
        if self.traced is not None:
            self.traced.state()

    def _cut_off(self, why: str) -> None:
        """Our clients' questions will never be answered. Connections end first: what they give back is of no use, and
        numbered as the events that are forgotten here."""
        for listener in self.cut_off:
            listener(why)
        self.outbox.local.clear()
        self.local_queues.clear()
        self.answers.clear()
        self.replica.commit.clear()
        self.proposer.clear()
        self._disk_sync.clear()

    def _save(self, goal: bool = False) -> None:
        if not goal:
            self.replica.keep(self.broker.store.written())
        self._save_record(goal)

    def _save_record(self, goal: bool = False) -> None:
        store = self.broker.store
        store.save(CLUSTER, "state", self.replica.record(store.written(), self.turn.time.last, goal))
        self.replica.saved(store.written())

    def _send_status(self) -> None:
        replica = self.replica
        status = replica.status(self._disk(), self.broker.empty, self.turn.time.now())
        replica.status_said()
        self._disk_watch.said(status.unwell)
        self._multicast(Kind.STATUS, {**status.to_json(), "view": str(replica.view.id)})

    def _multicast(self, kind: Kind, said: Any) -> None:
        self.outbox.multicast(kind, wire.encode_json(said))

    def _report_disk(self, members: Iterable[Address]) -> None:
        there = self.replica.commit.disks.links.get(self.replica.us)
        if there is not None:
            self.messages.disk(there, members)

    def _report_applied(self) -> None:
        self.messages.applied(self.replica.here, self.replica.servants)
        self._carry_out(self.replica.count_applied())
