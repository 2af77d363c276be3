"""What one queue has: which messages, who holds them, when they are over; as sets and rows of positions.

It is a `QueueState`, and changes by its operations alone (docs/queue-state.md). What one of them does is noted with its
inverse in the broker's undo journal, so a step that fails is taken back exactly. Holders are whatever they are outside;
in the state they have numbers.

Two things are beside the state. The flag that somebody may have seen a message is a set of its own: after a crash
everything has it, and nothing was counted. And times are kept as the bits of what `Cluster.now` gives, which rise with
it: so nothing is rounded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from coterie.broker.consumer import Consumer
from coterie.broker.contents import Contents
from coterie.broker.delivery import add_range, count_of
from coterie.broker.journal import Journal, restore_key
from coterie.broker.observer import Reason
from coterie.broker.ranges import END, PositionSet, Range, Runs
from coterie.broker.state import holding, marks, messages, vocabulary
from coterie.broker.state.holders import Holder
from coterie.broker.state.holding import NewHolder
from coterie.broker.state.limits import QueueLimits
from coterie.broker.state.positions import LIST_MAX, Positions, bytes_of, cut, put
from coterie.broker.state.queue_state import QueueConfig, QueueState
from coterie.broker.state.trimming import Trims, is_far_from_empty
from coterie.broker.state.vocabulary import GONE, HolderKind, Kind

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.state.effect_codec import Sizes
    from coterie.broker.state.operations import Operation

_DOUBLE: Final = Struct(">d")
_REASONS: Final[dict[Reason, vocabulary.Reason]] = {
    reason: vocabulary.Reason[reason.name] for reason in Reason if reason is not Reason.DELETED
}
_NO_LIMITS: Final = QueueLimits()
_FIFO: Final = Kind.FIFO
_GETTER: Final = NewHolder(HolderKind.GETTER)


def bits_of(time: float) -> int:
    """A number that rises with the time. There is none before 0."""
    return int.from_bytes(_DOUBLE.pack(max(time, 0.0)))


def time_of(bits: int) -> float:
    (time,) = _DOUBLE.unpack(bits.to_bytes(8))
    return float(time)


def within(ranges: Sequence[Range], there: PositionSet) -> list[Range]:
    """What of these is in the set: in their order, each once."""
    if len(ranges) == 1:
        ((first, stop),) = ranges
        if stop - first == 1:
            return [(first, stop)] if first in there else []
        return [*there.ranges(first, stop)] if first < stop else []
    found: list[Range] = []
    upto = 0
    for first, stop in ranges:
        if first < upto:
            return _each_once(ranges, there)
        upto = max(stop, upto)
        if stop - first == 1:
            if first in there:
                add_range(found, first, stop)
        elif first < stop:
            for begin, end in there.ranges(first, stop):
                add_range(found, begin, end)
    return found


def _each_once(ranges: Sequence[Range], there: PositionSet) -> list[Range]:
    """They do not rise: some of them may overlap."""
    found: list[Range] = []
    left = there.copy()
    for first, stop in ranges:
        some = [*left.ranges(first, stop)] if first < stop else []
        cut(left, some)
        for begin, end in some:
            add_range(found, begin, end)
    return found


def formed(ranges: list[Range]) -> Positions:
    """As operations take them."""
    return ranges if len(ranges) <= LIST_MAX else PositionSet(ranges)


class _NoRuns(Runs):
    """Of which event a message is a part is not asked: `Contents` has it by its position."""

    __slots__ = ()

    def append(self, first: int, count: int, ref: int, offset: int) -> None:
        pass

    def unappend(self, count: int) -> None:
        pass


class MessageTable:
    """Of one incarnation of a queue."""

    __slots__ = ("_holders", "_journal", "_numbers", "contents", "flagged", "state")

    def __init__(self, number: int, config: QueueConfig, journal: Journal) -> None:
        self.state = QueueState(number, config, _NO_LIMITS)
        self.state.runs = _NoRuns()
        self.contents = Contents()
        self.flagged = PositionSet()
        """Somebody may have seen them already."""
        self._journal = journal
        self._numbers: dict[object, int] = {}
        self._holders: dict[int, object] = {}

    def _do(self, operation: Operation, *args: Any) -> None:
        if self._journal.on:
            done: list[Any] = []
            self._journal.note(_undo, operation, self.state, done, args)
            done.append(operation.do(None, self.state, *args))
        else:
            operation.do(None, self.state, *args)

    # Messages come.

    def enqueue(self, arrived: Sequence[Message]) -> int:
        """Gives the position of the first."""
        first, count = self.state.next_position, len(arrived)
        if self._journal.on:
            self._journal.note(self.contents.drop, [(first, first + count)])
        self.contents.put(first, arrived)
        self.put(first, array("I", [len(message.body) for message in arrived]))
        return first

    def put(self, first: int, lengths: array[int]) -> None:
        """Messages with bodies of these lengths come, behind all others."""
        self.leap(first)
        count, length = len(lengths), lengths[0]
        sizes: Sizes = (count, length) if lengths.count(length) == count else lengths
        self._do(messages.ENQUEUE, first, 0, first, sizes, False)

    def leap(self, position: int) -> None:
        """The next one has this position, or a higher one that is next already."""
        if position > self.state.next_position:
            self._do(marks.LEAP, position)

    def stamp(self, first: int, times: Iterable[float | None]) -> None:
        """When each is over that has come last."""
        for time, same in groupby(times):
            count = len([*same])
            if time is not None:
                self._do(marks.EXPIRES, first, count, bits_of(time))
            first += count

    def prioritise(self, first: int, priorities: Iterable[int]) -> None:
        """Of those that have come last."""
        found: dict[int, list[Range]] = {}
        for priority, same in groupby(priorities):
            count = len([*same])
            if priority:
                found.setdefault(priority, []).append((first, first + count))
            first += count
        for priority, ranges in sorted(found.items()):
            self._do(marks.PRIORITISE, priority, formed(ranges))

    def key(self, keyed: list[tuple[int, bytes]]) -> None:
        """Each of these is the newest of its key."""
        self._do(marks.KEY, keyed)

    # Times change.

    def cap(self, time: float) -> None:
        """Nothing that is here lives longer."""
        if self.state.live:
            self._do(marks.CAP, bits_of(time))

    def stamp_anew(self, times: Iterable[tuple[int, float]]) -> None:
        """By rising positions; nothing else is ever over."""
        state = self.state
        if self._journal.on:
            self._journal.note(_restore_times, state, state.expires, state.caps)
        state.expires, state.caps = Runs(), ()
        for position, time in times:
            state.expires.append(position, 1, bits_of(time), position)

    # Somebody holds them, and gives them back.

    def _number(self, holder: object) -> int:
        number = self._numbers.get(holder)
        if number is None:
            number = self.state.next_holder
            self._do(holding.ADD, _GETTER)
            if self._journal.on:
                self._journal.note(restore_key, self._numbers, holder, None)
                self._journal.note(restore_key, self._holders, number, None)
            self._numbers[holder] = number
            self._holders[number] = holder
        return number

    def let_go(self, holder: object) -> None:
        """Its number, if it holds nothing; one that consumes keeps it."""
        number = self._numbers.get(holder)
        if number is None or self.state.holders[number].held.count:
            return
        if isinstance(holder, Consumer) and holder.active:
            return
        if self._journal.on:
            self._journal.note(restore_key, self._numbers, holder, number)
            self._journal.note(restore_key, self._holders, number, holder)
        del self._numbers[holder], self._holders[number]
        self._do(holding.REMOVE, number)

    def acquire(self, holder: object, ranges: list[Range]) -> None:
        """Ready ones are that one's."""
        self._do(messages.ACQUIRE, self._number(holder), formed(ranges))

    def release(self, holder: object, ranges: list[Range], seen: bool) -> None:
        """What it holds goes back to its place; `seen`: somebody may have."""
        if seen:
            self.flag(ranges)
        self._do(messages.RELEASE, self._numbers[holder], formed(ranges), seen)
        self.let_go(holder)

    def flag(self, ranges: list[Range]) -> None:
        new = PositionSet(ranges)
        new.remove_all(self.flagged)
        if self._journal.on:
            self._journal.note(self.flagged.remove_all, new)
        self.flagged.add_all(new)

    def unflag(self, ranges: list[Range]) -> None:
        if self.flagged:
            found = within(ranges, self.flagged)
            if self._journal.on:
                self._journal.note(put, self.flagged, found)
            cut(self.flagged, found)

    def set_deliveries(self, ranges: list[Range], count: int) -> None:
        """How often they were given back by somebody who may have seen them."""
        self._do(marks.DELIVERIES, count, formed(ranges))

    # A ring lets go of the oldest; but not of what is tied.

    def tie(self, ranges: list[Range]) -> None:
        if self.state.config.kind is Kind.RING:
            loose, found = self.state.loose, within(ranges, self.state.loose)
            if self._journal.on:
                self._journal.note(put, loose, found)
            cut(loose, found)

    def untie(self, ranges: list[Range]) -> None:
        if self.state.config.kind is Kind.RING:
            loose, found = self.state.loose, self._tied(ranges)
            if self._journal.on:
                self._journal.note(cut, loose, found)
            put(loose, found)

    def _tied(self, ranges: list[Range]) -> list[Range]:
        rest = PositionSet(ranges)
        rest.remove_all(self.state.loose)
        return [*rest.ranges()]

    # They leave.

    def leave(self, holder: object | None, ranges: list[Range], reason: Reason) -> None:
        """Ready ones, or what that one holds."""
        if self.flagged:
            self.unflag(ranges)
        if self._journal.on and self.state.config.kind is Kind.RING:
            self._journal.note(cut, self.state.loose, self._tied(ranges))  # what is taken back is not tied any more
        number = 0 if holder is None else self._numbers[holder]
        self._do(messages.LEAVE, number, _REASONS[reason], GONE, formed(ranges))
        if holder is not None:
            self.let_go(holder)

    @property
    def is_plain(self) -> bool:
        """Nothing is known of any message but who has it."""
        return not (self.flagged.count or self.state.deliveries) and self.state.config.kind is _FIFO

    def leave_held(self, holder: object, position: int) -> bool:
        """One that this holder has leaves a plain table, as by `leave`: this is the hot path. Whether it had it."""
        number = self._numbers.get(holder)
        if number is None:
            return False
        state = self.state
        found = state.holders[number]
        done: list[int] = []
        if self._journal.on:
            self._journal.note(_stay, state, found, position, done)
        if not found.held.remove(position, position + 1):
            return False
        size = state.lengths.get(position)
        state.live.remove(position, position + 1)
        state.held_bytes -= size
        found.used -= 1
        done.append(size)
        if not found.held.count:
            self.let_go(holder)
        return True

    def forget(self, ranges: list[Range]) -> None:
        """They have left, and no step can bring them back."""
        self.contents.drop(ranges)
        if not is_far_from_empty(self.state, ranges):
            trims = Trims(self.state)
            trims.left(ranges)
            trims.trim()

    # Questions.

    @property
    def is_mortal(self) -> bool:
        """Something may be over some time."""
        return self.state.mortal

    def size(self, position: int) -> int:
        return self.state.lengths.get(position)

    def bytes_of(self, ranges: list[Range]) -> int:
        return bytes_of(self.state.lengths, ranges)

    def sizes(self, ranges: Iterable[Range]) -> Iterator[int]:
        """Of messages that are here."""
        for first, stop in ranges:
            yield from self.state.lengths.each(first, stop)

    def messages(self, ranges: Iterable[Range]) -> list[Message | None]:
        """None: it is on disk only."""
        return self.contents.messages(ranges)

    def held(self, holder: object) -> PositionSet | None:
        """None: nothing."""
        number = self._numbers.get(holder)
        return None if number is None else self.state.holders[number].held

    def held_of(self, holder: object, ranges: Sequence[Range]) -> list[Range]:
        """What of these it holds."""
        held = self.held(holder)
        return within(ranges, held) if held else []

    def ready_of(self, ranges: Sequence[Range]) -> list[Range]:
        return within(ranges, self.state.ready)

    def live_of(self, ranges: Sequence[Range]) -> list[Range]:
        return within(ranges, self.state.live)

    def flagged_of(self, ranges: Sequence[Range]) -> list[Range]:
        return within(ranges, self.flagged) if self.flagged else []

    def shares(self, ranges: Sequence[Range]) -> list[tuple[object, list[Range]]]:
        """What of these somebody holds, and who."""
        found = ((self._holders[number], within(ranges, each.held)) for number, each in self.state.holders.items())
        return [(holder, some) for holder, some in found if some]

    def holders(self) -> Iterator[tuple[object, PositionSet]]:
        return ((self._holders[number], each.held) for number, each in self.state.holders.items() if each.held)

    def holder(self, position: int) -> object | None:
        """Who holds it; None: it is ready, or not here."""
        return next((holder for holder, held in self.holders() if position in held), None)

    def exhausted(self, ranges: list[Range], limit: int) -> list[Range]:
        """What of these, which somebody holds, was given back so often that it is the last time."""
        found = self.state.deliveries.above(PositionSet(ranges), limit - 1)
        return within(ranges, found) if found else []

    def deliveries(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """How often they were given back, as ranges; those of which none was are left out."""
        return self.state.deliveries.items(first, stop)

    # When they are over.

    def expiry(self, position: int) -> float | None:
        bits = self.state.expiry(position)
        return None if bits is None else time_of(bits)

    def expiries(self, ranges: Iterable[Range]) -> Iterator[tuple[int, int, float | None]]:
        for span in ranges:
            for first, stop, bits in self.state.expiries(*span):
                yield first, stop, None if bits is None else time_of(bits)

    def are_over(self, ranges: Iterable[Range], now: float) -> list[Range]:
        """Of messages that are here."""
        found: list[Range] = []
        for first, stop, time in self.expiries(ranges):
            if time is not None and time <= now:
                add_range(found, first, stop)
        return found

    def heads(self) -> Iterator[int]:
        """The first ready one of each priority."""
        for lane in self.state.in_order():
            first = lane.first()
            if first is not None:
                yield first

    def heads_over(self, now: float, most: int) -> list[Range]:
        """What is ready, has only such before it, and has no time left; so many of them at most."""
        found: list[Range] = []
        for lane in self.state.in_order():
            for first, stop, time in self.expiries(lane.ranges()):
                if time is None or time > now or most <= 0:
                    break
                stop = min(stop, first + most)
                most -= stop - first
                add_range(found, first, stop)
        return found

    # What consumers would get.

    def first_ready(self, count: int) -> list[Range]:
        """So many from the head, in the order in which they are given away."""
        state = self.state
        if state.config.kind is not Kind.PRIORITY:
            return state.ready.first_ranges(count)
        found: list[Range] = []
        for lane in state.in_order():
            for first, stop in lane.first_ranges(count):
                add_range(found, first, stop)
                count -= stop - first
            if count <= 0:
                break
        return found

    def sifted(self, count: int, now: float) -> tuple[list[Range], list[Range]]:
        """The same, without those whose time is over; and those."""
        good: list[Range] = []
        over: list[Range] = []
        for lane in self.state.in_order():
            for first, stop, time in self.expiries(lane.ranges()):
                if count <= 0:
                    return good, over
                if time is not None and time <= now:
                    add_range(over, first, stop)
                else:
                    stop = min(stop, first + count)
                    count -= stop - first
                    add_range(good, first, stop)
        return good, over

    def in_order(self) -> Iterator[Range]:
        """All that is ready."""
        for lane in self.state.in_order():
            yield from lane.ranges()

    def choose(self, ranges: Iterable[Range], limit: int, size: int, each: int = 0) -> tuple[list[Range], int | None]:
        """Up to `limit` of these, which are here, that have up to `size` bytes, but one in any case; and the first that
        is left out, if there is one. A message takes its body and `each`."""
        chosen: list[Range] = []
        count = 0
        for first, stop in ranges:
            for position, length in enumerate(self.state.lengths.each(first, stop), first):
                if count >= limit or (count and length > size):
                    return chosen, position
                add_range(chosen, position, position + 1)
                count += 1
                size -= length + each
        return chosen, None

    def first_live(self, first: int, stop: int, count: int) -> list[Range]:
        """Up to so many that are here, of positions from `first` on, up to, and without, `stop`."""
        found: list[Range] = []
        first, stop = max(first, 1), min(stop, END)
        if first < stop:
            for begin, end in self.state.live.ranges(first, stop):
                if count <= 0:
                    break
                end = min(end, begin + count)
                count -= end - begin
                found.append((begin, end))
        return found

    def emptied(self) -> MessageTable:
        """Another one that goes on behind it."""
        other = MessageTable(self.state.number, self.state.config, self._journal)
        other.state.next_position = self.state.next_position
        return other


def _undo(operation: Operation, state: QueueState, done: list[Any], args: tuple[Any, ...]) -> None:
    if done:
        operation.undo(None, state, done[0], *args)


def _stay(state: QueueState, holder: Holder, position: int, done: list[int]) -> None:
    """It never left."""
    if done:
        holder.held.add(position, position + 1)
        state.live.add(position, position + 1)
        state.held_bytes += done[0]
        holder.used += 1


def _restore_times(state: QueueState, expires: Runs, caps: tuple[Any, ...]) -> None:
    state.expires, state.caps = expires, caps


def count_in(ranges: Sequence[Range], there: PositionSet) -> int:
    """How many of these are in the set."""
    return count_of(within(ranges, there)) if there else 0
