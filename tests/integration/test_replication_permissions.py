"""A user who is limited to its own names tries to reach other queues as if it were the link of another broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pytest
from console_rig import GUEST, Answer, Running
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError
from three_brokers import PATIENCE, PERSISTENT, ThreeBrokers, eventually

from coterie.amqp.wire.properties import Properties
from coterie.broker.following import steps
from coterie.broker.following.steps import EXCHANGE
from coterie.broker.message import make_message

Login = tuple[str, str]
OWN = r"^(app\.|amq\.)"
"""What the attacker may configure, write and read."""


class Site(Running):
    """A node that runs already, by its addresses."""

    def __init__(self, amqp: str, console: str) -> None:
        self.amqp, self.console = amqp, console
        self._clients = []

    def close(self) -> None:
        for client in self._clients:
            if client.is_open:
                client.close()


@dataclass
class Place:
    """Where it is attacked, and where that is looked for: another broker of the same cluster, if it is one."""

    at: Running
    seen: Running
    mallory: Login
    link: Login


def _place(at: Running, seen: Running) -> Place:
    mallory = at.add_user("mallory", "management", OWN, OWN, OWN)
    ours = r"^(coterie\.replication|app\.)"
    return Place(at, seen, mallory, at.add_user("link", "replicator", ours, ours, ours))


@pytest.fixture(scope="module", params=["node", "cluster"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.param == "node":
        with Running() as node:
            yield _place(node, node)
        return
    brokers = ThreeBrokers(Path(tmp_path_factory.mktemp("cluster")), consoles=True)
    try:
        sites = [Site(f"127.0.0.1:{brokers.amqp[name]}", brokers.console[name]) for name in ("node1", "node3")]
        yield _place(*sites)
        for site in sites:
            site.close()
    finally:
        brokers.stop()


@pytest.fixture(autouse=True)
def victim(place: Place) -> None:
    """A queue with one message, a queue that is empty, and the exchange that links use."""
    place.at.change("PUT", f"/api/exchanges/%2F/{EXCHANGE}", {"type": "x-replication", "durable": True})
    for queue in ("orders", "empty"):
        place.at.ask("DELETE", f"/api/queues/%2F/{queue}")
        place.at.change("PUT", f"/api/queues/%2F/{queue}", {"durable": True})
    channel = place.at.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "orders", b"honest", PERSISTENT)
    channel.connection.close()


def step(do: str, messages: int = 0, **said: object) -> bytes:
    forged = make_message("", "orders", b"forged", Properties(user_id="guest", delivery_mode=2))
    return steps.encode(do, "mallory", said, range(1, messages + 1), [forged] * messages)


ATTACK = (
    step("begin", queue="empty", incarnation=1, session="s", auto_delete=False, arguments={}),
    step("enqueue", 1, queue="empty", session="s"),
    step("begin", queue="brought", incarnation=1, session="s", auto_delete=False, arguments={}),
    step("enqueue", 1, queue="brought", session="s"),
    step("end", queue="empty", incarnation=1),
    step("list", after=""),
)
"""Take over a queue, put a message into it that claims to be of somebody else, make another one, delete the first."""


def nothing_happened(place: Place) -> None:
    found = {queue["name"]: queue for queue in place.seen.get("/api/queues/%2F")}
    assert {"orders", "empty"} <= found.keys()
    assert "brought" not in found
    assert place.seen.get("/api/replication/queues/%2F") == []
    channel = place.seen.channel()
    assert channel.queue_declare("empty", passive=True).method.message_count == 0
    assert channel.queue_declare("orders", passive=True).method.message_count == 1
    channel.connection.close()


def refused(place: Place, user: Login, attempt: Callable[[BlockingChannel], object]) -> str:
    channel = place.at.channel(user)
    channel.confirm_delivery()
    with pytest.raises(ChannelClosedByBroker) as error:
        attempt(channel)
    assert error.value.reply_code == 403
    return str(error.value.reply_text)


def test_only_who_has_the_tag_declares_the_exchange(place: Place) -> None:
    name = "app.steps"
    text = refused(place, place.mallory, lambda channel: channel.exchange_declare(name, "x-replication"))
    assert "replicator" in text
    answer = place.at.ask("PUT", f"/api/exchanges/%2F/{name}", {"type": "x-replication"}, place.mallory)
    assert (answer.status, "replicator" in answer.reason) == (403, True)
    place.at.channel(place.link).exchange_declare(name, "x-replication")
    place.at.change("DELETE", f"/api/exchanges/%2F/{name}")


def test_what_a_user_without_the_tag_publishes_there_is_refused(place: Place) -> None:
    place.at.change("PUT", "/api/exchanges/%2F/app.there", {"type": "x-replication", "durable": True})
    for body in ATTACK:
        text = refused(place, place.mallory, lambda channel: channel.basic_publish("app.there", "", body))  # noqa: B023
        assert "replicator" in text
        answer = _publish_over_http(place, place.mallory, body)
        assert (answer.status, "replicator" in answer.reason) == (403, True)
    nothing_happened(place)


def _publish_over_http(place: Place, user: Login, body: bytes) -> Answer:
    said = {"routing_key": "", "payload": body.hex(), "properties": {}}
    return place.at.ask("POST", "/api/exchanges/%2F/app.there/publish", said, user)


def test_steps_that_come_by_a_binding_an_alternate_a_dead_letter_or_a_copy_are_none(place: Place) -> None:
    """The victim, who may do everything, has wired its exchanges so; the attacker publishes to them."""
    wired = place.at.channel()
    wired.exchange_declare("app.bound", "fanout")
    wired.exchange_bind(EXCHANGE, "app.bound")
    wired.exchange_declare("app.alternate", "direct", arguments={"alternate-exchange": EXCHANGE})
    dead: dict[str, Any] = {"x-dead-letter-exchange": EXCHANGE, "x-message-ttl": 0}
    wired.queue_declare("app.dead", arguments=dead)
    channel = place.at.channel(place.mallory)
    copies = pika.BasicProperties(headers={"CC": ["empty"], "BCC": [EXCHANGE]})
    for body in ATTACK:
        for exchange, key, properties in (
            ("app.bound", "", None), ("app.alternate", "x", None), ("app.bound", EXCHANGE, copies),
        ):  # fmt: skip
            channel.basic_publish(exchange, key, body, properties)
        wired.basic_publish("", "app.dead", body)  # dies at once
    # A question on the same channel is answered after everything before it.
    assert channel.queue_declare("app.own", exclusive=True).method.message_count == 0
    eventually("all died", lambda: wired.queue_declare("app.dead", passive=True).method.message_count == 0)
    nothing_happened(place)
    with pytest.raises(ChannelClosedByBroker):
        channel.exchange_bind(EXCHANGE, "app.bound")  # it may not write there


def test_a_link_reaches_only_queues_that_its_user_may_change(place: Place) -> None:
    channel = place.at.channel(place.link)
    channel.confirm_delivery()
    for body in ATTACK[:-1]:
        with pytest.raises(NackError):
            channel.basic_publish(EXCHANGE, "", body)
    letters = {"x-dead-letter-exchange": "amq.direct"}
    with pytest.raises(NackError):  # a client could not declare it either
        channel.basic_publish(
            EXCHANGE, "",
            step("begin", queue="app.q", incarnation=1, session="s", auto_delete=False, arguments=letters),
        )  # fmt: skip
    nothing_happened(place)
    channel.basic_publish(
        EXCHANGE, "", step("begin", queue="app.q", incarnation=1, session="s", auto_delete=False, arguments={})
    )
    channel.basic_publish(EXCHANGE, "", step("enqueue", 1, queue="app.q", session="s"))
    (follower,) = place.seen.get("/api/replication/queues/%2F")
    assert (follower["queue"], follower["mark"]) == ("app.q", 1)
    place.at.change("DELETE", "/api/queues/%2F/app.q")


def test_a_policy_does_not_lead_steps_elsewhere(place: Place) -> None:
    """Whoever sets policies would read the messages of all links, which would be told that they are safe."""
    policymaker = place.at.add_user("policymaker", "policymaker", OWN, OWN, OWN)
    channel = place.at.channel(policymaker)
    channel.exchange_declare("app.trap", "fanout")
    channel.queue_declare("app.loot", exclusive=True)
    channel.queue_bind("app.loot", "app.trap")
    diverted = {"alternate-exchange": "app.trap"}
    policy = {"pattern": ".*", "definition": diverted, "apply-to": "exchanges"}
    place.at.change("PUT", "/api/policies/%2F/trap", policy, policymaker)
    link = place.at.channel(place.link)
    link.confirm_delivery()
    link.basic_publish(
        EXCHANGE, "", step("begin", queue="app.q", incarnation=1, session="s", auto_delete=False, arguments={})
    )
    link.basic_publish(EXCHANGE, "", step("enqueue", 1, queue="app.q", session="s"))
    (follower,) = place.seen.get("/api/replication/queues/%2F")
    assert (follower["queue"], follower["mark"]) == ("app.q", 1)
    assert channel.queue_declare("app.loot", passive=True).method.message_count == 0
    with pytest.raises(ChannelClosedByBroker) as error:
        place.at.channel().exchange_declare("app.steps", "x-replication", arguments=diverted)
    assert (error.value.reply_code, "alternate-exchange" in error.value.reply_text) == (406, True)
    place.at.change("DELETE", "/api/policies/%2F/trap")
    place.at.change("DELETE", "/api/queues/%2F/app.q")


def test_who_may_not_read_a_queue_neither_looks_into_it_nor_empties_it_by_beginning_anew(place: Place) -> None:
    begin: dict[str, Any] = {"queue": "app.kept", "session": "s", "auto_delete": False, "arguments": {}}
    channel = place.at.channel(place.link)
    channel.confirm_delivery()
    channel.basic_publish(EXCHANGE, "", step("begin", incarnation=1, **begin))
    channel.basic_publish(EXCHANGE, "", step("enqueue", 3, queue="app.kept", session="s"))
    ours = r"^(coterie\.replication|app\.)"
    blind = place.at.channel(place.at.add_user("blind", "replicator", ours, ours, "^$"))
    blind.confirm_delivery()
    with pytest.raises(NackError):
        blind.basic_publish(EXCHANGE, "", step("begin", incarnation=2, **begin))
    (follower,) = place.seen.get("/api/replication/queues/%2F")
    assert (follower["queue"], follower["mark"]) == ("app.kept", 3)
    place.at.change("DELETE", "/api/queues/%2F/app.kept")


def answer_to(channel: BlockingChannel, body: bytes) -> Any:
    replies = "amq.rabbitmq.reply-to"
    answers: list[Any] = []
    channel.basic_consume(replies, lambda *got: answers.append(json.loads(got[3])), auto_ack=True)
    channel.basic_publish(EXCHANGE, "", body, pika.BasicProperties(reply_to=replies))
    while not answers:
        channel.connection.process_data_events(PATIENCE)
    return answers[0]


def test_a_link_is_told_of_those_queues_only(place: Place) -> None:
    channel = place.at.channel()
    channel.confirm_delivery()
    for queue in ("app.mine", "hidden"):
        begin = step("begin", queue=queue, incarnation=1, session="s", auto_delete=False, arguments={})
        channel.basic_publish(EXCHANGE, "", begin)
    for user, names in ((GUEST, ["app.mine", "hidden"]), (place.link, ["app.mine"])):
        assert [name for name, _ in answer_to(place.at.channel(user), step("list", after=""))["queues"]] == names
    for queue in ("app.mine", "hidden"):
        place.at.change("DELETE", f"/api/queues/%2F/{queue}")
