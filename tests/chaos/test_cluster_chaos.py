"""One round of each fault of what `make chaos` runs for long, and the network between brokers that it cuts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from cluster_chaos import KINDS, Chaos
from mesh import Mesh, hosts

from coterie.workers import free_ports


@pytest.mark.timeout(200)
def test_whatever_is_done_to_a_broker_nothing_is_lost_or_comes_back_or_comes_unflagged(tmp_path: Path) -> None:
    lines: list[str] = []
    chaos = Chaos(3, tmp_path, 1, lines.append, rate=60, longest=2.0)
    outcome = asyncio.run(chaos.run(len(KINDS)))
    assert outcome["violations"] == [], "\n".join(lines)
    assert sorted(chaos.figures) == sorted(KINDS)
    assert len(lines) == len(KINDS)
    assert int(str(outcome["confirmed"])) > 100
    assert outcome["lost"] == 0


class Ends:
    """A connection between two who pretend to be brokers: node1 has dialled node2."""

    def __init__(self) -> None:
        self.ports = free_ports(2)
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(hosts(2)[1], self.ports[1])
        writer.write(b"this is node1")
        self._writers.append(writer)
        return reader, writer

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.accepted.put((reader, writer))
        self._writers.append(writer)

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def is_silent(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(0.2):
            return not await reader.read(1)
    except TimeoutError:
        return True


def test_a_direction_that_is_cut_is_silent_and_the_other_is_not_and_what_waited_comes_when_it_heals() -> None:
    async def scene() -> None:
        ends = Ends()
        server = await asyncio.start_server(ends.accept, "127.0.0.1", ends.ports[1])
        mesh = Mesh(ends.ports)
        async with server, mesh, asyncio.timeout(20):
            reader, writer = await ends.dial()
            there, back = await ends.accepted.get()
            assert await there.readexactly(13) == b"this is node1"
            await mesh.cut([(0, 1)])
            writer.write(b"later")
            back.write(b"now")
            assert await reader.readexactly(3) == b"now"
            assert await is_silent(there)
            await mesh.heal()
            assert await there.readexactly(5) == b"later"
            await ends.close()

    asyncio.run(scene())


def test_a_cut_with_resets_ends_connections_and_those_that_are_made_until_it_heals() -> None:
    async def scene() -> None:
        ends = Ends()
        server = await asyncio.start_server(ends.accept, "127.0.0.1", ends.ports[1])
        mesh = Mesh(ends.ports)
        async with server, mesh, asyncio.timeout(20):
            reader, _ = await ends.dial()
            there, _ = await ends.accepted.get()
            await there.readexactly(13)
            await mesh.cut([(1, 0)], reset=True)
            for end in (reader, there):
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await end.readexactly(1)
            reader, _ = await ends.dial()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            await mesh.heal()
            reader, _ = await ends.dial()
            _, back = await ends.accepted.get()
            back.write(b"!")
            assert await reader.readexactly(1) == b"!"
            await ends.close()

    asyncio.run(scene())


def test_whoever_dials_a_dead_broker_is_refused() -> None:
    async def scene() -> None:
        ends = Ends()
        async with Mesh(ends.ports) as mesh:
            mesh.refuse(1)
            with pytest.raises(ConnectionRefusedError):
                await ends.dial()

    asyncio.run(scene())
