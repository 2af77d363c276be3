"""Settling twice, giving back and closing, leaving a transaction half-way: whatever comes in one read, a channel holds
each message once, the queue thinks the same, and what was not accepted is there again, once, at its place."""

from __future__ import annotations

import pytest
from amqp_rig import Client, Rig
from queue_view import seen

from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.tables import Value
from coterie.broker.delivery import positions_in

Step = tuple[str, dict[str, Value]]
ALL: dict[str, Value] = {"delivery_tag": 0, "multiple": True}
ACK: Step = ("basic.ack", ALL)
REQUEUE: Step = ("basic.nack", {**ALL, "requeue": True})
CLOSE: Step = ("channel.close", {"reply_code": 200, "reply_text": ""})
CANCEL: Step = ("basic.cancel", {"consumer_tag": "t"})
RECOVER: Step = ("basic.recover", {"requeue": True})
ROLLBACK: Step = ("tx.rollback", {})
COMMIT: Step = ("tx.commit", {})


def one(method: str, tag: int, **arguments: Value) -> Step:
    return method, {"delivery_tag": tag, **arguments}


def at_once(client: Client, *steps: Step) -> None:
    client.raw(b"".join(METHODS[name].frame(1, **arguments) for name, arguments in steps))


def holding(rig: Rig) -> list[int]:
    """Positions that channels say their clients have, as often as they say it."""
    connections = rig.server.connections.values()
    channels = [channel for connection in connections for channel in connection.channels.values()]
    held = [each for channel in channels for each in channel.held()]
    return sorted(position for each in held for position in positions_in(each.ranges))


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize(
    "steps",
    [
        (ACK, ACK),
        (ACK, REQUEUE),
        (REQUEUE, ACK, REQUEUE),
        (one("basic.ack", 2), one("basic.ack", 2)),
        (one("basic.ack", 2), one("basic.nack", 2, requeue=True)),
        (one("basic.reject", 3, requeue=True), RECOVER, ACK),
        (ACK, CLOSE),
        (REQUEUE, CLOSE),
        (one("basic.ack", 1), REQUEUE, CLOSE),
        (CANCEL, REQUEUE, ACK),
        (CANCEL, RECOVER, REQUEUE, CLOSE),
        (RECOVER, RECOVER, ACK),
    ],
)
@pytest.mark.parametrize("end", [(), (COMMIT,), (ROLLBACK,), (ROLLBACK, ACK, ROLLBACK, REQUEUE), (COMMIT, CLOSE)])
def test_nothing_is_held_twice_and_nothing_is_lost(
    steps: tuple[Step, ...], transactional: bool, end: tuple[Step, ...]
) -> None:
    rig = Rig()
    client, other = rig.client(), rig.client()
    client.call(1, "queue.declare", queue="q")
    for n in range(1, 6):
        client.publish(1, "", "q", b"%d" % n)
    if transactional:
        client.call(1, "tx.select")
    client.call(1, "basic.qos", prefetch_count=3)
    client.send(1, "basic.consume", queue="q", consumer_tag="t")
    queue = rig.broker.vhosts["/"].queues["q"]
    assert holding(rig) == [1, 2, 3]
    at_once(client, *steps, *(end if transactional else ()))
    rig.run(0.1)
    held = holding(rig)
    assert held == sorted(set(held)), "held twice"
    assert held == [position for position, entry in seen(queue).items() if entry.holder is not None]
    client.gone()
    rig.run(0.1)
    left = list(seen(queue))
    assert left == sorted(set(left))
    assert queue.ready == len(left)
    assert holding(rig) == []
    other.send(1, "basic.consume", queue="q", no_ack=True)
    rig.run(0.1)
    given = [int(heard.body) for heard in other.heard() if heard.name == "basic.deliver"]
    assert given == left
    assert seen(queue) == {}
