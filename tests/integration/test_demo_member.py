"""A process of the demonstration, on a machine that is too busy for it to find the others in time."""

from __future__ import annotations

import asyncio
import json

import pytest

from coterie.demo.book import NUMBER
from coterie.demo.member import Member
from coterie.group.protocols.cut import Cut
from coterie.runtime.aio import AioRuntime
from coterie.workers import Message, free_ports

PATIENCE = 60.0


def test_whoever_finds_nobody_in_time_begins_alone_and_takes_over_the_others_book_when_they_merge(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = asyncio.run(_found_late(capsys))
    states = [message for message in told if "state" in message]
    assert [(message["state"], message["from"]) for message in states] == [(NUMBER.size + 4, "ada")]


async def _found_late(capsys: pytest.CaptureFixture[str]) -> list[Message]:
    """What they told the command."""
    ports = dict(zip(("ada", "ben", "eve"), free_ports(3), strict=True))
    runtimes = {name: AioRuntime(name) for name in ports}
    members = {
        name: Member(
            {
                "name": name, "incarnation": 1, "port": ports[name], "state": name == "eve",
                "peers": [port for other, port in ports.items() if other != name],
            },
            runtimes[name],
        )
        for name in ports
    }  # fmt: skip
    eve = members["eve"]
    for name in ("ada", "ben"):
        await members[name].connect()
        members[name].channel.stack.find(Cut).cut(["eve"])
    await asyncio.wait_for(members["ada"].channel.send(NUMBER.pack(1)), PATIENCE)
    eve.channel.stack.find(Cut).cut(["ada", "ben"])
    await asyncio.wait_for(eve.connect(), PATIENCE)
    assert eve.book.view is not None
    assert [member.name for member in eve.book.view.members] == ["eve"]
    for member in members.values():
        member.channel.stack.find(Cut).heal()
    told: list[Message] = []
    async with asyncio.timeout(PATIENCE):
        while not any("state" in message for message in told):
            await asyncio.sleep(0.05)  # it tells the command and nobody else
            told += map(json.loads, capsys.readouterr().out.splitlines())
    for name, member in members.items():
        await member.channel.close()
        await runtimes[name].close()
    return told + [json.loads(line) for line in capsys.readouterr().out.splitlines()]
