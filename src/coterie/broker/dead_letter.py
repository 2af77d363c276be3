"""Dead letters: a message that was rejected, expired, evicted or given back too often, on its way to another exchange.

Its header `x-death` tells where it died, and why, the last death first; deaths in one queue for one reason are one
record with a count. `x-first-death-*` and `x-last-death-*` name the first and the last. A letter that would come to a
queue in which it died before, and on its way there was never rejected by a client, would go round for ever: it is
dropped.

Headers are what clients say: whatever `x-death` is, a letter is made. Records that make no sense are not told on, and
counts end at the largest number that a table can hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from coterie.amqp.wire.properties import PERSISTENT, Properties
from coterie.amqp.wire.tables import Table, Value
from coterie.broker.message import Message, make_message
from coterie.broker.observer import Reason
from coterie.broker.router import copies
from coterie.errors import ProtocolError

DEATHS = "x-death"
COUNT_MAX = 2**63 - 1
Death = Mapping[str, Value]


def deaths(message: Message) -> list[Death]:
    """What its headers tell of earlier deaths, as far as it makes sense."""
    try:
        found = (message.properties().headers or {}).get(DEATHS)
    except ProtocolError:  # a store, or a peer, has let it in
        return []
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        return []
    return [death for death in found if isinstance(death, Mapping)]


def make_letter(
    message: Message, queue: str, reason: Reason, exchange: str, key: str | None, wall: float, records_max: int
) -> tuple[Message, list[str]]:
    """The letter, and the routing keys that it goes with: the queue's `key` for dead letters, else those it came
    with. Raises ProtocolError if it cannot be written at all."""
    try:
        properties = message.properties()
    except ProtocolError:  # a store, or a peer, has let it in: what can be known of it is kept
        properties = Properties(delivery_mode=PERSISTENT if message.persistent else None, priority=message.priority)
    further = copies(message, hidden=False)
    headers: Table = dict(properties.headers or {})
    headers[DEATHS] = _told(message, properties, queue, reason, wall, further)[:records_max]
    for which in ("first", "last"):
        if which == "last" or "x-first-death-queue" not in headers:
            headers[f"x-{which}-death-exchange"] = message.exchange
            headers[f"x-{which}-death-queue"] = queue
            headers[f"x-{which}-death-reason"] = reason.value
    if key is not None:
        headers.pop("CC", None)
        further = []
    keys = [message.key if key is None else key, *further]
    # Otherwise it might expire again, in a queue that is meant to keep it.
    changed = replace(properties, headers=headers, expiration=None)
    try:
        letter = make_message(exchange, keys[0], message.body, changed)
    except ProtocolError:  # something in the headers of a client can be read, but not written again
        ours = {name: value for name, value in headers.items() if name.startswith("x-") and "death" in name}
        letter = make_message(exchange, keys[0], message.body, replace(changed, headers=ours))
    return message.letter(letter), keys


def _told(
    message: Message, properties: Properties, queue: str, reason: Reason, wall: float, further: list[str]
) -> list[Death]:
    same: list[Death] = []
    others: list[Death] = []
    for death in deaths(message):
        (same if _queue(death) == queue and death.get("reason") == reason.value else others).append(death)
    count = min(sum(_count(death) for death in same) + 1, COUNT_MAX)
    record: Table = {
        "count": count,
        "reason": reason.value,
        "queue": queue,
        "time": datetime.fromtimestamp(int(wall), UTC),
        "exchange": message.exchange,
        "routing-keys": [message.key, *further],
    }
    expiration = properties.expiration
    if expiration is not None:
        record["original-expiration"] = expiration
    return [record, *others]


def _queue(death: Death) -> Value:
    """The queue's name, as queues have it: a string in a table that is not UTF-8 is read as bytes."""
    name = death.get("queue")
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name


def _count(death: Death) -> int:
    count = death.get("count")
    return count if type(count) is int and count > 0 else 0


def goes_round(letter: Message, queue: str) -> bool:
    """Whether the letter died in that queue before and no client has rejected it since."""
    for death in deaths(letter):
        if death.get("reason") == Reason.REJECTED.value:
            return False
        if _queue(death) == queue:
            return True
    return False
