"""Updates: one that is in step gives its state to one that is not, while everybody goes on.

The newcomer's status has a place in the log. There, the oldest broker in step cuts its state, and sends its outline
and an index of all messages, one to one; the newcomer keeps every event from that place on. When it has the index, it
applies what it has kept, and says so on the log: from that place on it serves, while it asks for the bodies
(filling.py). If a view changes before, both begin again.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from coterie.broker.journal import NO_VERDICT, Broken
from coterie.cluster import snapshot, wire
from coterie.cluster.filling import Filling
from coterie.cluster.install import Installation
from coterie.cluster.pending import Place
from coterie.cluster.voters import Era, Progress
from coterie.cluster.wire import Kind
from coterie.group.channel import ChannelClosed
from coterie.group.members import Address, View
from coterie.log import Log
from coterie.runtime.base import Future

if TYPE_CHECKING:
    from coterie.cluster.core import Core

log = Log(__name__)
UPDATE = 4
"""The first byte of a part of an update."""
_OUTLINE, _CHUNK, _END = 1, 2, 3
PATIENCE = 1.0
PATIENCE_MAX = 60.0
"""Seconds before an update that was given up is asked for again: twice as long each time."""


class Updates:
    """Those that this broker gives."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._count = 0
        self._latest: dict[Address, int] = {}
        """The number of the update that each one gets. With the view all of them end."""
        self._under_way: dict[Address, Future[None]] = {}

    def view_changed(self, view: View) -> None:
        self._latest.clear()
        self._under_way = {member: task for member, task in self._under_way.items() if not task.done()}

    def begin(self, member: Address) -> None:
        """Cut the state here and now. If it is asked for again, what was cut before is not sent any more."""
        core = self._core
        found = snapshot.cut(core.broker, core.handler)
        found.outline.update(
            epoch=core.progress.epoch,
            index=core.progress.index,
            chain=core.chain.hex(),
            kept=core.kept,
            era=core.era.to_json(),
            cluster=core.cluster,
            voters=list(core.voters),
            in_step=[str(each) for each in core.in_step],
            catching_up=[[str(each), cut.epoch, cut.index] for each, cut in core.catching_up.items()],
            lives=[[str(each), began.epoch, began.index] for each, began in core.lives.items()],
            wall=core.last_wall,
            time=core.time.last,
            versions=core.versions.to_json(),
            voids=core.voids.to_json(),
            view=str(core.channel.view.id),
        )
        count = sum(len(entries) for _, entries in found.queues)
        log.info("updating a broker", broker=member, messages=count)
        now = core.now() if core.time.last is None else core.time.last
        self._count += 1
        self._latest[member] = self._count
        before = self._under_way.get(member)
        self._under_way[member] = core.runtime.spawn(self._send(member, found, self._count, before, now))

    async def _send(
        self, member: Address, found: snapshot.Cut, number: int, before: Future[None] | None, now: float
    ) -> None:
        """`before`: another update of that member, whose parts must not come between those of this one."""
        channel = self._core.channel
        await self._on_disk()
        while before is not None and not before.done():
            await self._others()
        try:
            if self._latest.get(member) == number:
                await channel.send(bytes((UPDATE, _OUTLINE)) + wire.encode_json(found.outline), member)
            for chunk in snapshot.chunks(found, now):
                if self._latest.get(member) != number:
                    return
                await channel.send(bytes((UPDATE, _CHUNK)) + chunk, member)
                await self._others()
            if self._latest.get(member) == number:
                await channel.send(bytes((UPDATE, _END)), member)
        except ChannelClosed:
            pass

    def _others(self) -> Future[None]:
        """Let others have their turn."""
        future: Future[None] = self._core.runtime.future()
        self._core.runtime.call_soon(future.set_result, None)
        return future

    def _on_disk(self) -> Future[None]:
        """The other one gives up what it has: so first see to it that what we have is safe."""
        store, future = self._core.broker.store, self._core.runtime.future()
        store.when_synced(store.written(), lambda: future.set_result(None))
        return future


