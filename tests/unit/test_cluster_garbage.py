"""Altered events: cut short, with bytes flipped, with other values in their JSON. Each is void, or does what it says,
at every broker alike; and nobody leaves."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from cluster_rig import Host
from cluster_state import difference, shared
from test_cluster_taken_back import World

from coterie.cluster import wire
from coterie.cluster.outbox import Asked, Outbox
from coterie.cluster.wire import Kind
from coterie.runtime.base import Buffer

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63 - 1, 2**64, 10**400, 1.5, "", "q", "k" * 256, "\0", [], {}, [[]], ["q", 1],
)  # fmt: skip
EVERY_SO_OFTEN = 25


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Kind, bytes]]:
    """Events of a day like any other."""
    found: list[tuple[Kind, bytes]] = []
    send = Outbox.send

    def listen(self: Outbox, kind: Kind, parts: Sequence[Buffer], asked: Asked) -> None:
        found.append((kind, b"".join(parts)))
        send(self, kind, parts, asked)

    with monkeypatch.context() as patch:
        patch.setattr(Outbox, "send", listen)
        world = World(1)
        events = world.events()
        for _ in range(150):
            events[world.rng.choice([*events])]()
        world.cluster.settle()
    return found


def altered(data: bytes, rng: random.Random) -> bytes:
    how = rng.randint(0, 4)
    if how == 0:
        return data[: rng.randint(0, len(data))]
    if how == 1 and data:
        at = rng.randrange(len(data))
        return data[:at] + bytes((data[at] ^ 1 << rng.randint(0, 7),)) + data[at + 1 :]
    if how == 2:
        at = rng.randint(0, len(data))
        return data[:at] + rng.randbytes(rng.randint(1, 9)) + data[at:]
    begin = data.find(b"{")
    try:
        said = json.loads(data[begin:])
    except ValueError:
        at = rng.randint(0, max(len(data) - 8, 0))
        number = rng.choice((0, 1, 2**32 - 1, 2**63, 2**64 - 1))
        return data[:at] + number.to_bytes(8, "big") + data[at + 8 :]
    return data[:begin] + json.dumps(changed(said, rng)).encode()


def changed(said: Any, rng: random.Random) -> Any:
    """With one value, somewhere inside, that is another."""
    if isinstance(said, dict) and said and rng.random() < 0.9:
        name = rng.choice(sorted(said))
        if rng.random() < 0.1:
            return {key: value for key, value in said.items() if key != name}
        return {**said, name: changed(said[name], rng)}
    if isinstance(said, list) and said and rng.random() < 0.8:
        at = rng.randrange(len(said))
        return [*said[:at], changed(said[at], rng), *said[at + 1 :]]
    return rng.choice(VALUES)


def send(host: Host, kind: Kind, data: bytes, rng: random.Random) -> None:
    if kind >= Kind.STATUS:
        host.member.outbox.multicast(kind, data)
    elif rng.random() < 0.05:
        head = bytearray(wire.head(kind, host.runtime.wall(), 0))
        head[rng.randrange(len(head) - 8)] ^= 1 << rng.randint(0, 7)  # all but its number
        host.channel.send_nowait(bytes(head) + data)
    else:
        host.member.outbox.send(kind, (data,), Asked(b""))


def test_altered_events_fuzz_are_void_or_right_at_every_broker_alike(
    fuzz_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = recorded(monkeypatch)
    words = [
        (kind, wire.encode_json(said))
        for kind, said in (
            (Kind.FILLED, {"cut": [1, 1], "queues": [1]}), (Kind.WHOLE, {"cut": [1, 1]}), (Kind.HERE, {}),
            (Kind.VOTER, {"name": "x", "voters": ["a", "b", "c"]}), (Kind.FORGET, {"name": "x", "voters": ["a"]}),
        )
    ]  # fmt: skip
    for number in range(max(1, fuzz_rounds // 10_000)):
        rng = random.Random(f"events {fuzz_rounds} {number}")
        world = World(number)
        for count in range(150):
            kind, data = rng.choice(words if rng.random() < 0.1 else events)
            send(rng.choice(world.hosts), kind, altered(data, rng), rng)
            if count % EVERY_SO_OFTEN == 0:
                world.cluster.settle()
                assert all(host.serves for host in world.hosts), [host.member.replica.why for host in world.hosts]
                first = shared(world.a)
                for host in world.hosts[1:]:
                    assert not (left := difference(first, shared(host))), left
        world.cluster.run(2.0)
        assert len({(host.member.replica.progress, host.member.voids.sum) for host in world.hosts}) == 1
        assert world.a.member.voids.count
