"""State that every member of a hub has a copy of: updates are applied everywhere in one order.

Promises: an update is applied once, at the same place of the total order, to every copy that counts (copies.py), and
whoever asked for it is told the result when it is applied here. Who joins is given the state and goes on from there;
after a merge those whose copy does not count take over the one that does, and what they had asked for and not been
told of is applied to that. With `majority_of`, updates are refused where there is no majority, and a result is told
only when every member of the view has the update.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from coterie.blocks.copies import Copies, Here, Own, There
from coterie.blocks.hub import Hub
from coterie.blocks.machine import CODEC, Machine, NoMajority, Place, Results, Snapshot, Update
from coterie.errors import CoterieError, UserError, WireError
from coterie.group.channel import ChannelClosed, Delivery, Receiver
from coterie.group.members import Address, View, ViewId
from coterie.group.protocols.total import Total
from coterie.logs import Log
from coterie.runtime.base import Buffer, Future

log = Log(__name__)

PORT = "replicated"
PATIENCE = 10
"""Times that a member waits for `retry_delay` to hear which copy counts; then it asks."""


@dataclass(slots=True)
class Asked:
    """An update of ours whose result was not told."""

    block: str
    body: bytes
    future: Future[bytes]
    skipped: bool = False
    """It was delivered when no updates were taken."""


class Replicated(Receiver):
    """The replicated state of one hub: all blocks share it, so that one state transfer brings them all up to date."""

    def __init__(self, hub: Hub) -> None:
        if not hub.channel.stack.has(Total):
            raise UserError("replicated blocks need total order: use the stack 'total-order'")
        if hub.settings.majority_of and hub.channel.stack.find(Total).settings.held != "all":
            raise UserError('majority_of: give TOTAL the setting held = "all", so that it tells who has what')
        self.hub = hub
        self.runtime = hub.runtime
        self.local = hub.local
        self.copies = Copies(hub.local, hub.settings.majority_of)
        self.malformed = 0
        self._port = hub.port(PORT, self)
        self._blocks: dict[str, Machine] = {}
        self._results: dict[Address, Results] = {}
        self._asked: dict[int, Asked] = {}
        self._ids = 0
        self._applied: dict[int, Place] = {}
        """Updates of ours whose results are known, and wait until they are sure."""
        self._place = Place(0, 0, 0)
        self._opened = 0
        """Position at which the view was opened."""
        self._held = 0
        """Position up to which every member of the view has everything."""
        self._fetching = False
        self._fetches = 0
        self._arrived: Snapshot | None = None
        """It is not in force before the whole state of the hub has come."""
        self._closed = False
        self._waiting: list[Future[None]] = []
        """For our copy to be the reference."""
        hub.when_connected.append(self.ready)
        hub.when_restored.append(self._restore)
        hub.when_closed.append(self._close)

    @classmethod
    def of(cls, hub: Hub) -> Replicated:
        port = hub.find(PORT)
        if port is None:
            return cls(hub)
        assert isinstance(port.receiver, cls)
        return port.receiver

    def add(self, name: str, block: Machine) -> None:
        if name in self._blocks:
            raise UserError(f"there is a replicated block '{name}' already: give each its own name")
        if self.hub.view is not None or self.hub.connecting:
            raise UserError(f"block '{name}' comes too late: make it before the hub connects")
        self._blocks[name] = block

    # Asking for updates.

    async def update(self, block: str, body: bytes) -> bytes:
        """Have it applied everywhere; gives its result here."""
        view = self.hub.view
        if self._closed:
            raise ChannelClosed("the channel was closed")
        if view is not None and not self.copies.majority(view):
            raise NoMajority(f"{self._short_of(view)}: nothing was changed")
        self._ids += 1
        number = self._ids
        asked = self._asked[number] = Asked(block, body, self.runtime.future())
        try:
            await self._send(number, asked)
            return await asked.future
        finally:
            del self._asked[number]
            self._applied.pop(number, None)

    async def _send(self, number: int, asked: Asked) -> None:
        told = next(iter(self._asked)) - 1
        await self._port.send(CODEC.encode(Update(asked.block, number, told, asked.body)))

    async def ready(self) -> None:
        """Wait until our copy is the reference."""
        if self.copies.own is not Own.REFERENCE:
            self._look()
            future = self.runtime.future()
            self._waiting.append(future)
            await future

    def _short_of(self, view: View) -> str:
        return f"the view {view} is no majority of {self.hub.settings.majority_of} members"

    def sure(self, at: Place) -> bool:
        """What happened there stays, whoever is cut off: in an open view, everybody has it."""
        if not self.hub.settings.majority_of:
            return True
        return self.copies.open and self._held >= max(self._opened, at.position if at.view == self._place.view else 0)

    # What happens, in the order in which it happens everywhere.

    def receive(self, batch: list[Delivery]) -> None:
        assert self.hub.view is not None
        counter = self.hub.view.id.counter
        for sender, messages, multicast, position in batch:
            if not multicast:
                continue
            for message in messages:
                last = self._place
                self._place = Place(counter, position, last.nth + 1 if last[:2] == (counter, position) else 0)
                self._take(sender, message)
        self._look()

    def _take(self, sender: Address, message: Buffer) -> None:
        was = self._before()
        try:
            match CODEC.decode(message):
                case Update() as update:
                    if self.copies.follows and self.copies.open:
                        self._apply(sender, update)
                    elif sender == self.local and update.id in self._asked:
                        self._asked[update.id].skipped = True
                case There() as there:
                    self.copies.there(sender, there)
                case Here() as here:
                    self.copies.here(sender, here)
                case _:
                    self.malformed += 1
        except WireError:
            self.malformed += 1
        self._after(was)

    def _apply(self, sender: Address, update: Update) -> None:
        results = self._results.setdefault(sender, Results())
        if update.told > results.told:
            results.told = update.told
            results.by_id = {id: result for id, result in results.by_id.items() if id > update.told}
        if update.id <= results.told or update.id in results.by_id:
            return  # it was said twice, because its sender could not know better
        block = self._blocks.get(update.block)
        if block is None:
            log.warning("an update for a block that is not here", block=update.block, local=self.local, sender=sender)
            return
        try:
            result = block.apply(sender, update.body, self._place)
        except WireError:  # everybody sees the same
            self.malformed += 1
            result = b""
        results.by_id[update.id] = result
        if sender == self.local and update.id in self._asked:
            self._applied[update.id] = self._place

    def view_accepted(self, view: View) -> None:
        self._place, self._held = Place(view.id.counter, 0, 0), 0
        self._enter(view)

    def _enter(self, view: View) -> None:
        was = self._before()
        self.copies.view_changed(view)
        if self.copies.follows:
            self._members_changed(view)
        self._after(was)
        self._look()

    def held(self, view: ViewId, position: int, everyone: bool) -> None:
        if everyone and self.hub.view is not None and self.hub.view.id == view:
            self._held = max(self._held, position)
            self._look()

    def _members_changed(self, view: View) -> None:
        self._results = {member: results for member, results in self._results.items() if member in view}
        for block in self._blocks.values():
            block.members_changed(view, self._place, self.copies.majority(view))

    def _before(self) -> tuple[Own, bool, bool]:
        return self.copies.own, self.copies.open, self.copies.settled

    def _after(self, was: tuple[Own, bool, bool]) -> None:
        """What follows from a change of what our copy is."""
        own, opened, settled = was
        if self.copies.open and not opened:
            self._opened = self._place.position
        if self.copies.own is Own.REFERENCE and own in (Own.OLD, Own.NOTHING):  # it stood still
            assert self.hub.view is not None
            self._members_changed(self.hub.view)
        if self.copies.settled and not settled:
            self._settle()

    def _settle(self) -> None:
        """Our copy counts: what we asked for was applied to it, or must be asked for once more."""
        own = self._results.get(self.local, Results())
        for number, asked in self._asked.items():
            asked.skipped = False
            if number in own.by_id:
                self._applied.setdefault(number, self._place)
            else:  # it may be on its way, or may have been applied to a copy that is lost
                self.runtime.spawn(self._repeat(number, asked))

    async def _repeat(self, number: int, asked: Asked) -> None:
        try:
            if number in self._asked:
                await self._send(number, asked)
        except CoterieError as error:
            self._tell(number, error)

    # What follows from it here.

    def _look(self) -> None:
        for says in self.copies.says():
            self.runtime.spawn(self._say(says))
        self._answer()
        if self.copies.own is Own.REFERENCE:
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)
            self._waiting.clear()
        elif self.copies.own is not Own.FOLLOWS and not (self._fetching or self.hub.connecting or self._closed):
            self._fetching = True
            self.runtime.spawn(self._fetch())
        for block in self._blocks.values():
            block.look()

    async def _say(self, says: There | Here) -> None:
        try:
            await self._port.send(CODEC.encode(says))
        except CoterieError as error:
            log.info("not said", what=says, why=error, local=self.local)

    def _answer(self) -> None:
        view = self.hub.view
        if view is None:
            return
        own = self._results.get(self.local, Results())
        if self.copies.settled:
            for number in [number for number, at in self._applied.items() if self.sure(at)]:
                self._tell(number, own.by_id[number])
        if self.copies.lost:
            for number in self._applied:
                self._tell(number, NoMajority("our copy does not count any more: the update may not be in force"))
            self._applied.clear()
        if not self.copies.majority(view):
            for number in self._applied:
                self._tell(number, NoMajority(f"{self._short_of(view)}: the update may not be in force"))
            for number in [number for number, asked in self._asked.items() if asked.skipped]:
                self._tell(number, NoMajority(f"{self._short_of(view)}: nothing was changed"))
            self._applied.clear()

    def _tell(self, number: int, result: bytes | CoterieError) -> None:
        asked = self._asked.get(number)
        if asked is None or asked.future.done():
            return
        if isinstance(result, bytes):
            asked.future.set_result(result)
        else:
            asked.future.set_exception(result)

    def _close(self) -> None:
        self._closed = True
        for number in self._asked:
            self._tell(number, ChannelClosed("the channel was closed: the update may not be in force"))
        for future in self._waiting:
            if not future.done():
                future.set_exception(ChannelClosed("the channel was closed"))
        self._waiting.clear()
        for block in self._blocks.values():
            block.close()

    # State transfer.

    async def _fetch(self) -> None:
        """Ask for the reference until we have it."""
        undecided = 0
        while self.copies.own in (Own.NOTHING, Own.OLD) and not self._closed:
            undecided = undecided + 1 if self.copies.holders is None else 0
            if undecided > PATIENCE:
                self.copies.forget()
            providers = self.copies.providers()
            try:
                if providers:
                    self._fetches += 1
                    await self.hub.channel.get_state(providers[self._fetches % len(providers)])
            except ChannelClosed:
                break
            except CoterieError as error:
                log.info("no state yet", why=error, local=self.local)
            if not self.copies.follows:
                pause = self.runtime.future()
                timer = self.runtime.call_later(self.hub.settings.retry_delay, pause.set_result, None)
                try:
                    await pause
                finally:  # the node may be closed meanwhile, and with it whoever waits here
                    timer.cancel()
        self._fetching = False

    def get_state(self) -> Iterator[Buffer]:
        view, copies = self.hub.view, self.copies
        assert view is not None
        reference = copies.own is Own.REFERENCE
        snapshot = Snapshot(
            view.id, copies.holders or (), reference, copies.era, tuple(copies.heard),
            self._results if reference else {},
            {name: block.save() for name, block in self._blocks.items()} if reference else {},
        )  # fmt: skip
        data, size = memoryview(CODEC.encode(snapshot)), self.hub.settings.chunk_size
        return (data[start : start + size] for start in range(0, len(data), size))

    async def set_state(self, chunks: AsyncIterator[Buffer]) -> None:
        self._arrived = None
        snapshot = CODEC.decode(b"".join([bytes(chunk) async for chunk in chunks]))
        if not isinstance(snapshot, Snapshot):
            raise WireError("a state of replicated blocks that is none")
        self._arrived = snapshot

    def _restore(self) -> None:
        snapshot, self._arrived = self._arrived, None
        if snapshot is None:
            return
        was = self._before()
        if snapshot.reference:
            self.copies.restored(snapshot.holders, snapshot.era, snapshot.heard, snapshot.view)
            self._results = snapshot.results
            self._applied.clear()
            self._load(snapshot.blocks)
        else:
            self.copies.told(snapshot.holders)
        self._after(was)
        if self.hub.view is not None and snapshot.view < self.hub.view.id:
            self._enter(self.hub.view)
        else:
            self._look()

    def _load(self, blocks: dict[str, bytes]) -> None:
        for name, block in self._blocks.items():
            if name in blocks:
                block.load(blocks[name])
            else:
                log.warning("a block that the group does not have", block=name, local=self.local)