class Update:
    """The one that this broker gets, from its status on."""

    def __init__(self, core: Core, patience: float = PATIENCE) -> None:
        self._core = core
        self._patience = patience
        self._kept: list[tuple[Place, Address, bytes]] = []
        self._kept_bytes = 0
        self._given_up = False
        """Too much was to be kept: what still comes of it is of no use."""
        self._source: Address | None = None
        self._installation: Installation | None = None
        self._outline: snapshot.Json = {}
        self.keeps = False
        """What the log brings is kept for later."""
        self.complete = False
        """Events are applied as they come again."""
        self._all_here = False
        self._put_off = False
        """Nobody is likely to bring it: nothing is kept for it."""
        self._offered = False
        """Somebody has brought it."""

    def put_off(self) -> bool:
        """All that is heard may be of another cluster. Should ours bring an update after all, it is asked for again."""
        if not self._offered:
            self._put_off = True
            self.keeps = False
            self._forget_kept()
        return self._put_off

    def keep(self, place: Place, sender: Address, data: bytes) -> None:
        """Others go on, perhaps faster than their state comes here. Beyond `kept_max` it is given up, and tried again
        later; meanwhile nothing is kept."""
        self._kept.append((place, sender, data))
        self._kept_bytes += len(data)
        if self._kept_bytes > self._core.settings.kept_max:
            log.error("more happened during the update than this broker may keep", bytes=self._kept_bytes)
            self._forget_kept()
            self.keeps, self._given_up, self._installation = False, True, None
            if self._all_here:
                self._try_later()

    def _forget_kept(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0

    def _try_later(self) -> None:
        self._core.runtime.call_later(self._patience, self._again)

    def _again(self) -> None:
        core = self._core
        if core.update is self:
            core.update = Update(core, min(2 * self._patience, PATIENCE_MAX))
            core.standing.send_status()

    def from_here(self) -> None:
        """The state that we get, or have got already, is of this place of the log."""
        if self._put_off:
            return
        self._forget_kept()
        self.keeps = not self.complete
        if self._all_here:
            self.part(self._source or self._core.us, memoryview(bytes((_END,))))

    def part(self, sender: Address, data: memoryview) -> None:
        """What cannot be made sense of ends this update: after a while, another one is asked for."""
        try:
            self._part(sender, data)
        except (*NO_VERDICT, Broken):
            raise
        except Exception:
            log.error("an update cannot be carried out", source=sender, error=traceback.format_exc())
            self._give_up()

    def _give_up(self) -> None:
        core = self._core
        self._source = self._installation = None
        self.keeps = self.complete = self._all_here = False
        self._forget_kept()
        core.why = "what another broker has told this one, to bring it up to date, makes no sense: see its log"
        core.stop_filling()
        self._try_later()

    def _part(self, sender: Address, data: memoryview) -> None:
        what, data = data[0], data[1:]
        if self._given_up:
            if what == _END:  # whoever gives it has sent all: parts of the next one cannot be taken for those of this
                self._try_later()
        elif what == _OUTLINE:
            self._begin(sender, data)
        elif sender != self._source or self._installation is None:
            return  # of an update that was given up
        elif what == _CHUNK:
            self._installation.chunk(data)
        elif what == _END:
            self._all_here = True
            if self.keeps:
                self._finish()

    def _begin(self, sender: Address, data: memoryview) -> None:
        core = self._core
        outline: snapshot.Json = wire.decode_json(data)
        if outline["view"] != str(core.channel.view.id):
            return
        self._offered = True
        if self._put_off:
            self._put_off = False
            core.standing.send_status()
            return
        self._source, self._outline = sender, outline
        goal = Progress(outline["epoch"], outline["kept"] if "kept" in outline else outline["index"])
        era, voters = Era.from_json(outline["era"]), tuple(outline["voters"])
        core.reset(f"{sender} brings this broker up to date", goal, era, outline["cluster"], voters)
        core.time.begin(outline.get("time"))
        self._installation = Installation(core.broker, core.handler, outline, core.now())

    def _finish(self) -> None:
        core, outline = self._core, self._outline
        self.keeps = self._all_here = False
        assert self._installation is not None
        self._installation.finish()
        cut = Progress(outline["epoch"], outline["index"])
        filling = core.filling = Filling(core, self._installation.messages, cut)
        self._installation = None
        members = [Address.parse(text) for text in outline["in_step"]]
        others = {Address.parse(text): Progress(epoch, index) for text, epoch, index in outline["catching_up"]}
        lives = {Address.parse(text): Progress(epoch, index) for text, epoch, index in outline.get("lives", ())}
        era = Era.from_json(outline["era"])
        core.chain = bytes.fromhex(outline.get("chain", ""))
        core.updated(cut, era, outline["cluster"], tuple(outline["voters"]), members, others, lives, outline["wall"])
        core.versions.install(outline["versions"])
        core.voids.install(outline.get("voids"))
        self.complete = True
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        for place, sender, data in kept:
            core.replay(place, sender, memoryview(data))
        said = {
            "view": str(core.channel.view.id), "speaks": core.versions.newest, "cut": [cut.epoch, cut.index],
            "queues": filling.unready, "cluster": core.cluster,
        }  # fmt: skip
        core.sending.multicast(Kind.READY, wire.encode_json(said))
