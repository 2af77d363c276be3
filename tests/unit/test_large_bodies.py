"""Large bodies outside the order: scripts of each half (large_bodies/*.txt), and brokers with both and bad luck."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coterie.broker.large_bodies import Holdings, HoldingsSettings, Offers, OffersSettings, holdings, offers
from coterie.broker.large_bodies.actions import (
    Action,
    Arrived,
    Check,
    Fetch,
    Held,
    Lacking,
    Missing,
    Offer,
    Origin,
    Propose,
    Refused,
    Remove,
    Send,
    Sync,
    Write,
    digest_of,
    file_name,
)

SCRIPTS = Path(__file__).parent / "large_bodies"
BODIES = {digest_of(name.encode()): name for name in "BCDE"}
DIGESTS = {name: digest for digest, name in BODIES.items()}


def scripts(name: str) -> dict[str, list[str]]:
    """By title."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in (SCRIPTS / name).read_text().splitlines():
        if line.startswith("== "):
            lines = found[line[3:]] = []
        elif line.strip() and not line.startswith("#"):
            lines.append(line)
    return found


OFFERS, HOLDINGS = scripts("offers.txt"), scripts("holdings.txt")


def steps(lines: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Each input with the actions that follow it."""
    at = 0
    while at < len(lines):
        end = at + 1
        while end < len(lines) and lines[end].startswith(" "):
            end += 1
        yield lines[at].split(), [line.strip() for line in lines[at + 1 : end]]
        at = end


def shown(action: Action) -> str:
    words = [type(action).__name__.lower()]
    for value in action:
        if isinstance(value, bool):
            words.append("persistent" if value else "transient")
        elif isinstance(value, bytes):
            words.append(BODIES[value])
        elif isinstance(value, Origin):
            words.append(f"{value.name}/{value.life}")
        elif isinstance(value, tuple):
            words.append(",".join(value))
        elif value is not None:
            words.append(str(value))
    return " ".join(words).strip()


def origin(text: str) -> Origin:
    name, life = text.split("/")
    return Origin(name, int(life))


@pytest.mark.parametrize("lines", OFFERS.values(), ids=OFFERS)
def test_offers(lines: list[str]) -> None:
    least = 2

    def enough(holders: Mapping[str, int]) -> bool:
        return sum(life == 1 for life in holders.values()) >= least

    half = Offers(Origin("a", 1), OffersSettings(offered_bytes=250, channel_bytes=150, waiting_bytes=500), enough)
    for (word, *rest), expected in steps(lines):
        found: list[Action] = []
        if word == "voters":
            found = half.voters(rest)
        elif word == "large":
            _, found = half.publish_large(rest[0], rest[1], DIGESTS[rest[2]], int(rest[3]), rest[4] == "persistent")
        elif word == "publish":
            found = half.publish(rest[0], rest[1], int(rest[2]))
        elif word == "held":
            found = half.held(rest[0], origin(rest[1]), int(rest[2]), int(rest[3]))
        elif word == "ordered":
            found = half.ordered(int(rest[0]))
        elif word == "retry":
            found = half.retry()
        elif word == "enough":
            least = len(rest)
        else:
            assert word == "blocked"
            assert [str(half.blocked(rest[0])).lower()] == expected
            continue
        assert [shown(action) for action in found] == expected, (word, rest)


@pytest.mark.parametrize("lines", HOLDINGS.values(), ids=HOLDINGS)
def test_holdings(lines: list[str]) -> None:
    half = Holdings("me", HoldingsSettings(origin_bytes=250, body_bytes=200, fetches=2))
    for (word, *rest), expected in steps(lines):
        found: list[Action] = []
        if word == "view":
            found = half.view([origin(each) for each in rest])
        elif word == "offered":
            found = half.offered(origin(rest[0]), int(rest[1]), DIGESTS[rest[2]], int(rest[3]), rest[4] == "persistent")
        elif word == "chunk":
            found = half.chunk(rest[0], DIGESTS[rest[1]], int(rest[2]), int(rest[3]))
        elif word == "checked":
            found = half.checked(DIGESTS[rest[0]], int(rest[1]), rest[2] == "right")
        elif word == "synced":
            found = half.synced(DIGESTS[rest[0]], int(rest[1]), rest[2] == "done")
        elif word == "event":
            ref, body, size, durable, who, number, names = rest
            found = half.event(
                int(ref), DIGESTS[body], int(size), durable == "persistent", origin(who), int(number), names.split(",")
            )
        elif word == "released":
            found = half.released(int(rest[0]), DIGESTS[rest[1]])
        elif word in ("asked", "lacking"):
            found = (half.asked if word == "asked" else half.lacking)(rest[0], DIGESTS[rest[1]])
        elif word == "stalled":
            found = half.stalled(DIGESTS[rest[0]])
        elif word == "retry":
            found = half.retry()
        elif word == "found":
            half.found({DIGESTS[name]: int(size) for name, size in zip(rest[::2], rest[1::2], strict=True)})
        elif word == "settled":
            found = half.settled()
        elif word == "damaged":
            found = half.damaged(DIGESTS[rest[0]])
        elif word == "undurable":
            assert [str("nothing" if half.undurable is None else half.undurable)] == expected
            continue
        else:
            assert word == "state"
            state = half.state(DIGESTS[rest[0]])
            assert ["nothing" if state is None else state.value] == expected
            continue
        assert [shown(action) for action in found] == expected, (word, rest)


def test_every_row_of_the_tables_is_used_by_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(dict[object, object]):
        used: set[object]

        def __getitem__(self, key: object) -> object:
            self.used.add(key)
            return super().__getitem__(key)

    for module, scripts, run in ((offers, OFFERS, test_offers), (holdings, HOLDINGS, test_holdings)):
        table = Watched(module.TABLE)
        table.used = set()
        monkeypatch.setattr(module, "TABLE", table)
        for lines in scripts.values():
            run(lines)
        assert table.used == {*table}


def test_files_are_named_by_their_digest() -> None:
    assert file_name(digest_of(b"body")) == f"{digest_of(b'body').hex()}.body"
    assert len(digest_of(b"body")) == 32


# Brokers that have both halves. The order, the network and the disks are those of a script with dice.


@dataclass
class Large:
    channel: str
    body: bytes
    persistent: bool
    sequence: int


@dataclass
class Ordered:
    """An event of the order, or a view."""

    large: Large | None = None
    by: Origin | None = None
    number: int = 0
    holders: tuple[str, ...] = ()
    view: tuple[Origin, ...] = ()


@dataclass
class Broker:
    me: Origin
    half: Holdings
    offers: Offers
    applied: int = 0
    files: dict[bytes, bytearray] = field(default_factory=dict)
    synced: set[bytes] = field(default_factory=set)
    alive: bool = True
    seen: tuple[Origin, ...] = ()
    """The view that it has applied."""


class World:
    """Three brokers, all voters."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.order: list[Ordered] = []
        self.view: tuple[Origin, ...] = ()
        self.brokers: dict[str, Broker] = {}
        self.inbox: list[tuple[str, str, tuple[object, ...]]] = []
        """On their way: (to, from, message). Pairs keep their order."""
        self.bodies: dict[bytes, bytes] = {}
        self.sequences: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self.missing = 0
        self.confirmed: set[int] = set()
        """Persistent events that two brokers have applied, with their bodies on disk."""
        for name in "abc":
            self.start(name, 1)
        self.change_view()

    # Brokers and views.

    def start(self, name: str, life: int) -> None:
        files = {
            digest: body for digest, body in self.brokers[name].files.items() if digest in self.brokers[name].synced
        } if name in self.brokers else {}  # fmt: skip
        broker = Broker(
            Origin(name, life),
            Holdings(name, HoldingsSettings(origin_bytes=4_000, fetches=2)),
            Offers(Origin(name, life), OffersSettings(offered_bytes=2_000), lambda holders: len(holders) >= 2),
            files=files,
            synced={*files},
        )
        self.brokers[name] = broker
        broker.half.found({digest: len(body) for digest, body in files.items()})
        for ref, event in enumerate(self.order):
            if event.large is not None:
                self.do(broker, self.apply_event(broker, ref, event))
        broker.applied = len(self.order)

    def change_view(self) -> None:
        """Everybody who is alive has applied everything before it."""
        self.view = tuple(broker.me for broker in self.brokers.values() if broker.alive)
        self.order.append(Ordered(view=self.view))
        names = {member.name for member in self.view}
        self.inbox = [each for each in self.inbox if each[0] in names and each[1] in names]

    def crash(self, name: str) -> None:
        broker = self.brokers[name]
        while any(each.alive and each.applied < len(self.order) for each in self.brokers.values()):
            self.apply(self.dice.choice([each for each in self.brokers.values() if each.alive]))
        broker.alive = False
        self.change_view()
        self.start(name, broker.me.life + 1)
        self.change_view()

    # What happens.

    def publish(self, name: str) -> None:
        broker = self.brokers[name]
        channel = f"{name}{broker.me.life}/{self.dice.randrange(2)}"
        if broker.offers.blocked(channel):
            return
        sequence = self.sequences[channel] = self.sequences.get(channel, 0) + 1
        body = bytes((self.dice.randrange(4),)) * self.dice.randrange(1, 1_500)
        self.bodies[digest_of(body)] = body
        large = Large(channel, body, self.dice.random() < 0.5, sequence)
        if self.dice.random() < 0.5:
            self.do(broker, broker.offers.publish(channel, large, 10))
        else:
            _, actions = broker.offers.publish_large(channel, large, digest_of(body), len(body), large.persistent)
            self.do(broker, actions)

    def apply(self, broker: Broker) -> None:
        if broker.applied == len(self.order):
            return
        event = self.order[broker.applied]
        broker.applied += 1
        if event.view:
            if broker.me in event.view:
                broker.seen = event.view
                self.do(broker, broker.half.view(event.view))
                self.do(broker, broker.half.settled())
                self.do(broker, broker.offers.voters([member.name for member in event.view]))
        elif event.large is not None:
            self.do(broker, self.apply_event(broker, broker.applied - 1, event))
            if event.by == broker.me:
                self.do(broker, broker.offers.ordered(event.number))

    def apply_event(self, broker: Broker, ref: int, event: Ordered) -> list[Action]:
        assert event.large is not None
        if not event.number or event.by is None:
            return []
        body, persistent = event.large.body, event.large.persistent
        return broker.half.event(ref, digest_of(body), len(body), persistent, event.by, event.number, event.holders)

    def do(self, broker: Broker, actions: list[Action]) -> None:
        me = broker.me.name
        for action in actions:
            match action:
                case Propose(item, number, holders):
                    assert isinstance(item, Large)
                    self.proposed(broker, item, number or 0, holders)
                case Held(to) | Refused(to):
                    self.inbox.append((to.name, me, action))
                case Offer(to) | Fetch(to) | Lacking(to):
                    self.inbox.append((to, me, action))
                    if isinstance(action, Offer):
                        self.send(me, to, action.digest)
                case Send(to, digest):
                    assert digest_of(bytes(broker.files[digest])) == digest, "what is sent is right"
                    self.send(me, to, digest)
                case Check(digest, serial):
                    right = digest_of(bytes(broker.files[digest])) == digest
                    self.inbox.append((me, me, ("checked", digest, serial, right, broker.me.life)))
                case Sync(digest, serial):
                    done = self.dice.random() > 0.1
                    self.inbox.append((me, me, ("synced", digest, serial, done, broker.me.life)))
                case Remove(digest):
                    broker.files.pop(digest, None)
                    broker.synced.discard(digest)
                case Missing():
                    self.missing += 1
                case Write() | Arrived():
                    pass

    def proposed(self, broker: Broker, large: Large, number: int, holders: tuple[str, ...]) -> None:
        assert large.sequence == self.seen.get(large.channel, 0) + 1, "in the order of the channel"
        self.seen[large.channel] = large.sequence
        if number:
            digest = digest_of(large.body)
            assert len(holders) >= 2, "a majority"
            for holder in [self.brokers[name] for name in holders if self.brokers[name].me in broker.seen]:
                assert digest in holder.files, "has it, unless it has crashed since"
                assert not large.persistent or digest in holder.synced, "on disk"
        self.order.append(Ordered(large, broker.me, number, holders))

    def send(self, source: str, to: str, digest: bytes) -> None:
        body = self.bodies[digest]
        broken = self.dice.random() < 0.05
        for at in range(0, len(body), 500):
            chunk = body[at : at + 500]
            if broken:
                chunk = bytes(byte ^ 1 for byte in chunk)
            self.inbox.append((to, source, ("chunk", digest, at, chunk)))

    def confirm(self) -> None:
        reached = [
            min(broker.applied, len(self.order) if (first := broker.half.undurable) is None else first)
            for broker in self.brokers.values()
        ]
        for ref in range(sorted(reached)[1]):
            large = self.order[ref].large
            if large is not None and large.persistent and self.order[ref].number:
                self.confirmed.add(ref)

    def deliver(self) -> None:
        """One message that is the first between its two."""
        firsts: dict[tuple[str, str], int] = {}
        for at, (to, source, _) in enumerate(self.inbox):
            firsts.setdefault((to, source), at)
        if not firsts:
            return
        to, source, message = self.inbox.pop(self.dice.choice([*firsts.values()]))
        broker, half = self.brokers[to], self.brokers[to].half
        if isinstance(message, Offer):
            self.do(broker, half.offered(*message[1:]))
        elif isinstance(message, Held):
            self.do(broker, broker.offers.held(source, message.to, message.number, 1))
        elif isinstance(message, Fetch):
            self.do(broker, half.asked(source, message.digest))
        elif isinstance(message, Lacking):
            self.do(broker, half.lacking(source, message.digest))
        elif message[0] == "chunk":
            _, digest, offset, chunk = message
            assert isinstance(digest, bytes)
            assert isinstance(offset, int)
            assert isinstance(chunk, bytes)
            actions = half.chunk(source, digest, offset, len(chunk))
            for action in actions:
                if isinstance(action, Write):
                    file = broker.files.setdefault(digest, bytearray())
                    del file[offset:]
                    file += chunk
            self.do(broker, actions)
        elif message[0] in ("checked", "synced"):
            word, digest, serial, well, life_then = message
            assert isinstance(digest, bytes)
            assert isinstance(serial, int)
            if life_then != broker.me.life:
                return
            if word == "synced" and well and digest in broker.files:
                broker.synced.add(digest)
            self.do(broker, (half.checked if word == "checked" else half.synced)(digest, serial, bool(well)))

    def settle(self) -> None:
        """No more faults: everything comes, everything is applied, whatever stalls is asked again."""
        for _ in range(60):
            while self.inbox:
                self.deliver()
            for broker in self.brokers.values():
                while broker.applied < len(self.order):
                    self.apply(broker)
                self.do(broker, broker.offers.retry())
                self.do(broker, broker.half.retry())
                for digest in self.bodies:
                    self.do(broker, broker.half.stalled(digest))


@pytest.mark.parametrize("seed", range(40))
def test_brokers_with_bad_luck(seed: int) -> None:
    """Promises are asserted on the way. In the end everybody has every body that an event names, and no other; what
    was confirmed is not lost by any crash. When the events are released, nothing is left."""
    world = World(seed)
    for _ in range(1_500):
        chance = world.dice.random()
        if chance < 0.03:
            world.publish(world.dice.choice("abc"))
        elif chance < 0.3:
            world.apply(world.dice.choice([*world.brokers.values()]))
        elif chance < 0.302:
            world.crash(world.dice.choice("abc"))
        elif chance < 0.31:
            broker = world.dice.choice([*world.brokers.values()])
            world.do(broker, broker.offers.retry() + broker.half.retry())
        else:
            world.deliver()
        world.confirm()
    world.settle()
    events = [event.large for event in world.order if event.large is not None and event.number]
    named = {digest_of(large.body) for large in events}
    confirmed = [world.order[ref].large for ref in world.confirmed]
    durable = {digest_of(large.body) for large in confirmed if large is not None}
    kept = {digest for broker in world.brokers.values() for digest in world.bodies if broker.half.has(digest)}
    assert durable <= kept <= named
    for broker in world.brokers.values():
        assert {digest for digest in world.bodies if broker.half.has(digest)} == kept
        assert {digest for digest, file in broker.files.items() if digest_of(bytes(file)) == digest} == kept
        assert len(broker.half) == len(named)
        assert (broker.offers.waiting, broker.half.offered_bytes(broker.me)) == (0, 0)
        for ref, event in enumerate(world.order):
            if event.large is not None and event.number:
                world.do(broker, broker.half.released(ref, digest_of(event.large.body)))
        assert (len(broker.half), broker.files) == (0, {})
    for channel, sequence in world.seen.items():
        life = world.brokers[channel[0]].me.life
        assert sequence == world.sequences[channel] or not channel.startswith(f"{channel[0]}{life}/")
    assert named
    assert durable
