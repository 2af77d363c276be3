"""Opening the store: which generation counts, what is in it, and what the broker is told of it."""

from __future__ import annotations

import json
from itertools import pairwise

from coterie.broker.log_store.conversion.conversion import Conversion
from coterie.broker.log_store.generation import Generation
from coterie.broker.log_store.index import Index
from coterie.broker.log_store.own_records import CLOSED, LINE, OWN, STARTED
from coterie.broker.log_store.settings import StoreSettings
from coterie.broker.storage import Recovered
from coterie.errors import DiskError
from coterie.log.event_log import EventLog
from coterie.log.folder import Folder
from coterie.log.generation import Generations
from coterie.log.problems import Kind
from coterie.logs import Log
from coterie.runtime.base import Runtime

_ALL = 2**64 - 1
"""Above every position."""
_MOST_DAMAGE = 1000
"""Lines of damage that are told; the rest is counted."""
_HARMLESS = frozenset({Kind.LEFTOVER, Kind.STRANGER, Kind.EMPTY, Kind.TORN, Kind.UNREADABLE})
"""What a crash leaves behind, or what is no matter of ours; what cannot be read at all ends the opening."""
log = Log(__name__)


class Opening:
    """One of them."""

    def __init__(self, runtime: Runtime, settings: StoreSettings, generations: Generations) -> None:
        self._runtime = runtime
        self._settings = settings
        self._generations = generations
        self.result = Recovered()
        self._damage: list[str] = []

    async def run(self) -> Generation:
        """Raises DiskError."""
        number = await self._convert(await self._generations.find())
        index = Index()
        path = self._generations.path(number)
        event_log = await EventLog.open(self._runtime, path, self._settings.of_log(), None, index, alone=True)
        found = event_log.found
        if found.halted:
            raise DiskError(found.halted)
        index.settle()
        segments = event_log.segments.list
        index.kept_from = max(
            [segments[0].before.place.index if segments else found.last.place.index,
             *(after.before.place.index for each, after in pairwise(segments) if each.merged)]
        )  # fmt: skip
        self._damage += [str(problem) for problem in found.problems if problem.kind not in _HARMLESS]
        self._damage += index.lost
        generation = Generation(self._runtime, self._settings, number, index, event_log)
        if self._damage and not index.whole:
            try:  # behind a snapshot damage is not read, and not told, again
                await generation.tender.snapshot()
            except DiskError as error:
                log.warning("the next start will meet the same damage", error=error)
        self._tell(index, empty=not found.last.ordinal)
        return generation

    async def _convert(self, number: int) -> int:
        """The generation that counts, once what an older version has left is in it."""
        conversion = Conversion(self._runtime, self._settings, self._generations)
        if await conversion.needed():
            if not number and not await Folder(self._runtime, self._generations.path(0)).list():
                number = await conversion.run()
                self._damage += conversion.damage
            await conversion.remove()
        return number

    async def reserve(self, path: str) -> int:
        """Bytes of the reserve; one of another size goes."""
        folder = Folder(self._runtime, "")
        size = (await folder.list_all()).get(path, 0)
        if size and not size >= self._settings.reserve_bytes > 0:
            await Folder(self._runtime, "").remove_path(path)
            return 0
        return size

    def _tell(self, index: Index, empty: bool) -> None:
        result = self.result
        result.previous = self._number_of(index, STARTED)
        result.incarnation = result.previous + 1
        result.clean = empty or self._number_of(index, CLOSED) == result.previous > 0
        for (kind, key), text in index.saved.items():
            if kind in OWN:
                continue
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                result.records[kind, key] = value
            else:
                self._damage.append(f"the saved {kind} '{key}' is no JSON object")
        self._tell_queues(index)
        result.damage = self._damage[:_MOST_DAMAGE]
        if len(self._damage) > _MOST_DAMAGE:
            result.damage.append(f"and {len(self._damage) - _MOST_DAMAGE} more")

    def _tell_queues(self, index: Index) -> None:
        result = self.result
        for key, line in index.lines.items():
            noted, delivered = self._noted(index, line.text)
            found = index.messages(line, delivered if result.clean else _ALL)
            line.next = max([1, noted, *(part.next for part in line.parts.values())])
            line.delivered = delivered if result.clean else line.next - 1
            result.queues[key] = line.next, [] if found is None else found

    def _noted(self, index: Index, text: str) -> tuple[int, int]:
        found = index.saved.get((LINE, text))
        try:
            match None if found is None else json.loads(found):
                case {"next": int(position), "delivered": int(delivered)}:
                    return position, delivered
        except (ValueError, RecursionError):
            pass
        self._damage.append(f"how far queue {text} has gone is not known")
        return 0, _ALL

    @staticmethod
    def _number_of(index: Index, kind: str) -> int:
        try:
            match json.loads(index.saved.get((kind, ""), b"null")):
                case {"incarnation": int(number)}:
                    return number
        except (ValueError, RecursionError):
            pass
        return 0
