"""What NAKACK is made of: its messages, settings and rules, the streams that it receives, and what came too early."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.group.members import Address
from coterie.group.packet import Packet
from coterie.group.window import Ranges, Window
from coterie.settings import setting


@dataclass(frozen=True, slots=True)
class Ask:
    """Send me these bundles of `sender` again."""

    sender: Address
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Highest:
    """The highest number that I have used: whoever has not seen it, ask."""

    seqno: int


@dataclass(frozen=True, slots=True)
class NakackSettings:
    window: int = setting(16384, "Bundles that may be sent and not yet stable.", unit="bundles", minimum=1)
    ask_delay: float = setting(0.01, "From noticing a hole to asking for it.", unit="s", minimum=0)
    ask_max_delay: float = setting(
        0.5, "Longest pause between two requests for the same hole.", unit="s", minimum=0.001
    )
    ask_most: int = setting(64, "Bundles asked for at a time, per sender.", unit="bundles", minimum=1)
    ask_others_after: int = setting(
        3, "Requests that a sender may leave unanswered before others are asked.", minimum=1
    )
    highest_interval: float = setting(
        0.1, "How soon a silent sender repeats its highest number.", unit="s", minimum=0.001
    )
    keep_departed: float = setting(
        10.0, "How long a departed member's bundles are kept for those who miss some.", unit="s", minimum=0
    )
    early_max: int = setting(
        1024, "Bundles of a view that is not installed yet that are kept until it is.", unit="bundles", minimum=1
    )


class Stream:
    """One sender's multicasts as seen here."""

    __slots__ = ("ask_at", "ask_delay", "asks", "departed", "holder", "rumour", "sender", "window")

    def __init__(self, sender: Address, window: Window) -> None:
        self.sender = sender
        self.window = window
        self.asks = 0
        """Requests since something last moved."""
        self.ask_at: float | None = None
        """When to ask for what is missing; None if nothing is."""
        self.ask_delay = 0.0
        self.departed: float | None = None
        """When its sender left the view."""
        self.rumour = 0
        """Highest number that others have heard of."""
        self.holder: Address | None = None
        """Who is known to have what a flush waits for."""


class Early:
    """Bundles of views that are not installed yet, by the view's tag; bounded."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._packets: dict[int, list[Packet]] = {}
        self._size = 0

    def keep(self, packet: Packet) -> bool:
        """False if there is no room for it."""
        if self._size >= self._most:
            return False
        self._size += 1
        self._packets.setdefault(packet.view, []).append(packet)
        return True

    def take(self, tag: int) -> list[Packet]:
        """Those of a view that is installed now. What belongs to views before it is forgotten."""
        packets = self._packets.pop(tag, [])
        self._packets = {later: early for later, early in self._packets.items() if later >> 32 > tag >> 32}
        self._size = sum(map(len, self._packets.values()))
        return packets


RULES = {
    "nakack.ask_sender": "A hole is asked for from the sender.",
    "nakack.ask_others": "A hole is asked for from others when its sender is gone or does not answer.",
    "nakack.resend_own": "The sender sends again exactly what was asked for.",
    "nakack.resend_foreign": "A member sends another's bundle again.",
    "nakack.highest": "A sender that falls silent repeats its highest number until it is stable.",
    "nakack.last_lost": "A lost last bundle is noticed through the highest number.",
    "nakack.duplicate": "A bundle that came twice is delivered once.",
    "nakack.window_full": "A sender whose window is full waits.",
    "nakack.departed_kept": "A departed member's bundles are kept for those who miss some.",
    "nakack.reopened": "A stream that a member lost track of starts again at a stated number.",
}

SYNCHRONOUS_RULES = {
    "nakack.early": "A bundle of a view that is not installed yet waits for it.",
    "nakack.old_view": "A bundle of a view that is over is dropped.",
    "nakack.frozen": "While a flush holds, what arrives is kept and not delivered.",
    "nakack.advanced": "A member that misses bundles of the cut gets them from one that has them.",
}
