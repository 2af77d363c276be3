"""Who is in step: what brokers say about themselves on the log, and what follows from it everywhere alike.

One that is not in step tells its status. If a majority serves already, the oldest of it updates the newcomer: it is
READY when it knows of every message, has FILLED queues while their bodies come, and is WHOLE at the end. If nobody
serves, all wait for the statuses of all, and decide the same (voters.py). Voters come and go by VOTER and FORGET.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.cluster import chain, wire
from coterie.cluster.forget import CHANGED, refusal
from coterie.cluster.own_store import NOTHING, take_marks
from coterie.cluster.update import Update
from coterie.cluster.voters import Beginning, Era, Progress, Status, decide, unlike
from coterie.cluster.wire import Kind
from coterie.errors import PeerError
from coterie.group.members import Address
from coterie.log import Log

if TYPE_CHECKING:
    from coterie.cluster.core import Core

log = Log(__name__)


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
            core.chain.hex(), *(NOTHING if live or core.updating else core.content), core.serves,
        )  # fmt: skip
        core.sending.multicast(Kind.STATUS, wire.encode_json({**status.to_json(), "view": str(core.channel.view.id)}))

    def heard(self, sender: Address, kind: Kind, data: memoryview) -> None:
        core = self._core
        try:
            said: Any = wire.decode_json(data[wire.HEAD :])
            if kind is Kind.STATUS:
                if said["view"] == str(core.channel.view.id):  # else another one comes
                    self._status(sender, Status.from_json(said))
            elif kind is Kind.READY:
                if said["view"] == str(core.channel.view.id) and said.get("cluster", core.cluster) == core.cluster:
                    core.versions.heard(sender.name, int(str(said.get("speaks", 1))))
                    self._ready(sender, Progress(*said["cut"]), said["queues"])
            elif kind is Kind.FILLED:
                self._filled(sender, Progress(*said["cut"]), said["queues"])
            elif kind is Kind.WHOLE:
                self._whole(sender, Progress(*said["cut"]))
            elif kind is Kind.VOTER:
                self._enfranchise(sender, str(said["name"]), said["voters"])
            elif kind is Kind.FORGET:
                self._forget(sender, str(said["name"]), said["voters"])
        except (PeerError, KeyError, TypeError, ValueError, AssertionError) as error:
            log.error("a member says what nobody understands", sender=sender, error=repr(error))

    def _status(self, sender: Address, status: Status) -> None:
        core = self._core
        if core.serves:
            if sender != core.us and sender not in core.in_step and not status.serving:
                why = unlike(status, core.cluster, core.settings.dispatch, core.versions.spoken)
                if why:
                    log.error("a broker is refused", broker=sender, why=why)
                    self._say_that_we_serve()
                if core.in_step[0] == core.us:
                    if why:
                        core.words.refuse(sender, why)
                    else:
                        core.updates.begin(sender)
            return
        if sender == core.us and core.update is not None:
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
            core.serve()
        elif core.us in found.refused:
            core.refused(found.refused[core.us])
        else:
            core.update = core.update or Update(core)  # another cluster may have refused us
            core.update.from_here()
        if core.us == found.source:
            for member in core.channel.view.members:
                if member not in found.in_step and member not in found.refused:
                    core.updates.begin(member)
        self._statuses.clear()

    def _ready(self, sender: Address, cut: Progress, queues: list[int]) -> None:
        """One that was updated knows of all messages, and serves from here on."""
        core = self._core
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
