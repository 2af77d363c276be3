"""Updates: one that is in step gives its state to one that is not, while everybody goes on.

The newcomer's status has a place in the log. There, the oldest broker in step cuts its state, and sends its outline
and an index of all messages, one to one; the newcomer keeps every event from that place on. When it has the index, it
applies what it has kept, and says so on the log: from that place on it serves, while it asks for the bodies
(filling.py). If a view changes before, both begin again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        self._turn = 0
        """Grows with every view: updates of an older one are over."""

    def view_changed(self, view: View) -> None:
        self._turn += 1

    def begin(self, member: Address) -> None:
        """Cut the state here and now."""
        core = self._core
        found = snapshot.cut(core.broker, core.handler)
        found.outline.update(
            epoch=core.progress.epoch,
            index=core.progress.index,
            era=core.era.to_json(),
            cluster=core.cluster,
            voters=list(core.voters),
            in_step=[str(each) for each in core.in_step],
            catching_up=[[str(each), cut.epoch, cut.index] for each, cut in core.catching_up.items()],
            wall=core.last_wall,
            time=core.time.last,
            versions=core.versions.to_json(),
            view=str(core.channel.view.id),
        )
        count = sum(len(entries) for _, entries in found.queues)
        log.info("updating a broker", broker=member, messages=count)
        now = core.now() if core.time.last is None else core.time.last
        core.runtime.spawn(self._send(member, found, self._turn, now))

    async def _send(self, member: Address, found: snapshot.Cut, turn: int, now: float) -> None:
        channel = self._core.channel
        await self._on_disk()
        if turn != self._turn:
            return
        try:
            await channel.send(bytes((UPDATE, _OUTLINE)) + wire.encode_json(found.outline), member)
            for chunk in snapshot.chunks(found, now):
                if turn != self._turn:
                    return
                await channel.send(bytes((UPDATE, _CHUNK)) + chunk, member)
                await self._others()
            if turn == self._turn:
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
        self._forget_kept()
        self.keeps = not self.complete
        if self._all_here:
            self._finish()

    def part(self, sender: Address, data: memoryview) -> None:
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
        self._source, self._outline = sender, outline
        progress = Progress(outline["epoch"], outline["index"])
        era, voters = Era.from_json(outline["era"]), tuple(outline["voters"])
        core.reset(f"{sender} brings this broker up to date", progress, era, outline["cluster"], voters)
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
        era = Era.from_json(outline["era"])
        core.updated(cut, era, outline["cluster"], tuple(outline["voters"]), members, others, outline["wall"])
        core.versions.install(outline["versions"])
        self.complete = True
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        for place, sender, data in kept:
            core.replay(place, sender, memoryview(data))
        said = {
            "view": str(core.channel.view.id), "speaks": core.versions.newest, "cut": [cut.epoch, cut.index],
            "queues": filling.unready,
        }  # fmt: skip
        core.sending.multicast(Kind.READY, wire.encode_json(said))
