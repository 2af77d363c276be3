"""What an exclusive flush promises its holder: while it holds, nobody of its view multicasts, or the holder is told.

Judged are flushes of whole views that were released (`flush_ended`) and not lost (`flush_lost`), by what each member
did in the views in which its holder held it:

- who came to such a view with the holder inside its flush multicasts nothing in it before it takes part, too, or has
  heard that it is over;
- who left the flush because it took its holder for dead multicasts nothing in such a view, unless the holder died;
- who left it because its time was up told the holder first: nothing that it sends the holder by unicast afterwards is
  delivered while the flush holds;
- no two such flushes are carried into the same view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coterie.audit import views
from coterie.audit.lives import Lives, address
from coterie.audit.views import Who
from coterie.trace import Event

KINDS = ("view", "send", "deliver", "flush_held", "flush_ended", "flush_lost", "flush_joined", "flush_left")
INHERITED = 0
"""The number of a flush of which a joiner knows only who holds it."""
TOLD = ("stop", "abort")
"""Reasons of who has heard from the holder that a flush is over."""

Unit = tuple[int, int]
"""A unicast: its connection, and its number there. A later connection has a higher number."""
Found = tuple[str, tuple[Event, ...]]


@dataclass(slots=True)
class Hold:
    """An exclusive flush of a whole view, at its holder."""

    held: Event
    carried: list[tuple[Event, tuple[str, ...]]] = field(default_factory=list)
    """Views that came while it held, and who came with each."""
    ended: Event | None = None
    lost: bool = False
    units: dict[str, Unit] = field(default_factory=dict)
    """By sender: the last unicast that the holder had delivered when it ended."""

    @property
    def views(self) -> set[str | None]:
        return {self.held.view, *(view.view for view, _ in self.carried)}


@dataclass(slots=True)
class Leaving:
    """A member that left an exclusive flush by itself."""

    left: Event
    sent: Event | None = None
    """Its first multicast after that, in the same view."""
    unit: Unit | None = None
    """Its first unicast to the holder after that."""


@dataclass(slots=True)
class Stamp:
    """The first multicast of a member in a view, and what it knew by then."""

    sent: Event
    joined: frozenset[str]
    """Whose flushes it had joined since that view came."""
    over: dict[str, int]
    """By holder: the highest number of a flush of which it knew that it is over."""
    free: frozenset[str]
    """Of whom it knew that they hold none with it."""


@dataclass(slots=True)
class Member:
    """One incarnation, as far as it was read."""

    view: Event | None = None
    stamps: dict[str, Stamp] = field(default_factory=dict)
    """By view."""
    joined: set[str] = field(default_factory=set)
    exclusive: set[tuple[str, int]] = field(default_factory=set)
    """Flushes that it takes part in."""
    over: dict[str, int] = field(default_factory=dict)
    free: set[str] = field(default_factory=set)
    leavings: dict[tuple[str, int], Leaving] = field(default_factory=dict)
    """By holder and number."""
    units: dict[str, Unit] = field(default_factory=dict)
    """By sender: the last unicast of its application that was delivered."""
    holds: dict[int, Hold] = field(default_factory=dict)
    """Its own, by number."""


class Holds:
    """All exclusive flushes of a run."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[Who, Member] = {}

    def step(self, event: Event) -> None:
        """An event of KINDS."""
        member = self._members.setdefault((event.node, event.inc), Member())
        match event.kind:
            case "send":
                if event.data.get("app") is not False:
                    _sent(member, event)
            case "deliver":
                conn = event.data.get("conn")
                if isinstance(conn, int) and event.sender is not None and event.first is not None:
                    member.units[event.sender] = conn, event.first
            case "view":
                _view(member, event)
            case "flush_joined" | "flush_left":
                _took_part(member, event)
            case _:
                _held(member, event)

    def finish(self, lives: Lives) -> Iterator[Found]:
        """What does not hold, with the events that prove it."""
        holds = [
            (views.name(who), number, hold)
            for who, member in self._members.items()
            for number, hold in member.holds.items()
            if hold.ended is not None and not hold.lost and not lives.may_miss(views.name(who))
        ]
        for holder, number, hold in holds:
            yield from self._newcomers(holder, number, hold, lives)
            yield from self._leavings(holder, number, hold, lives)
        yield from _together(holds)

    def _newcomers(self, holder: str, number: int, hold: Hold, lives: Lives) -> Iterator[Found]:
        for view, came in hold.carried:
            for who, member in self._members.items():
                stamp = member.stamps.get(view.view or "")
                if views.name(who) in came and stamp is not None and not lives.may_miss(views.name(who)):
                    knew = holder in stamp.joined or holder in stamp.free or stamp.over.get(holder, -1) >= number
                    if not knew:
                        text = (
                            f"{views.name(who)} sent number {stamp.sent.first} to all in {view.view}, into which "
                            f"{holder} carried its exclusive flush {number}: it took no part in it, and {holder} was "
                            "not told"
                        )
                        yield text, (hold.held, view, stamp.sent, *_end(hold))

    def _leavings(self, holder: str, number: int, hold: Hold, lives: Lives) -> Iterator[Found]:
        for who, member in self._members.items():
            for (leader, its_number), leaving in member.leavings.items():
                sent, reason = leaving.sent, leaving.left.data.get("reason")
                if leader != holder or its_number not in (number, INHERITED):
                    continue
                if sent is None or sent.view not in hold.views:
                    continue
                unheard = leaving.unit is None or leaving.unit > hold.units.get(views.name(who), (-1, -1))
                if not (unheard if reason == "timeout" else lives.ended(holder)):
                    text = (
                        f"{views.name(who)} left the exclusive flush {number} of {holder} by itself ({reason}) and "
                        f"sent number {sent.first} to all in the holder's view, and {holder} was not told"
                    )
                    yield text, (hold.held, leaving.left, sent, *_end(hold))


