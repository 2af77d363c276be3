"""What clients do that few do on purpose, and that races do for them: settle everything twice, give back and close,
cancel and give back, leave in the middle of a transaction. Each is sent in one piece, so that the broker finds it all
in one read. Whatever it answers, nobody holds a message twice, and nothing is lost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from coterie.sim.plan import Action

if TYPE_CHECKING:
    from coterie.sim.broker_clients import Client

ANTICS = ("ack_twice", "ack_again", "ack_close", "requeue_close", "cancel_requeue", "tx_close", "tx_twice")


def antics(chance: str, clients: list[str], names: list[str], begin: float, end: float) -> list[Action]:
    """Some of them, in one run of four; by chance of their own, so that the rest of a plan is as it was."""
    rng = random.Random(chance)
    if rng.random() >= 0.25:
        return []
    return [
        Action(rng.uniform(begin, end - 0.1), rng.choice(clients), kind, 0, [rng.choice(names)])
        for kind in ANTICS
        for _ in range(rng.choice((0, 1, 1, 2, 4)))
    ]


def play(client: Client, kind: str, queue: str) -> None:
    """Have the client do it, if its channel is open."""
    consuming, transactional = client.channels
    channel = transactional if kind.startswith("tx") else consuming
    if not client.is_open(channel):
        return
    everything = {"delivery_tag": 0, "multiple": True}
    match kind:
        case "ack_twice":
            for _ in range(2):
                client.accept_everything(channel)
            client.send(channel, "channel.flow", active=True)  # the answer comes behind what was on its way
            client.forget_pending()
        case "ack_again":  # the channel is closed for it, and what is unsettled goes back
            tag = client.last_pending
            if tag:
                for _ in range(2):
                    client.send(channel, "basic.ack", delivery_tag=tag)
        case "ack_close":
            client.accept_everything(channel)
            client.close(channel)
        case "requeue_close":
            client.send(channel, "basic.nack", requeue=True, **everything)
            client.close(channel)
        case "cancel_requeue":
            client.cancel_one()
            client.send(channel, "basic.nack", requeue=True, **everything)
            client.forget_pending()
        case "tx_close" | "tx_twice":
            client.ask(channel, queue)
            client.ask(channel, queue)
            client.send(channel, "basic.ack", **everything)
            if kind == "tx_twice":
                client.send(channel, "tx.rollback")
                client.send(channel, "basic.nack", requeue=True, **everything)
                client.send(channel, "tx.rollback")
            client.close(channel)
