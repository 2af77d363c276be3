"""What a channel has delivered and its client has not settled: whose it is, by ranges of delivery tags.

TagRanges knows tags and positions, and a key for each pair of queue and holder. An *account* is what a key stands for:
how much its holder has, as consumers have only so much room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.broker.delivery import Delivery, HeldRanges, add_range
from coterie.broker.ranges import Held, Range, TagRanges, UnknownTag
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.amqp.subscription import Subscription
    from coterie.broker.queue import Queue


class Account:
    """What one holder has of one queue, through one channel."""

    __slots__ = ("consumer", "held", "holder", "key", "queue")

    def __init__(self, key: int, queue: Queue, holder: object, consumer: Subscription | None) -> None:
        self.key = key
        self.queue = queue
        self.holder = holder
        """As the queue knows it: in a cluster, it stands for the consumer on the log."""
        self.consumer = consumer
        """None: basic.get."""
        self.held = 0


Settled = dict[Account, list[Range]]
"""In the order in which they were settled."""


def held_ranges(settled: Settled) -> list[HeldRanges]:
    return [HeldRanges(account.queue, account.holder, ranges) for account, ranges in settled.items()]


class Deliveries:
    """Of one channel. Whatever a client does with tags, each is settled once."""

    __slots__ = ("_accounts", "_freed", "_getters", "_keys", "_now", "tags")

    def __init__(self, freed: Callable[[Subscription | None], None], now: Callable[[], float]) -> None:
        self._now = now
        self._freed = freed
        """Told of a consumer that holds less than before; None: somebody who got it with basic.get."""
        self.tags = TagRanges()
        self._keys = 0
        self._accounts: dict[int, Account] = {}
        """Of those who hold something, by key."""
        self._getters: dict[tuple[Queue, object], Account] = {}

    @property
    def count(self) -> int:
        """Also of what is settled in a transaction that is not committed."""
        return self.tags.count

    @property
    def oldest(self) -> float | None:
        """When the first of those that are unsettled was delivered."""
        return self.tags.oldest

    # Delivered.

    def add(self, consumer: Subscription | None, delivery: Delivery) -> None:
        """They have been given the next tags. `consumer`: None if it was basic.get."""
        getter = (delivery.queue, delivery.holder)
        account = self._getters.get(getter) if consumer is None else consumer.account
        if account is None or account.holder is not delivery.holder:
            self._keys += 1
            account = Account(self._keys, delivery.queue, delivery.holder, consumer)
            if consumer is not None:
                consumer.account = account
        count = delivery.count
        if not account.held:
            self._accounts[account.key] = account
            if consumer is None:
                self._getters[getter] = account
        account.held += count
        if consumer is not None:
            consumer.held += count
        self.tags.deliver(account.key, delivery.ranges, self._now())

    def skip(self, tags: int) -> None:
        """So many tags were given to deliveries that need no settling."""
        self.tags.skip(tags)

    # Settled.

    def take(self, tag: int, multiple: bool, into: Settled) -> None:
        """Settle one, or all up to and with that tag (0: all). Raises ProtocolError 406 for one that is not there."""
        try:
            found = self.tags.take(tag, multiple)
        except UnknownTag as error:
            raise ProtocolError(PRECONDITION_FAILED, str(error)) from None
        self._give(found, into)

    def take_all(self) -> list[HeldRanges]:
        into: Settled = {}
        self._give(self.tags.take_all(), into)
        return held_ranges(into)

    def _give(self, found: Iterable[Held], into: Settled) -> None:
        for _, key, first, stop in found:
            account = self._accounts[key]
            count, consumer = stop - first, account.consumer
            account.held -= count
            if not account.held:
                del self._accounts[key]
                if consumer is None:
                    del self._getters[account.queue, account.holder]
            if consumer is not None:
                consumer.held -= count
            self._freed(consumer)
            ranges = into.get(account)
            if ranges is None:
                into[account] = [(first, stop)]
            else:
                add_range(ranges, first, stop)

    # In a transaction: they are held still until it is over.

    def withdraw(self, tag: int, multiple: bool) -> list[Range]:
        """As `take`. Gives the tags, for `settle` or `restore`."""
        try:
            return self.tags.withdraw(tag, multiple)
        except UnknownTag as error:
            raise ProtocolError(PRECONDITION_FAILED, str(error)) from None

    def settle(self, withdrawn: Sequence[Range]) -> list[HeldRanges]:
        """The transaction is committed."""
        into: Settled = {}
        self._give(self.tags.settle(withdrawn), into)
        return held_ranges(into)

    def restore(self, withdrawn: Iterable[Range]) -> None:
        """The transaction is rolled back: the client has them again, with the tags that they had."""
        self.tags.restore(withdrawn)

    # Looking.

    def held(self) -> list[HeldRanges]:
        """What the client has to answer for, also what it has answered in a transaction that is not committed."""
        found: Settled = {}
        for each in (*self.tags, *self.tags.withdrawn()):
            add_range(found.setdefault(self._accounts[each.key], []), each.first, each.stop)
        return held_ranges(found)