def _end(hold: Hold) -> tuple[Event, ...]:
    return () if hold.ended is None else (hold.ended,)


def _together(holds: list[tuple[str, int, Hold]]) -> Iterator[Found]:
    carried: dict[str, tuple[str, int, Hold]] = {}
    for holder, number, hold in holds:
        for view, _ in hold.carried:
            other, its_number, earlier = carried.setdefault(view.view or "", (holder, number, hold))
            if earlier is not hold:
                text = (
                    f"{holder} carried its exclusive flush {number} into {view.view}, and so did {other} its own, "
                    f"{its_number}: neither was told"
                )
                yield text, (hold.held, earlier.held, view)


def _sent(member: Member, event: Event) -> None:
    to = event.data.get("to")
    if to != "all":
        if member.leavings:
            for (leader, _), leaving in member.leavings.items():
                conn = event.data.get("conn")
                if leader == to and leaving.unit is None and isinstance(conn, int) and event.first is not None:
                    leaving.unit = conn, event.first
        return
    for leaving in member.leavings.values():
        if leaving.sent is None and leaving.left.view == event.view:
            leaving.sent = event
    if event.view is not None and event.view not in member.stamps:
        member.stamps[event.view] = Stamp(event, frozenset(member.joined), dict(member.over), frozenset(member.free))


def _view(member: Member, event: Event) -> None:
    before = set(views.members(member.view))
    member.view = event
    member.joined.clear()
    came = tuple(m for m in views.members(event) if m not in before)
    for hold in member.holds.values():
        if hold.ended is None and not hold.lost:
            hold.carried.append((event, came))


def _took_part(member: Member, event: Event) -> None:
    leader, number = event.data.get("leader"), event.data.get("number")
    if not isinstance(leader, str) or not isinstance(number, int):
        return
    key = leader, number
    if event.kind == "flush_joined":
        member.joined.add(leader)
        member.leavings.pop(key, None)
        if event.data.get("mode") == "exclusive":
            member.exclusive.add(key)
    elif event.data.get("reason") in TOLD:
        member.exclusive.discard(key)
        if number == INHERITED:
            member.free.add(leader)
        else:
            member.over[leader] = max(number, member.over.get(leader, 0))
    elif key in member.exclusive:
        member.exclusive.discard(key)
        if leader != address(event):
            member.leavings[key] = Leaving(event)


def _held(member: Member, event: Event) -> None:
    number = event.data.get("number")
    if not isinstance(number, int):
        return
    if event.kind == "flush_held":
        if event.data.get("mode") == "exclusive" and event.data.get("total") is True:
            member.holds[number] = Hold(event)
        return
    hold = member.holds.get(number)
    if hold is None:
        return
    if event.kind == "flush_lost":
        hold.lost = True
    elif hold.ended is None:
        hold.ended = event
        hold.units = dict(member.units)
