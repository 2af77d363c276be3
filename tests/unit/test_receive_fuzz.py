"""What a hostile peer can say: packets with altered headers and messages of every protocol, at members of real stacks.

Nothing may raise out of the receive path, and nothing may grow. That the group still works is not asked: who is let in
knows the secret, and can always stop a group that listens to it.
"""

from __future__ import annotations

import random
import types
import typing
from collections import deque
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from group_rig import STACK, Group

from coterie.group.channel import Channel
from coterie.group.members import Address, ViewId
from coterie.group.packet import APP, FIRST, MCAST, RAW, UCAST, Packet
from coterie.group.presets import REGISTRY
from coterie.group.protocol import Protocol
from coterie.group.stack import Stack

NUMBERS = (0, 1, 2, 3, 5, 64, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
FIXED_STACK = ("TCP", "STATIC", "FAILURE", "NAKACK", "UNICAST3", "STABLE", "FIXED", "FLOW", "FRAG")
STACKS = {
    "FLUSH2": STACK,
    "FLUSH": tuple("FLUSH" if name == "FLUSH2" else name for name in STACK),
    "TOTAL": (*STACK[:8], "TOTAL", *STACK[8:]),
    "FIXED": FIXED_STACK,
    "UDP": ("UDP", *STACK[1:]),
}
PACKETS = 900
DEPTH = 8


class Liar:
    """Makes things up."""

    def __init__(self, rng: random.Random, group: Group, victim: str) -> None:
        self.rng = rng
        self.member = group[victim]
        self.members = [group[name].local for name in group.members]
        self.protocols = [p for p in self.member.channel.stack._layers if isinstance(p, Protocol) and p.codec.messages]

    def address(self) -> Address:
        choice = self.rng.random()
        if choice < 0.7:
            return self.rng.choice(self.members)
        if choice < 0.8:
            known = self.rng.choice(self.members)
            return Address(known.name, self.number())
        return Address(self.rng.choice(("", "x", "é" * 127, f"stranger{self.rng.randrange(10**6)}")), self.number())

    def number(self) -> int:
        view = self.member.channel.view
        near = (view.tag, view.id.counter, view.id.counter + 1, self.rng.randrange(20))
        return self.rng.choice((*NUMBERS, *near, *near, *near)) & 2**64 - 1

    def value(self, kind: Any) -> Any:
        """Anything of that type."""
        rng = self.rng
        if kind is Address:
            return self.address()
        if kind is ViewId and rng.random() < 0.5:
            return self.member.channel.view.id
        if kind is bool:
            return rng.random() < 0.5
        if kind is int:
            return self.number()
        if kind is float:
            return rng.choice((0.0, -1.0, 1e308, float("inf"), float("nan")))
        if kind is bytes:
            return rng.randbytes(rng.choice((0, 1, 16, 32, 300)))
        if kind is str:
            return rng.choice(("", "a", "é" * 200, "\0", "10.0.0.1"))
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            return tuple(self.value(args[0]) for _ in range(rng.choice((0, 1, 2, 3, 40))))
        if origin is tuple:
            return tuple(self.value(arg) for arg in args)
        if origin is dict:
            return {self.value(args[0]): self.value(args[1]) for _ in range(rng.choice((0, 1, 3, 40)))}
        if origin in (typing.Union, types.UnionType):
            return None if rng.random() < 0.3 else self.value(args[0])
        hints = typing.get_type_hints(kind)
        names = [f.name for f in fields(kind)] if is_dataclass(kind) else list(kind._fields)
        return kind(**{name: self.value(hints[name]) for name in names})

    def body(self, protocol: Protocol) -> bytes:
        rng = self.rng
        body = protocol.codec.encode(self.value(rng.choice(protocol.codec.messages)))
        if rng.random() < 0.2:
            body = body[: rng.randrange(len(body) + 1)]
        elif rng.random() < 0.1 and body:
            at = rng.randrange(len(body))
            body = body[:at] + rng.randbytes(1) + body[at + 1 :]
        return body

    def packet(self) -> Packet:
        rng = self.rng
        if rng.random() < 0.6:
            protocol = rng.choice(self.protocols)
            packet = Packet(self.body(protocol), None, protocol.id, rng.choice((RAW, RAW, UCAST, MCAST)))
        else:
            proto = rng.choice((APP, APP, 255, rng.randrange(40)))
            packet = Packet(rng.randbytes(rng.choice((0, 1, 8, 50))), None, proto, rng.choice((RAW, UCAST, MCAST)))
        packet.flags = rng.choice((0, 0, FIRST, rng.randrange(256)))
        packet.sender = self.address()
        packet.seqno = rng.choice((self.number(), rng.randrange(30)))
        packet.conn = rng.choice((self.number() & 0xFFFFFFFF, 7))
        packet.view = rng.choice((self.member.channel.view.tag, self.number()))
        return packet

    def lie(self, count: int) -> None:
        transport = self.member.channel._transport
        batch = [self.packet() for _ in range(count)]
        if self.member.channel.stack.running:
            transport.pass_up(batch)


def size_of(thing: object, depth: int = 0) -> int:
    """How many things are kept in containers, down to whatever they hold; other layers count as nothing."""
    if depth > DEPTH or (depth and isinstance(thing, Protocol | Stack | Channel | type)):
        return 0
    if isinstance(thing, dict):
        inner = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        inner = list(thing)
    elif type(thing).__module__.startswith("coterie.group"):
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        names = [*getattr(thing, "__dict__", {}), *slots]
        return sum(size_of(getattr(thing, name, None), depth + 1) for name in names)
    else:
        return 0
    return len(inner) + sum(size_of(part, depth + 1) for part in inner)


def kept(liar: Liar) -> dict[str, int]:
    """By layer."""
    return {layer.name: size_of(layer) for layer in liar.member.channel.stack._layers}


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("seed", range(2))
def test_whatever_a_peer_says_nothing_raises_and_nothing_grows(name: str, seed: int) -> None:
    group = Group("a b c", stack=STACKS[name], seed=seed + 1)
    for member in "abc":
        group.boot(member)
    group.run(1.5)
    liar = Liar(random.Random(f"{name}/{seed}"), group, "b")
    sizes: list[int] = []
    for step in range(PACKETS // 10):
        liar.member.call(liar.lie, 10)
        group.run(0.004)
        if step % 10 == 9:
            sizes.append(sum(kept(liar).values()))
    assert not group.world.unhandled
    assert liar.member.channel.stack.running  # it has listened to all of it
    group.run(5.0)
    assert not group.world.unhandled
    third = len(sizes) // 3
    assert max(sizes[-third:]) < 3 * max(sizes[:third]) + 2000, kept(liar)


def test_every_protocol_is_in_one_of_the_stacks() -> None:
    used = {name for stack in STACKS.values() for name in stack}
    others = {
        name for name, p in REGISTRY.items() if not p.codec.messages or p.role == "discovery"
    }  # has its own socket
    assert set(REGISTRY) - used - others == set()
