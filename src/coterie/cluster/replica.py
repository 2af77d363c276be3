"""The replica: how far this broker has come in the log, with whom, and whether it may serve.

It is pure: it is fed with what the log, the group, the disk and the clock bring, one at a time, and answers with what
is to be done (ready.py). The same inputs give the same answers; states.py has the table of its states. The log is the
total order of the group, view after view; only what is ordered while there is a majority counts. A member that is lost
is lost at the place of the next view in the log.

One that is not in step tells its status. If a majority serves already, the oldest of it updates the newcomer: it is
READY when it knows of every message, has FILLED queues while their bodies come, and is WHOLE at the end. If nobody
serves, all wait for the statuses of all, and decide the same (membership.py). Voters come and go by VOTER and FORGET,
and a broker whose disk lags behind leaves those in step by BACK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from coterie.broker.message_codec import Malformed
from coterie.cluster import chain, ready, wire
from coterie.cluster.chain import Link
from coterie.cluster.commit import Place
from coterie.cluster.divergence import Found
from coterie.cluster.membership import NOTHING, NUMBER_MAX, Beginning, Era, Progress, Status, decide, unlike
from coterie.cluster.quorum import majority
from coterie.cluster.ready import Ready
from coterie.cluster.standing import Disk, Standing
from coterie.cluster.states import Cause, State
from coterie.cluster.wire import Kind
from coterie.group.members import Address, MergeView, View
from coterie.logs import Log
from coterie.runtime.base import Buffer

log = Log(__name__)
_LET_OUT = ready.LetOut()
CHANGED = "the voters have changed meanwhile"
"""Why a change of the voters is void, and may be tried again."""


def _progress(said: Any) -> Progress:
    epoch, index = said
    if type(epoch) is not int or type(index) is not int or not (0 <= epoch <= NUMBER_MAX and 0 <= index <= NUMBER_MAX):
        raise Malformed("a place in the log that is none")
    return Progress(epoch, index)


def _link(said: Any) -> Link:
    found = bytes.fromhex(said["chain"])
    if found and not chain.covers_effects(found):
        raise Malformed("a chain that is none")
    return Link(_progress([said["epoch"], said["index"]]), found)


def _text(place: Progress) -> str:
    return f"{place.epoch}.{place.index}"


def _numbers(said: Any) -> tuple[int, ...]:
    if not isinstance(said, list) or not all(type(number) is int for number in said):
        raise Malformed("numbers of queues that are none")
    return tuple(said)


class Replica(Standing):
    """Of one broker."""

    # Events.

    def advance(self, kind: Kind, sender: Address, data: Buffer, written: int) -> None:
        """The log has come one further, with what it says about members."""
        self.begin_event(written)
        self._link(b"%d %s" % (kind, str(sender).encode()), data)

    def begin_event(self, written: int) -> None:
        """The log has come to an event, which is about to be applied: `end_event` follows, or `take_back`."""
        self.note(written)
        self.progress = Progress(self.progress.epoch, self.progress.index + 1)

    def end_event(self, head: wire.Head, sender: bytes, data: Buffer, effects: bytes) -> None:
        """It was applied, and that is what was made of it."""
        made = effects if head.version >= wire.EFFECTS or chain.covers_effects(self.chain) else None
        self._link(b"%d %b" % (head.kind, sender), data, made)

    def take_back(self, progress: Progress) -> None:
        """The event that was to be applied was not."""
        self.progress = progress

    def follows_from(self, effects: bytes) -> None:
        """What was made of a place of the log that has no step of its own."""
        if chain.covers_effects(self.chain):
            self.aside = chain.fold(self.aside, effects)

    def _link(self, who: bytes, what: Buffer, effects: bytes | None = None) -> None:
        """To the chain, at the place that the log has come to."""
        if self.aside:
            effects, self.aside = self.aside + (effects or b""), b""
        self.chain = chain.link(self.chain, self.progress, who, what, effects)
        self.divergence.history.add(self.chain)

    # Reports of how far others have come.

    def disk_reached(self, member: Address, there: Link, life: int) -> Ready:
        """It has everything up to that event on disk; also our own."""
        return self._reported(member, True, there, life)

    def log_reached(self, member: Address, there: Link, life: int) -> Ready:
        """It has applied the log up to that event."""
        return self._reported(member, False, there, life)

    def _reported(self, member: Address, of_disk: bool, there: Link, life: int) -> Ready:
        """It counts if what that broker has made of the log is what this one has."""
        ours, present = member == self.us, self.life(member)
        if not ours and not self._is_comparable(member, there, life, present):
            return []
        if there.chain and not ours:
            found = self.divergence.compare(member, of_disk, there, life)
            if found is Found.OTHER:
                return self._differs(member, there.place)
            if found is not Found.SAME:
                return []
        reports = self.commit.disks if of_disk else self.commit.applied
        if not reports.heard(member, there, life, present):
            return []
        return self.count_disks() if of_disk else self.count_applied()

    def _is_comparable(self, member: Address, there: Link, life: int, present: int) -> bool:
        """It is of the present life of somebody who serves with us, and says what our version must say."""
        if not self.serves or not self.serves_with(member):
            return False
        if there.chain:
            return life == present or not present
        return not chain.covers_effects(self.chain)

    def come_so_far(self) -> Ready:
        """The log was applied: what was reported of these places before this broker came there."""
        found: Ready = []
        for report in self.divergence.due():
            found += self._reported(*report)
        return found

    def count_disks(self) -> Ready:
        """By the voters as they are now."""
        self.commit.count_disks(self.voters, self.in_step, self.lives)
        return [_LET_OUT]

    def count_applied(self) -> Ready:
        self.commit.count_applied((member for member in self.servants if member != self.us), self.progress.index)
        return [_LET_OUT]

    def held(self, position: int) -> Ready:
        """A majority of the voters holds the log of this view up to there."""
        self.commit.held = max(self.commit.held, Place(self.place.view, position))
        return [_LET_OUT]

    # Brokers that have made another state of the log.

    def _differs(self, member: Address, place: Progress) -> Ready:
        """Somebody has another chain at that place: all who serve are to say on the log what they have there."""
        if not self.divergence.ask(place):
            return []
        log.error("another broker has made another state of the log", broker=member, event=_text(place))
        return [self._claim(place)]

    def _claim(self, place: Progress) -> ready.Multicast:
        """Our chain there."""
        ours = self.divergence.history.at(place).hex()
        return ready.Multicast(Kind.CHAIN, {"epoch": place.epoch, "index": place.index, "chain": ours})

    def _claimed(self, sender: Address, there: Link, written: int) -> Ready:
        if not self.follows or not self.serves_with(sender) or not chain.covers_effects(self.chain):
            return []
        found: Ready = []
        place = there.place
        if self.divergence.claim(place, sender, there.chain) and sender != self.us and self.serves:
            found.append(self._claim(place))
        wrong = self.divergence.judge(place, self.voters, self.in_step, self.servants)
        return found + (self._wrong(wrong, place, sender, written) if wrong else [_LET_OUT])

    def _wrong(self, wrong: list[Address], place: Progress, sender: Address, written: int) -> Ready:
        """These have made another state than those who are right: they serve no more, and are updated. There may be no
        majority without them until they are."""
        self.divergence.found += len(wrong)
        self.in_step = [each for each in self.in_step if each not in wrong]
        self.catching_up = {each: cut for each, cut in self.catching_up.items() if each not in wrong}
        self.advance(Kind.CHAIN, sender, " ".join(map(str, wrong)).encode(), written)
        self.divergence.settled(self.progress)
        for member in wrong:
            log.error("a broker has made another state of the log than the others", broker=member, event=_text(place))
            self._forget_life(member)
        told = ready.FoundWrong(tuple(wrong), place)
        if self.us in wrong:
            return self._go_astray(place, told)
        return [*(ready.Lose(member) for member in wrong), *self._members_changed(told), ready.CountDisks()]

    def _go_astray(self, place: Progress, told: ready.Tell) -> Ready:
        """The others are right. What this broker has is of no use to clients, and is kept for a look."""
        self.why = (
            f"this broker has made another state of event {_text(place)} than the others: it is brought up to date"
        )
        log.error("this broker serves no more: its store is kept for a look, and it is updated", event=_text(place))
        self.becomes(Cause.ASTRAY)
        self.astray, self.way_back = True, False
        if self.state is State.CUT_OFF:
            self.progress = self._goal
        self._goal = self.progress
        return [
            ready.Save(goal=True), told, ready.KeepStore(), ready.StopLease(), ready.StopBackfill(), ready.SetAlarm(),
            ready.CutOff(self.why), ready.ForgetEvents(), ready.CountHolders(), *self._changed(), ready.NewUpdate(),
            ready.SendStatus(),
        ]  # fmt: skip

    # The clock.

    def tick(self, number: int, disk: Disk) -> Ready:
        """Several times in a lease, whose question has that number. If too much waits for the disk, and did so the last
        time, this broker steps back. What an update brings may be more than that, and is as much as the disk takes: one
        that gets it steps back only if that is nothing."""
        if not self.serves:
            return []
        found: Ready = [ready.Ping(number), ready.ReportDisk(), ready.ReportApplied()]
        before, self._behind = self._behind, disk.unsynced > self._unsynced_max
        if not before or not self._behind or self.versions.spoken < wire.STEPPING_BACK:
            return found
        if self.updating and not disk.low:
            return found
        if self._others_suffice(self.us):
            found.append(ready.Multicast(Kind.BACK, {"view": str(self.view.id), "bytes": disk.unsynced}))
        else:
            log.error("the disk lags behind, and without this broker there is no majority", bytes=disk.unsynced)
        return found

    def status_said(self) -> None:
        """What waited for the disk before says nothing about what an update brings."""
        self._behind = False

    def _others_suffice(self, member: Address) -> bool:
        return majority(self.voters, {each.name for each in self.in_step if each != member})

    # Views.

    def goes_on(self, view: View) -> bool:
        """Whether what was ordered at the end of the view before counts. From here on this is the view."""
        self.view = view
        together = self._came_together(view, self.in_step)
        return self.serves and majority(self.voters, {member.name for member in together})

    def view_changed(self, goes_on: bool, written: int) -> Ready:
        """`goes_on`: as it was before late events were applied."""
        view = self.view
        self.members = view.members
        self.place = Place(self.place.view + 1, 0)
        self._statuses.clear()
        self._said = self._refused = False
        found: Ready = []
        if self.serves:
            together = self._came_together(view, self.in_step)  # late ones may be in step by now
            here = together | self._came_together(view, self.catching_up)
            lost = [member for member in self.servants if member not in here]
            self.in_step = [member for member in view.members if member in together]
            self.catching_up = {member: cut for member, cut in self.catching_up.items() if member in here}
            found += self._go_on(lost, written) if goes_on else self._majority_lost()
        else:
            self.becomes(Cause.VIEW)
        found.append(ready.CountHolders())
        if not self.serves:
            found += [ready.StopBackfill(), ready.NewUpdate()]
            if self.state is not State.GOING_BACK:  # else when that is done
                found.append(ready.SendStatus())
        return [*found, *self._changed()]

    def _came_together(self, view: View, members: Iterable[Address]) -> set[Address]:
        """Those of the members that came from the same view as we did, and so have what we have."""
        with_us = view.members
        if isinstance(view, MergeView):
            with_us = next((part.members for part in view.subgroups if self.us in part.members), (self.us,))
        return {member for member in members if member in with_us and member in view.members}

    def _go_on(self, lost: list[Address], written: int) -> Ready:
        """The next view still has a majority. Whatever came before it is held by all who are here; but they may be on
        their way to another view, with others: until a majority has said something in this one, it is kept quiet."""
        self.note(written)
        self.progress = Progress(self.progress.epoch + 1, self.progress.index)
        self.era = Era.of(self.view, self.in_step)
        self._link(b"", self.era.view.encode())
        self.divergence.settled(self.progress)
        for member in lost:
            log.warning("a broker is lost", broker=member)
            self._forget_life(member)
        found: Ready = [ready.Lose(member) for member in lost]
        found += [ready.Save(), ready.BeginLease(), ready.Sync(), ready.ReportApplied()]
        if self.keeps_time():
            found.append(ready.Multicast(Kind.HERE))
        return [*found, ready.AskAgain()]

    def _forget_life(self, member: Address) -> None:
        self.lives.pop(member, None)
        self.divergence.forget(member)
        self.commit.lost(member, self.progress.epoch)

    def _majority_lost(self) -> Ready:
        self.becomes(Cause.NO_MAJORITY)
        if self.state is State.CUT_OFF:
            self.why = "no majority is left of those who brought this broker up to date"
            self.progress = self._goal
            return [ready.StopLease(), ready.SetAlarm(), ready.CutOff(self.why)]
        self.catching_up.clear()
        self.why = f"{self._of_the_voters()}: that is no majority"
        log.warning("no majority: publishers are blocked", why=self.why)
        return [ready.StopLease(), ready.SetAlarm()]

    def _of_the_voters(self) -> str:
        there = ", ".join(member.name for member in self.in_step)
        return f"{there or 'nobody'} of the voters {', '.join(self.voters)}"

    # What follows from changes of the members.

    def _changed(self) -> Ready:
        self.versions.settle(self.voters, [member.name for member in self.in_step])
        return [ready.Changed()]

    def _members_changed(self, *then: ready.Tell) -> Ready:
        """Others are in step, catch up or vote. `then`: what else is to be told, once that is kept."""
        return [
            ready.Save(), *then, ready.BeginLease(), ready.CountHolders(), ready.Sync(), ready.ReportApplied(),
            *self._changed(),
        ]  # fmt: skip

    def _serve(self, *apply: ready.Apply) -> Ready:
        """With a majority, in step or catching up. `apply`: what follows from it besides."""
        self.why = ""
        self.commit.begin(self.us, self.place)
        log.info("the broker serves", members=len(self.in_step), voters=",".join(self.voters))
        return [
            ready.LoseStrangers(), *apply, *self._members_changed(ready.BeginLife(), ready.DropUpdate()),
            ready.SetAlarm(), ready.LetOut(), ready.SendWaiting(),
        ]  # fmt: skip

    # What brokers say about themselves, on the log.

    def read(self, sender: Address, kind: Kind, said: Any, disk: Disk) -> Callable[[], Ready] | None:
        """What follows from it; None: nothing does. All of it is read before anything is done. Raises whatever reading
        it raises: then it is void, at every broker alike."""
        match kind:
            case Kind.STATUS:
                status = Status.from_json(said)
                # Else another one comes.
                return partial(self._status, sender, status, disk) if said["view"] == str(self.view.id) else None
            case Kind.READY:
                speaks, cut, queues = said.get("speaks", 1), _progress(said["cut"]), _numbers(said["queues"])
                if type(speaks) is not int:
                    raise Malformed("a version that is no number")
                if said["view"] != str(self.view.id) or said.get("cluster", self.cluster) != self.cluster:
                    return None
                return partial(self._ready, sender, speaks, cut, queues, disk.written)
            case Kind.FILLED:
                return partial(self._filled, sender, _progress(said["cut"]), _numbers(said["queues"]))
            case Kind.WHOLE:
                return partial(self._whole, sender, _progress(said["cut"]), disk.written)
            case Kind.BACK:
                if type(said["bytes"]) is not int:
                    raise Malformed("a size that is no number")
                return partial(self._back, sender, str(said["view"]), said["bytes"], disk.written)
            case Kind.CHAIN:
                return partial(self._claimed, sender, _link(said), disk.written)
            case Kind.VOTER:
                return partial(self._enfranchise, sender, str(said["name"]), said["voters"], disk.written)
            case Kind.FORGET:
                return partial(self._forget, sender, str(said["name"]), said["voters"], disk.written)
        return None

    def _status(self, sender: Address, status: Status, disk: Disk) -> Ready:
        if self.serves:
            return self._judge(sender, status)
        found: Ready = [ready.KeepFromHere()] if sender == self.us and not status.unwell else []
        self._statuses[sender] = status
        members = self.view.members
        if any(each.serving and self.cluster in ("", each.cluster) for each in self._statuses.values()):
            return found  # they bring this broker up to date
        if not all(member in self._statuses for member in members):
            return found
        decided = decide(members, self._statuses)
        if isinstance(decided, Beginning):
            return self._begin(decided)
        if self._may_go_back(disk):
            log.warning("the update cannot be completed: this broker goes back to what it had")
            self.becomes(Cause.GO_BACK)
            why = "this broker goes back to what it had before its update"
            return [ready.BeginAnew(why), ready.NewUpdate(), ready.GoBack()]
        if self.state is not State.GOING_BACK and not self._refused:
            self.why = decided.why
            log.info("the cluster waits", why=decided.why)
            found += self._changed()
        return found

    def _may_go_back(self, disk: Disk) -> bool:
        return self.way_back and self.updating and self.state is not State.GOING_BACK and disk.keeps_old

    def _judge(self, sender: Address, status: Status) -> Ready:
        """One that is not in step speaks, and we serve."""
        if sender == self.us or sender in self.in_step or status.serving:
            return []
        found: Ready = []
        why = unlike(status, self.cluster, self.shared, self.versions.spoken, self.replaces())
        if why:
            log.error("a broker is refused", broker=sender, why=why)
            if not self._said:  # brokers of another cluster must not wait for what we would say if we did not serve
                self._said = True
                found.append(ready.SendStatus())
        elif status.unwell:
            log.warning("a broker waits for its disk before it is updated", broker=sender)
        if self.in_step[0] == self.us:
            if why:
                found.append(ready.Refuse(sender, why))
            elif not status.unwell:
                found.append(ready.GiveUpdate(sender))
        return found

    def _begin(self, found: Beginning) -> Ready:
        """Enough have come together, and all of them have decided the same."""
        for member, why in found.refused.items():
            if member != self.us:
                log.error("a broker is refused", broker=member, why=why)
                del self._statuses[member]
        result: Ready = []
        if self.us in found.in_step:
            result += self._begin_in_step(found)
        elif self.us in found.refused:
            result += self.refused(found.refused[self.us])
        elif not self._statuses[self.us].unwell:
            result += [ready.NewUpdate(if_none=True), ready.KeepFromHere()]  # another cluster may have refused us
        if self.us == found.source:
            for member in self.view.members:
                known = member in found.in_step or member in found.refused
                if not known and not self._statuses[member].unwell:
                    result.append(ready.GiveUpdate(member))
        self._statuses.clear()
        return result

    def _begin_in_step(self, found: Beginning) -> Ready:
        source = self._statuses[found.source]
        self.becomes(Cause.BEGIN)
        self.in_step = list(found.in_step)
        self.catching_up.clear()
        self.lives = dict.fromkeys(found.in_step, Progress(found.epoch, source.progress.index))
        self.cluster, self.voters = found.cluster, found.voters
        self.progress = Progress(found.epoch, source.progress.index)
        self.era = Era.of(self.view, self.view.members)
        self.chain, self.aside = chain.start(self.progress, self.era.view, bytes.fromhex(source.chain)), b""
        self.divergence.begin(self.here)
        self.content = NOTHING
        self.crashed = False
        self.versions.begin(self._statuses, found.in_step)
        self.versions.settle(self.voters, [member.name for member in self.in_step])
        result: Ready = [ready.TakeMarks(found.marks, found.given)]
        if self.versions.spoken >= wire.LOG_TIME:
            result.append(ready.BeginTime(source.time))
        # One of those who begin may have caught up when the majority was lost, and could not say so any more.
        have_everything = [ready.HasMessages(member) for member in found.in_step]
        return [*result, *self._serve(*have_everything), ready.QueuesReady()]

    def _ready(self, sender: Address, speaks: int, cut: Progress, queues: tuple[int, ...], written: int) -> Ready:
        """One that was updated knows of all messages, and serves from here on."""
        self.versions.heard(sender.name, speaks)
        if not self.follows or sender in self.in_step:
            return []
        found: Ready = []
        if sender in self.catching_up:
            found.append(ready.Lose(sender))  # it has begun anew
        self.catching_up[sender] = self.lives[sender] = cut
        self.commit.begins(sender)
        self.divergence.forget(sender)
        found.append(ready.Unready(sender, queues))
        self.advance(Kind.READY, sender, b"", written)
        self.divergence.settled(self.progress)
        log.info("a broker catches up", broker=sender)
        if sender != self.us:
            return found + self._members_changed()
        self.becomes(Cause.READY)
        return [*found, *self._serve(), ready.StartBackfill()]

    def _filled(self, sender: Address, cut: Progress, queues: tuple[int, ...]) -> Ready:
        """One that catches up has got all messages of these queues: its consumers may have some."""
        if not self.follows or self.catching_up.get(sender) != cut:
            return []
        found: Ready = [ready.HasMessages(sender, queues)]
        return [*found, ready.QueuesReady()] if sender == self.us else found

    def _whole(self, sender: Address, cut: Progress, written: int) -> Ready:
        """One has everything, and is in step from here on. If it has no vote, it will get one (voter_changes.py)."""
        if not self.follows or self.catching_up.get(sender) != cut:
            return []
        del self.catching_up[sender]
        members = {*self.in_step, sender}
        self.in_step = [member for member in self.members if member in members]
        self.advance(Kind.WHOLE, sender, b"", written)
        log.info("a broker is in step", broker=sender)
        if sender != self.us:
            return self._members_changed()
        self.becomes(Cause.WHOLE)
        return self._members_changed(ready.StopBackfill())

    def _back(self, sender: Address, view: str, waiting: int, written: int) -> Ready:
        """One says that its disk lags behind. It is void if there would be no majority any more."""
        if not self.follows or view != str(self.view.id) or not self.serves_with(sender):
            return []
        if not self._others_suffice(sender):
            return []
        self.in_step = [each for each in self.in_step if each != sender]
        self.catching_up.pop(sender, None)
        self.advance(Kind.BACK, sender, b"", written)
        self.divergence.settled(self.progress)
        self._forget_life(sender)
        found: Ready = [ready.Lose(sender)]
        if sender == self.us:
            return found + self._step_back(f"its disk has not taken {waiting} bytes of what the log has brought")
        log.warning("a broker steps back: its disk lags behind", broker=sender, bytes=waiting)
        return found + self._members_changed()

    def _step_back(self, why: str) -> Ready:
        """Others go on without this broker, and it knows. What it has is what the log says up to here."""
        log.error("this broker steps back until it can be updated", why=why)
        self.why = why
        self.becomes(Cause.BACK)
        found: Ready = []
        if self.state is State.CUT_OFF:
            self.progress = self._goal
        else:
            found.append(ready.Save())
        return [
            *found, ready.StopLease(), ready.StopBackfill(), ready.DropUpdate(), ready.SetAlarm(), ready.CutOff(why),
            ready.ForgetEvents(), ready.CountHolders(), *self._changed(), ready.WatchDisk(),
        ]  # fmt: skip

    def _enfranchise(self, sender: Address, name: str, voters: object, written: int) -> Ready:
        if not self.follows:
            return []
        found: Ready = []
        there = any(member.name == name for member in self.in_step)
        if there and voters == list(self.voters) and name not in self.voters:
            self.voters = tuple(sorted((*self.voters, name)))
            self.advance(Kind.VOTER, sender, name.encode(), written)
            self.divergence.settled(self.progress)
            log.info("a broker votes from now on", name=name)
            self.commit.voters_changed(self.progress.index)
            found += [*self._members_changed(), ready.CountDisks()]
        return [*found, ready.VoterDecided()] if sender == self.us else found

    def _forget(self, sender: Address, name: str, voters: object, written: int) -> Ready:
        if not self.follows:
            return []
        found: Ready = []
        why = self.why_not_forget(sender, name) if voters == list(self.voters) else CHANGED
        if not why:
            self.voters = tuple(voter for voter in self.voters if voter != name)
            if sender.name == name:
                self.resigned.add(sender)
            self.advance(Kind.FORGET, sender, name.encode(), written)
            self.divergence.settled(self.progress)
            log.warning("a voter is forgotten", name=name, by=sender)
            self.commit.voters_changed(self.progress.index)
            found += [ready.Save(), ready.BeginLease(), ready.CountHolders(), *self._changed(), ready.Sync(sender)]
            found.append(ready.CountDisks())
        return [*found, ready.ForgetDecided(name, why)] if sender == self.us else found

    # Refusals.

    def refused(self, why: str) -> Ready:
        """The others go on without this broker: it belongs elsewhere, or is set up otherwise."""
        self._refused = True
        self.why = f"the cluster refuses this broker: {why}"
        log.error("the cluster refuses this broker", why=why)
        return [ready.DropUpdate(), *self._changed()]

    def refused_elsewhere(self, why: str) -> Ready:
        """By another cluster: ours may serve in the same view."""
        self._refused = True
        self.why = f"another cluster refuses this broker: {why}"
        log.error("another cluster refuses this broker", why=why)
        return self._changed()

    # The update of this broker.

    def offered(self, source: Address, to: Progress, era: Era, cluster: str, voters: tuple[str, ...]) -> Ready:
        """What this broker has is not right: it is about to be updated, from nothing, to what another one has on disk.
        Until that is complete its store keeps what it had, as it may be needed yet. If that was of no use, it knows who
        has all that it had, even if its own store was damaged."""
        why = f"{source} brings this broker up to date"
        if self.state.live:
            log.warning("this broker begins anew", why=why)
        was_updating = self.updating
        of_use = self.way_back if was_updating else self.progress.epoch > 0 and not self.damaged
        self.becomes(Cause.OFFER)
        self.lives.clear()
        self.damaged = False
        self._goal = self.progress = to
        self.era, self.cluster, self.voters = era, cluster, voters
        self.way_back = of_use
        found: Ready = [ready.BeginAnew(why)]
        if not was_updating and not of_use:
            found.append(ready.Save(goal=True))
        return [*found, ready.Wipe()]

    def installed(
        self, here: Link, aside: bytes, claims: list[Any], era: Era, cluster: str, voters: tuple[str, ...],
        in_step: list[Address], catching_up: dict[Address, Progress], lives: dict[Address, Progress],
        versions: dict[str, Any],
    ) -> None:  # fmt: skip
        """This broker has the state of another one, as it was at the place of our status in the log."""
        self.becomes(Cause.INSTALLED)
        self.crashed = False
        (self.progress, self.chain), self.aside = here, aside
        self.era, self.cluster, self.voters = era, cluster, voters
        self.divergence.begin(self.here)
        self.divergence.install(claims)
        self.in_step, self.catching_up, self.lives = in_step, catching_up, lives
        self.versions.install(versions)

    def given_up(self, why: str = "") -> None:
        """The update that it got is of no use: it asks for another one later."""
        self.becomes(Cause.GIVE_UP)
        self.why = why or self.why

    def filled(self) -> None:
        """All bodies are here, in a store that has taken the place of the old one."""
        self.becomes(Cause.FILLED)
        self.astray = False

    def lost_way(self) -> None:
        """What it had before its update cannot be read any more."""
        self.way_back, self.damaged = False, True
        self.becomes(Cause.LOST_WAY)

    # The end.

    def left(self, why: str) -> Ready:
        """For good, in this life: it serves nobody any more."""
        self.becomes(Cause.LEFT)
        self.why = why
        return [ready.StopLease(), ready.SetAlarm(), *self._changed()]

    def closed(self, why: str) -> Ready:
        """It is no member any more."""
        self.becomes(Cause.CLOSED)
        self.why = why
        return [ready.SetAlarm(), ready.CutOff(why)]
