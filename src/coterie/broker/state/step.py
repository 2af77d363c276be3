"""A step: what one ordered event does to the state, whole or not at all.

The journal of a step is both how to take it back and what is recorded of it: its effects. Whoever decides calls `do`;
if anything raises, `undo` leaves the state as it was, byte for byte. `effects` ends the step. `replay` does the same to
another copy of the state, without deciding anything again.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from coterie.broker.ranges import MalformedRanges, PositionSet, Range
from coterie.broker.ranges.codec import Reader, write_uint
from coterie.broker.state import holding, marks, messages, sharing
from coterie.broker.state.broker_state import BrokerState
from coterie.broker.state.effect_codec import EFFECTS_MAX, MalformedEffects
from coterie.broker.state.holders import Holder
from coterie.broker.state.operations import OPERATIONS, Operation, require
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.trimming import Trims, is_far_from_empty

TABLES: Final = (messages, marks, holding, sharing)
"""The modules that have the operations."""
_QUEUE: Final = 0
"""Instead of the code of an operation: the queue that the following ones are about."""

_OF_HOLDER: Final = (messages.ACQUIRE, messages.RELEASE, messages.LEAVE, holding.SHRINK)
_OF_POOLS: Final = (sharing.POOL, sharing.DROP_POOL, sharing.DELETE, holding.UPDATE, holding.REMOVE)

Entry = tuple[Operation, QueueState | None, tuple[Any, ...], Any]


class Given(NamedTuple):
    """Messages for a consumer, in the order in which it gets them. Where they are stored, the runs of the queue say:
    to be asked before `Step.effects`, as a consumer that acknowledges nothing leaves nothing behind."""

    queue: int
    holder: int
    positions: list[Range]
    redelivered: list[Range]
    """Those that are flagged."""


class Step:
    """Of one event."""

    __slots__ = ("_bytes", "_given", "_journal", "scheduled", "state")

    def __init__(self, state: BrokerState) -> None:
        self.state = state
        self._journal: list[Entry] = []
        self._bytes: bytes | None = None
        self._given: list[tuple[int, Given]] = []
        self.scheduled: dict[int, None] = {}
        """Queues whose consumers may be given something, in the order in which that was found."""

    def do(self, operation: Operation, queue: QueueState | None, *args: Any) -> None:
        self._journal.append((operation, queue, args, operation.do(self.state, queue, *args)))

    def mark(self) -> int:
        """For `undo`: up to here."""
        return len(self._journal)

    def undo(self, mark: int = 0) -> None:
        """The state is as it was; or as it was at the mark."""
        assert self._bytes is None, "the step is over"
        while len(self._journal) > mark:
            operation, queue, args, kept = self._journal.pop()
            operation.undo(self.state, queue, kept, *args)
        while self._given and self._given[-1][0] > mark:
            self._given.pop()

    def gave(self, given: Given) -> None:
        """The last operation has given messages to a consumer."""
        self._given.append((len(self._journal), given))

    def given(self) -> list[Given]:
        """To whom what was given."""
        return [given for _, given in self._given]

    def schedule(self, queue: QueueState) -> None:
        """Its consumers may be given something when the event is over."""
        if queue.ready:
            self.scheduled[queue.number] = None

    def effects(self) -> bytes:
        """What it has done, for the log and for `replay`. The step is over then."""
        if self._bytes is None:
            self._bytes = _encode(self._journal)
            _trim(self._journal)
            self._journal = []
        return self._bytes


def _encode(journal: list[Entry]) -> bytes:
    out = bytearray()
    append = out.append
    current = None
    for operation, queue, args, _ in journal:
        if queue is not current and queue is not None:
            current = queue
            append(_QUEUE)
            write_uint(out, queue.number)
        append(operation.code)
        numbers = None if operation.numbers is None else operation.numbers(*args)
        if numbers is None:
            for write, arg in zip(operation.writes, args, strict=True):
                write(out, arg)
        else:
            for number in numbers:  # as `write_uint`, without a call for each
                while number > 0x7F:
                    append(number & 0x7F | 0x80)
                    number >>= 7
                append(number)
    return bytes(out)


def _trim(journal: list[Entry]) -> None:
    trims: dict[int, Trims] = {}
    for operation, queue, args, _ in journal:
        if operation.leaves and queue is not None and not is_far_from_empty(queue, args[-1]):
            found = trims.get(queue.number)
            if found is None:
                found = trims[queue.number] = Trims(queue)
            found.left(args[-1])
    for found in trims.values():
        found.trim()


def decode_effects(
    effects: bytes | memoryview, limit: int = EFFECTS_MAX
) -> list[tuple[int, Operation, tuple[Any, ...]]]:
    """Queue, operation and arguments of each. Raises MalformedEffects."""
    found: list[tuple[int, Operation, tuple[Any, ...]]] = []
    queue, named = -1, False
    try:
        reader = Reader(effects, limit)
        while not reader.ended:
            code = reader.uint(255)
            if code == _QUEUE:
                before, queue = queue, reader.uint()
                require(queue != before and not named, "effects name a queue without need")
                named = True
                continue
            operation = OPERATIONS.get(code)
            if operation is None:
                raise MalformedEffects(f"no operation has the code {code}")
            require(not operation.of_queue or queue >= 0, f"{operation.name} of no queue")
            require(operation.of_queue or not named, "effects name a queue without need")
            named = False
            found.append((queue, operation, tuple([field.read(reader) for field in operation.fields])))
    except MalformedRanges as error:
        raise MalformedEffects(str(error)) from error
    require(not named, "effects name a queue without need")
    return found


def replay(state: BrokerState, effects: bytes | memoryview, limit: int = EFFECTS_MAX) -> None:
    """Do what a step has done elsewhere. Raises MalformedEffects, and nothing has changed then."""
    step = Step(state)
    try:
        for number, operation, args in decode_effects(effects, limit):
            queue = None
            if operation.of_queue:
                queue = state.queues.get(number)
                if queue is None:
                    raise MalformedEffects(f"no queue {number}")
            operation.check(state, queue, *args)
            step.do(operation, queue, *args)
        _check_whole(state, step._journal)
    except BaseException:
        step.undo()
        raise
    _trim(step._journal)


def _check_whole(state: BrokerState, journal: list[Entry]) -> None:
    """What no operation can know alone: that several of them belong together."""
    leases: dict[tuple[int, int], Holder] = {}
    for operation, queue, args, _ in journal:
        if queue is not None and operation in _OF_HOLDER:
            holder = queue.holders.get(args[0])
            if holder is not None and holder.lease is not None:
                leases[queue.number, holder.id] = holder
    for holder in leases.values():
        assert holder.lease is not None
        held = PositionSet([(piece.first, piece.stop) for piece in holder.lease.pieces])
        require(held == holder.held, "a lease does not hold what its offsets say")
    if any(operation in _OF_POOLS for operation, _, _, _ in journal):
        require(all(pool.users for pool in state.pools.values()), "a pool that nobody uses")
