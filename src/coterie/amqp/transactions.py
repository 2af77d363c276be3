"""The two ways to know that a message is safe: confirm mode, and transactions. A channel is in one of them, or in none.

In a transaction nothing happens before tx.commit: publishes wait here, and what was settled is withdrawn from the
client's hand, but not from its credit. tx.rollback forgets the publishes and gives the rest back, to be settled anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from coterie.amqp.deliveries import Deliveries
from coterie.amqp.publishing import Confirms
from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.amqp.wire.methods import Call
from coterie.broker.delivery import HeldRanges, count_of
from coterie.broker.publish import Publish
from coterie.broker.ranges import Range
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.amqp.channel import Channel


class Transaction:
    """What takes effect on commit."""

    __slots__ = ("_size", "accepts", "publishes", "rejects", "requeues")

    def __init__(self) -> None:
        self._size = 0
        self.publishes: list[Publish] = []
        self.accepts: list[Range] = []
        """Delivery tags, in the order in which they were settled; as the other two."""
        self.rejects: list[Range] = []
        self.requeues: list[Range] = []

    def publish(self, publishes: list[Publish], size: int, limit: int) -> None:
        self._size += size
        if self._size > limit:
            raise ProtocolError(PRECONDITION_FAILED, f"a transaction of more than {limit:,} bytes (transaction_max)")
        self.publishes += publishes

    @property
    def settled(self) -> int:
        """How many deliveries it settles."""
        return count_of(self.accepts) + count_of(self.rejects) + count_of(self.requeues)

    def give_up(self, deliveries: Deliveries) -> list[HeldRanges]:
        """The channel is over: what was settled is held no more."""
        return deliveries.settle([*self.accepts, *self.rejects, *self.requeues])


def select_confirms(channel: Channel, call: Call) -> None:
    if channel.transaction is not None:
        raise ProtocolError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel.number)
    channel.answer(call, "confirm.select-ok")


def select(channel: Channel, call: Call) -> None:
    if channel.confirms is not None:
        raise ProtocolError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction()
    channel.send("tx.select-ok")


def commit(channel: Channel, call: Call) -> None:
    transaction = _current(channel)
    channel.transaction = Transaction()
    tags = transaction.accepts, transaction.rejects, transaction.requeues
    accepts, rejects, requeues = map(channel.deliveries.settle, tags)
    channel.traffic.acked += count_of(transaction.accepts)
    channel.traffic.rejected += count_of(transaction.rejects) + count_of(transaction.requeues)

    def committed(_: None) -> None:
        channel.give_back(transaction.publishes)
        if any(publish.refused for publish in transaction.publishes):
            raise ProtocolError(PRECONDITION_FAILED, "partial tx completion: a queue refused a message")
        if traced is not None:
            traced.committed(name)
        channel.send("tx.commit-ok")
        channel.flush()

    traced = channel.traced
    name = "" if traced is None else traced.begin(channel)
    done = channel.later(call, committed)
    channel.vhost.transaction(transaction.publishes, accepts, rejects, requeues, done)
    if traced is not None:
        traced.ended()


def roll_back(channel: Channel, call: Call) -> None:
    transaction = _current(channel)
    channel.transaction = Transaction()
    for withdrawn in (transaction.accepts, transaction.rejects, transaction.requeues):
        channel.deliveries.restore(withdrawn)
    channel.send("tx.rollback-ok")


def _current(channel: Channel) -> Transaction:
    if channel.transaction is None:
        raise ProtocolError(PRECONDITION_FAILED, "channel is not transactional")
    return channel.transaction


COMMANDS: Final[dict[str, Callable[[Channel, Call], None]]] = {
    "confirm.select": select_confirms,
    "tx.select": select,
    "tx.commit": commit,
    "tx.rollback": roll_back,
}
