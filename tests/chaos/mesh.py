"""The network between brokers on one machine: every byte between two of them passes here, and can be held up.

A broker listens at 127.0.0.1 and tells the others a host of its own (127.0.77.N), where this listens at the same port.
Whoever dials says its name first, so both ends of a connection are known, and each direction can be cut by itself. A
direction that is cut loses nothing: it is silent, as a network is to TCP, and what waited arrives when it heals, if
somebody still listens. Nobody is refused, for that is how a host tells that a process is gone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

CHUNK = 65536
_NAME = re.compile(rb"node([1-9])")
Link = tuple[int, int]
"""From, to: numbers of brokers."""


def hosts(count: int) -> list[str]:
    """Where brokers are reached by the others."""
    return [f"127.0.77.{number + 1}" for number in range(count)]


class Mesh:
    """Between all of them. `ports`: where each listens."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._servers: dict[int, asyncio.Server] = {}
        self._cut: set[Link] = set()
        self._reset: set[Link] = set()
        """Connections that use one of these end at once, and so do new ones."""
        self._changed = asyncio.Condition()
        self._open: dict[asyncio.Task[None], Link | None] = {}

    async def __aenter__(self) -> Mesh:
        for number in range(len(self._ports)):
            await self.accept(number)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for number in [*self._servers]:
            self.refuse(number)
        self._end(lambda link: True)
        await asyncio.gather(*self._open, return_exceptions=True)

    async def accept(self, number: int) -> None:
        """That broker runs."""

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._carry(number, reader, writer)

        host = hosts(len(self._ports))[number]
        self._servers[number] = await asyncio.start_server(carry, host, self._ports[number])

    def refuse(self, number: int) -> None:
        """That broker is dead: its host says so to whoever dials."""
        self._servers.pop(number).close()

    async def cut(self, links: Iterable[Link], reset: bool = False) -> None:
        """These directions carry nothing; with `reset`, connections that need one of them are broken, too."""
        found = {*links}
        self._cut |= found
        if reset:
            self._reset |= found
            self._end(lambda link: link is not None and (link in found or link[::-1] in found))

    async def heal(self) -> None:
        self._cut.clear()
        self._reset.clear()
        async with self._changed:
            self._changed.notify_all()

    def _end(self, concerned: Callable[[Link | None], bool]) -> None:
        for task, link in self._open.items():
            if concerned(link):
                task.cancel()

    async def _carry(self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = None
        writers = [writer]
        try:
            began = await _name(reader)
            if began is None:
                return
            source, data = began
            self._open[task] = (source, target)
            if {(source, target), (target, source)} & self._reset:
                return
            there, back = await asyncio.open_connection("127.0.0.1", self._ports[target])
            writers.append(back)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump((source, target), reader, back, data))
                both.create_task(self._pump((target, source), there, writer))
        except (OSError, _Over, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            del self._open[task]
            for each in writers:
                each.transport.abort()

    async def _pump(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes = b""
    ) -> None:
        while True:
            if link in self._cut:
                async with self._changed:
                    await self._changed.wait_for(lambda: link not in self._cut)
            writer.write(data)
            await writer.drain()
            data = await reader.read(CHUNK)
            if not data:
                raise _Over


class _Over(Exception):
    """One side has ended: so does the other."""


async def _name(reader: asyncio.StreamReader) -> tuple[int, bytes] | None:
    """Who dials, and what it has said up to there."""
    data = b""
    while (found := _NAME.search(data)) is None:
        more = await reader.read(CHUNK)
        if not more or len(data) > CHUNK:
            return None
        data += more
    return int(found[1]) - 1, data
