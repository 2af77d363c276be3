"""Who is in step: what brokers say about themselves on the log, and what follows from it everywhere alike.

One that is not in step tells its status. If a majority serves already, the oldest of it updates the newcomer: it is
READY when it knows of every message, has FILLED queues while their bodies come, and is WHOLE at the end. If nobody
serves, all wait for the statuses of all, and decide the same (voters.py). Voters come and go by VOTER and FORGET.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.broker.journal import NO_VERDICT
from coterie.cluster import chain, wire
from coterie.cluster.forget import CHANGED, refusal
from coterie.cluster.own_store import NOTHING, take_marks
from coterie.cluster.update import Update
from coterie.cluster.voters import NUMBER_MAX, Beginning, Era, Progress, Status, decide, unlike
from coterie.cluster.wire import Kind, Malformed
from coterie.group.members import Address
from coterie.log import Log

if TYPE_CHECKING:
    from coterie.cluster.core import Core

log = Log(__name__)


def _progress(said: Any) -> Progress:
    epoch, index = said
    if type(epoch) is not int or type(index) is not int or not (0 <= epoch <= NUMBER_MAX and 0 <= index <= NUMBER_MAX):
        raise Malformed("a place in the log that is none")
    return Progress(epoch, index)


def _numbers(said: Any) -> list[int]:
    if not isinstance(said, list) or not all(type(number) is int for number in said):
        raise Malformed("numbers of queues that are none")
    return said


class Standing:
    """As one broker sees it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._statuses: dict[Address, Status] = {}
        self._said = False
        """In this view: that we serve."""
        self.refused = False
        """In this view we were: that says more than what we wait for."""

    def view_changed(self) -> None:
        """What was said in the view before does not count."""
        self._statuses.clear()
        self._said = self.refused = False

    def send_status(self) -> None:
        core = self._core
        live = core.stranded
        status = Status(
            core.progress, core.cluster, core.voters, core.settings.size, live, core.damaged, core.updating,
            core.broker.empty, core.versions.newest, core.versions.spoken, core.settings.dispatch, core.era,
            core.chain.hex(), *(NOTHING if live or core.updating else core.content), core.time.now(),
            core.stepping.unwell, core.serves,
        )  # fmt: skip
        core.stepping.said(status.unwell)
        core.sending.multicast(Kind.STATUS, wire.encode_json({**status.to_json(), "view": str(core.channel.view.id)}))

    def heard(self, sender: Address, kind: Kind, data: memoryview) -> None:
        """All of it is read before anything is done, and what cannot be read is void, at every broker alike."""
        try:
            step = self._read(sender, kind, wire.decode_json(data[wire.HEAD :]))
        except NO_VERDICT:
            raise
        except Exception as error:
            log.error("a member says what nobody understands", sender=sender, kind=kind.name, error=repr(error))
            return
        if step is not None:
            step()

    def _read(self, sender: Address, kind: Kind, said: Any) -> Callable[[], None] | None:
        """What follows from a word; None: nothing does. Raises whatever reading it raises."""
        core = self._core
        match kind:
            case Kind.STATUS:
                status = Status.from_json(said)
                # Else another one comes.
                return partial(self._status, sender, status) if said["view"] == str(core.channel.view.id) else None
            case Kind.READY:
                speaks, cut, queues = said.get("speaks", 1), _progress(said["cut"]), _numbers(said["queues"])
                if type(speaks) is not int:
                    raise Malformed("a version that is no number")
                if said["view"] != str(core.channel.view.id) or said.get("cluster", core.cluster) != core.cluster:
                    return None
                return partial(self._ready, sender, speaks, cut, queues)
            case Kind.FILLED:
                return partial(self._filled, sender, _progress(said["cut"]), _numbers(said["queues"]))
            case Kind.WHOLE:
                return partial(self._whole, sender, _progress(said["cut"]))
            case Kind.BACK:
                if type(said["bytes"]) is not int:
                    raise Malformed("a size that is no number")
                return partial(core.stepping.heard, sender, str(said["view"]), said["bytes"])
            case Kind.VOTER:
                return partial(self._enfranchise, sender, str(said["name"]), said["voters"])
            case Kind.FORGET:
                return partial(self._forget, sender, str(said["name"]), said["voters"])
        return None

    def _status(self, sender: Address, status: Status) -> None:
        core = self._core
        if core.serves:
            if sender != core.us and sender not in core.in_step and not status.serving:
                why = unlike(status, core.cluster, core.settings.dispatch, core.versions.spoken)
                if why:
                    log.error("a broker is refused", broker=sender, why=why)
                    self._say_that_we_serve()
                elif status.unwell:
                    log.warning("a broker waits for its disk before it is updated", broker=sender)
                if core.in_step[0] == core.us:
                    if why:
                        core.words.refuse(sender, why)
                    elif not status.unwell:
                        core.updates.begin(sender)
            return
        if sender == core.us and core.update is not None and not status.unwell:
            core.update.from_here()
        self._statuses[sender] = status
        members = core.channel.view.members
        if any(each.serving and core.cluster in ("", each.cluster) for each in self._statuses.values()):
            return  # they bring this broker up to date
        if all(member in self._statuses for member in members):
            found = decide(members, self._statuses)
            if isinstance(found, Beginning):
                self._begin(found)
            elif not core.way_back.take() and not self.refused:
                core.why = found.why
                log.info("the cluster waits", why=found.why)
                core.told_of_change()

    def _say_that_we_serve(self) -> None:
        """Brokers of another cluster must not wait for what we would have to say if we did not."""
        if not self._said:
            self._said = True
            self.send_status()

    def _begin(self, found: Beginning) -> None:
        """Enough have come together, and all of them have decided the same."""
        core = self._core
        for member, why in found.refused.items():
            if member != core.us:
                log.error("a broker is refused", broker=member, why=why)
                del self._statuses[member]
        if core.us in found.in_step:
            core.in_step = list(found.in_step)
            core.catching_up.clear()
            core.lives = dict.fromkeys(
                found.in_step, Progress(found.epoch, self._statuses[found.source].progress.index)
            )
            core.cluster, core.voters = found.cluster, found.voters
            source = self._statuses[found.source]
            core.progress = Progress(found.epoch, source.progress.index)
            core.era = Era.of(core.channel.view, core.channel.view.members)
            core.chain = chain.start(core.progress, core.era.view, bytes.fromhex(source.chain))
            take_marks(core, found.marks)
            core.content = NOTHING
            core.versions.begin(self._statuses, found.in_step)
            core.versions.settle(core.voters, [member.name for member in core.in_step])
            if core.versions.spoken >= wire.LOG_TIME:
                core.time.begin(self._statuses[found.source].time)
            core.serve()
        elif core.us in found.refused:
            core.refused(found.refused[core.us])
        elif not self._statuses[core.us].unwell:
            core.update = core.update or Update(core)  # another cluster may have refused us
            core.update.from_here()
        if core.us == found.source:
            for member in core.channel.view.members:
                known = member in found.in_step or member in found.refused
                if not known and not self._statuses[member].unwell:
                    core.updates.begin(member)
        self._statuses.clear()

    def _ready(self, sender: Address, speaks: int, cut: Progress, queues: list[int]) -> None:
        """One that was updated knows of all messages, and serves from here on."""
        core = self._core
        core.versions.heard(sender.name, speaks)
        if not core.follows or sender in core.in_step:
            return
        if sender in core.catching_up:
            core.lose([sender])  # it has begun anew
        core.catching_up[sender] = core.lives[sender] = cut
        core.disks.begins(sender)
        core.everywhere.begins(sender)
        core.handler.peer(sender).unready = {*queues}
        core.advance(Kind.READY, sender)
        log.info("a broker catches up", broker=sender)
        if sender == core.us:
            assert core.filling is not None
            core.serve()
            core.filling.begin()
        else:
            core.members_changed()

    def _filled(self, sender: Address, cut: Progress, queues: list[int]) -> None:
        """One that catches up has got all messages of these queues: its consumers may have some."""
        core = self._core
        if core.follows and core.catching_up.get(sender) == cut:
            core.follow(lambda: core.handler.peer(sender).ready(queues))
            if sender == core.us:
                core.interface.queues_ready()

    def _whole(self, sender: Address, cut: Progress) -> None:
        """One has everything, and is in step from here on. If it has no vote, it will get one (franchise.py)."""
        core = self._core
        if not core.follows or core.catching_up.get(sender) != cut:
            return
        del core.catching_up[sender]
        members = {*core.in_step, sender}
        core.in_step = [member for member in core.members if member in members]
        core.advance(Kind.WHOLE, sender)
        log.info("a broker is in step", broker=sender)
        if sender == core.us:
            core.updating = False
            core.stop_filling()
        core.members_changed()

    def _enfranchise(self, sender: Address, name: str, voters: object) -> None:
        core = self._core
        if not core.follows:
            return
        there = any(member.name == name for member in core.in_step)
        if there and voters == list(core.voters) and name not in core.voters:
            core.voters = tuple(sorted((*core.voters, name)))
            core.advance(Kind.VOTER, sender, name.encode())
            core.disks.voters_changed()
            log.info("a broker votes from now on", name=name)
            core.members_changed()
        if sender == core.us:
            core.franchise.decided()

    def _forget(self, sender: Address, name: str, voters: object) -> None:
        core = self._core
        if not core.follows:
            return
        why = refusal(core, sender, name) if voters == list(core.voters) else CHANGED
        if not why:
            core.voters = tuple(voter for voter in core.voters if voter != name)
            if sender.name == name:
                core.franchise.resigned.add(sender)
            core.advance(Kind.FORGET, sender, name.encode())
            core.disks.voters_changed()
            core.disks.awaited_by(sender)
            core.voters_changed()
            log.warning("a voter is forgotten", name=name, by=sender)
            core.told_of_change()
        if sender == core.us:
            index = core.progress.index if core.broker.store.durable else 0
            core.forgetting.decided(name, why, partial(core.pending.answer, core.place, index))
