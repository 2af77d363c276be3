"""STABLE: knowing when everybody has a bundle, so that it need not be kept any longer.

Promises: a bundle is forgotten only after every member that its sender counts in its view has delivered it. Each
sender is the authority for its own stream: members tell everyone what they have delivered (a digest), each sender
computes how far its own stream is stable and says so in its next digest. Digests go out after so many bytes, and at
an interval while anyone still keeps anything; a group at rest is silent. Digests may be lost: the next one says it
all again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.group.events import Event, ViewChange
from coterie.group.members import Address
from coterie.group.packet import MCAST, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.nakack import Nakack
from coterie.group.wire import Codec
from coterie.runtime.base import Timer
from coterie.settings import setting

if TYPE_CHECKING:
    from coterie.group.stack import Stack


STABLE_ID = 18


@dataclass(frozen=True, slots=True)
class Digest:
    """What I delivered, and know to exist, of each sender; and how far my own stream is stable."""

    streams: dict[Address, tuple[int, int]]
    stable: int
    keeps: bool
    """I still keep something: let me hear from you."""


@dataclass(frozen=True, slots=True)
class StableSettings:
    after_bytes: int = setting(4 << 20, "A digest is sent after this much was delivered.", unit="B", minimum=1)
    after_bundles: int = setting(2048, "A digest is sent after this many bundles.", unit="bundles", minimum=1)
    interval: float = setting(0.2, "Time between digests while anything is kept.", unit="s", minimum=0.001)


class Stable(Protocol):
    """Finds out which bundles everybody has, and lets them be forgotten."""

    name = "STABLE"
    id = STABLE_ID
    role = "stability"
    needs_below = ("reliable multicast",)
    Settings = StableSettings
    codec = Codec({1: Digest})
    rules = {
        "stable.by_volume": "A digest goes out after so many bytes or bundles.",
        "stable.by_time": "A digest goes out at the interval while anything is kept.",
        "stable.own": "A sender finds that everybody has its bundles up to a number.",
        "stable.departed": "A departed member's bundles are forgotten once everybody has the same of them.",
    }

    settings: StableSettings

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self._nakack = stack.find(Nakack)
        # A sender whose window is small waits for us sooner.
        self._after_bundles = min(self.settings.after_bundles, max(1, self._nakack.settings.window // 4))
        self._reported: dict[Address, int] = {}
        """Per other member that is owed our own bundles: the highest that it delivered."""
        self._heard: dict[Address, dict[Address, tuple[int, int]]] = {}
        """Per other member of the view: its last digest."""
        self._stable = 0
        self._owed = False
        """Someone waits for what we have to say."""
        self._bytes = 0
        self._bundles = 0
        self._timer: Timer | None = None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # Up: count what is delivered, read what the others say.

    def up(self, batch: list[Packet]) -> None:
        own = False
        for packet in batch:
            if packet.carrier == MCAST:
                self._bytes += len(packet.body)
                self._bundles += 1
            elif packet.proto == STABLE_ID:
                own = True
                self._handle(packet)
        if own:
            batch = [packet for packet in batch if packet.proto != STABLE_ID]
        if batch:
            self.pass_up(batch)
        if self._bytes >= self.settings.after_bytes or self._bundles >= self._after_bundles:
            self.rule("stable.by_volume")
            self._tell()
        if self._timer is None:
            self._timer = self.runtime.call_later(self.settings.interval, self._run)

    def _handle(self, packet: Packet) -> None:
        digest = self.decode(packet)
        member = packet.sender
        if not isinstance(digest, Digest) or member not in self.stack.view:
            return
        if self._nakack.synchronous and packet.view != self.stack.view.tag:
            return  # what is stable there need not be stable here
        for sender, (_, received) in digest.streams.items():
            self._nakack.heard_of(sender, received)
        delivered, _ = digest.streams.get(self.stack.local, (0, 0))
        if delivered > self._nakack.sent:
            self.count("malformed")  # nobody can have what was never sent
            return
        self._heard[member] = digest.streams
        self._owed |= digest.keeps
        self._nakack.stable(member, digest.stable)
        if member in self._reported and delivered > self._reported[member]:
            self._reported[member] = delivered
            self._advance()

    def _advance(self) -> None:
        """How far is our own stream stable now?"""
        stable = min(self._reported.values(), default=self._nakack.sent)
        stable = min(stable, self._nakack.own.window.delivered)
        if stable > self._stable:
            self._stable = stable
            self._owed = True
            self.rule("stable.own")
            if self.stack.trace.on:
                self.stack.trace.emit("stable", view=self.stack.view.id, sender=self.stack.local, last=stable)
            self._nakack.stable(self.stack.local, stable)

    # Timer: as long as anyone may wait for what we have to say.

    def _run(self) -> None:
        self._timer = None
        self._advance()
        self._settle_departed()
        if self._keeps() or self._owed or self._bundles:
            self.rule("stable.by_time")
            self._tell()
            self._timer = self.runtime.call_later(self.settings.interval, self._run)

    def _tell(self) -> None:
        self._advance()
        self._bytes = self._bundles = 0
        self._owed = False
        self.count("digests")
        packet = Packet(self.codec.encode(Digest(self._nakack.digest(), self._stable, self._keeps())), None, self.id)
        packet.view = self.stack.view.tag
        self.pass_down(packet)

    def _keeps(self) -> bool:
        return self._nakack.held()["unstable"] > 0

    def _settle_departed(self) -> None:
        for sender, stream in list(self._nakack.streams.items()):
            if stream.departed is not None and stream.window.forgotten < stream.window.delivered:
                have = [streams[sender][0] for streams in self._heard.values() if sender in streams]
                if len(have) == len(self.stack.view.members) - 1:  # who has not told of it may still be owed it
                    self.rule("stable.departed")
                    self._nakack.stable(sender, min(have, default=stream.window.delivered), "departed")

    # Views.

    def down_event(self, event: Event) -> None:
        if isinstance(event, ViewChange):
            others = [m for m in event.view.members if m != self.stack.local]
            # A new member is owed our stream from the next bundle on.
            self._reported = {m: self._reported.get(m, self._nakack.sent) for m in others if m not in event.waiting}
            self._heard = {m: self._heard[m] for m in others if m in self._heard}
            self._advance()
            if self._timer is None:
                self._timer = self.runtime.call_later(self.settings.interval, self._run)
        super().down_event(event)
