"""A client that sends what the specification allows and nobody expects, and what it forbids.

Each deed has a connection of its own, which may be closed for it; nobody else may notice. A deed that finds something
that must not be says so.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, NackError, UnroutableError

PATIENCE = 20.0
"""Seconds that a broker has for an answer: a cluster may be without a majority for a while."""
PERSISTENT = pika.BasicProperties(delivery_mode=2)
HUGE = 2**63 - 1


class HostileClient:
    """What it does next is drawn from `rng`. `violations`: what it found."""

    def __init__(self, ports: list[int], rng: random.Random) -> None:
        self._ports = ports
        self._rng = rng
        self._made = 0
        self.violations: list[str] = []
        self.deeds: list[Callable[[BlockingChannel], None]] = [
            self.letters_with_a_key_that_is_too_long, self.deaths_beyond_counting, self.arguments_of_any_kind,
            self.headers_of_any_kind, self.small_bodies_beyond_the_limit, self.expired_behind_a_live_one,
            self.everything_settled_twice, self.replication_steps_of_nonsense, self.names_of_any_kind,
            self.letters_that_go_round, self.few_messages_for_many_queues, self.keys_through_many_patterns,
        ]  # fmt: skip

    def run(self, deeds: int) -> list[str]:
        """So many of them; gives their names."""
        done = []
        for _ in range(deeds):
            if self._rng.random() < 0.15:
                self._garbage()
                done.append("garbage")
                continue
            deed = self._rng.choice(self.deeds)
            with contextlib.suppress(AMQPError, OSError, ValueError, TypeError, struct.error, AssertionError):
                connection = pika.BlockingConnection(
                    pika.ConnectionParameters(
                        "127.0.0.1",
                        self._rng.choice(self._ports),
                        socket_timeout=PATIENCE,
                        stack_timeout=PATIENCE,
                        blocked_connection_timeout=PATIENCE,
                        heartbeat=60,
                    )
                )
                try:
                    deed(connection.channel())
                finally:
                    connection.close()
            done.append(deed.__name__)
        return done

    def _name(self, what: str) -> str:
        self._made += 1
        return f"hostile-{what}-{os.getpid()}-{self._made}"

    # What has stopped brokers before.

    def letters_with_a_key_that_is_too_long(self, channel: BlockingChannel) -> None:
        name = self._name("key")
        arguments: dict[str, Any] = {
            "x-dead-letter-exchange": "amq.direct",
            "x-dead-letter-routing-key": "k" * self._rng.choice((255, 256, 70000)),
            "x-message-ttl": 1,
        }
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.basic_publish("", name, b"dies", PERSISTENT)

    def deaths_beyond_counting(self, channel: BlockingChannel) -> None:
        name, target = self._name("deaths"), self._name("letters")
        channel.queue_declare(target, durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
        channel.queue_declare(name, durable=True, arguments=arguments)
        death: dict[str, Any] = {
            "queue": name,
            "reason": "rejected",
            "count": HUGE,
            "exchange": "",
            "routing-keys": [name],
        }
        for deaths in ([death], "none", [death] * 3, [{"count": -HUGE}], [[death]], {"count": HUGE}):
            headers: dict[str, Any] = {"x-death": deaths, "x-first-death-queue": 7}
            channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2, headers=headers))
        for method, _, _ in channel.consume(name, inactivity_timeout=1.0):
            if method is None:
                break
            channel.basic_reject(method.delivery_tag or 0, requeue=False)
        channel.cancel()
        channel.queue_delete(target)
        channel.queue_delete(name)

    def letters_that_go_round(self, channel: BlockingChannel) -> None:
        """In a ring that is longer than a letter can tell."""
        name = self._name("ring")
        for number in range(103):
            arguments: dict[str, Any] = {
                "x-max-length": 0,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": f"{name}-{(number + 1) % 103}",
            }
            channel.queue_declare(f"{name}-{number}", auto_delete=True, arguments=arguments)
        channel.basic_publish("", f"{name}-0", b"round")
        channel.connection.process_data_events(0)

    def few_messages_for_many_queues(self, channel: BlockingChannel) -> None:
        """Sent in a moment, published at once or dead at the same time: each is fifty copies."""
        name = self._name("many")
        channel.exchange_declare(name, "fanout", auto_delete=True)
        limits: dict[str, Any] = {"x-max-length": 1, "x-expires": 30_000}
        for number in range(50):
            channel.queue_declare(f"{name}-{number}", arguments=limits)
            channel.queue_bind(f"{name}-{number}", name)
        dying: dict[str, Any] = {"x-message-ttl": 500, "x-expires": 30_000, "x-dead-letter-exchange": name}
        channel.queue_declare(f"{name}-dying", arguments=dying)
        for _ in range(1000):
            channel.basic_publish(name, "", b"")
            channel.basic_publish("", f"{name}-dying", b"")
        channel.connection.process_data_events(0)

    def keys_through_many_patterns(self, channel: BlockingChannel) -> None:
        name = self._name("patterns")
        channel.exchange_declare(name, "topic", auto_delete=True)
        channel.queue_declare(name, arguments={"x-expires": 30_000})
        for number in range(50):
            words = ("a" if number >> bit & 1 else "*" for bit in range(100))
            channel.queue_bind(name, name, "#." + ".".join(words))
        for _ in range(100):
            channel.basic_publish(name, ".".join("a" * 127), b"")
        channel.connection.process_data_events(0)

    def replication_steps_of_nonsense(self, channel: BlockingChannel) -> None:
        channel.exchange_declare("coterie.replication", "x-replication", durable=True)
        arguments: list[dict[str, object]] = [
            {"x-message-ttl": "soon"}, {"x-max-length": HUGE}, {"x-dead-letter-routing-key": "k" * 300}, {"": {"": []}},
            {"x-max-priority": -1}, {"x-queue-type": 7},
        ]  # fmt: skip
        for each in arguments:
            said = {
                "do": "begin", "source": "s", "queue": self._name("step"), "incarnation": 1, "session": "x",
                "auto_delete": False, "arguments": each,
            }  # fmt: skip
            text = repr(said).replace("'", '"').replace("False", "false").encode()
            channel.basic_publish("coterie.replication", "", struct.pack(">I", len(text)) + text, PERSISTENT)
            channel.basic_publish("coterie.replication", "", self._rng.randbytes(40), PERSISTENT)
        channel.connection.process_data_events(0)

    # What is merely unusual.

    def arguments_of_any_kind(self, channel: BlockingChannel) -> None:
        known = (
            "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow", "x-max-priority",
            "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-single-active-consumer", "x-queue-type",
            "x-delivery-limit", "x-deduplicate-length", "x-last-value-key", "x-ring", "x-replicated", "x-unknown",
        )  # fmt: skip
        arguments = {self._rng.choice(known): self._value() for _ in range(self._rng.randrange(1, 5))}
        name = self._name("any")
        channel.queue_declare(name, durable=True, arguments=arguments)
        for _ in range(5):
            channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2, priority=255))
        channel.basic_get(name)
        channel.queue_delete(name)

    def headers_of_any_kind(self, channel: BlockingChannel) -> None:
        name = self._name("headers")
        channel.queue_declare(
            name, durable=True, arguments={"x-message-ttl": 50, "x-dead-letter-exchange": "amq.fanout"}
        )
        for _ in range(10):
            known = ("CC", "BCC", "x-death", "x-deduplication-id", "x-last-value", "expiration", "x-match", "")
            headers = {self._rng.choice(known): self._value() for _ in range(3)}
            expiration = self._rng.choice((None, "0", "-1", "1e9", str(HUGE), "x" * 255))
            properties = pika.BasicProperties(delivery_mode=2, headers=headers, expiration=expiration)
            channel.basic_publish("", name, b"x", properties)
        channel.basic_get(name)
        channel.queue_delete(name)

    def names_of_any_kind(self, channel: BlockingChannel) -> None:
        for name in ("é" * 127, "\0", "a\tb", "x" * 255, "\U0001f40d" * 63, "../..", "amq.mine"):
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "amq.topic", name)
            channel.basic_publish("amq.topic", name, b"x", PERSISTENT)
            channel.queue_delete(name)

    def everything_settled_twice(self, channel: BlockingChannel) -> None:
        name = self._name("twice")
        channel.queue_declare(name, durable=True)
        for _ in range(4):
            channel.basic_publish("", name, b"x", PERSISTENT)
        tags = [channel.basic_get(name)[0] for _ in range(4)]
        for tag in tags:
            if tag is not None:
                self._rng.choice((channel.basic_ack, channel.basic_nack, channel.basic_reject))(tag.delivery_tag or 0)
        channel.basic_ack(0, multiple=True)
        channel.basic_ack(1)  # which ends the channel
        channel.connection.process_data_events(1)

    # What brokers have got wrong before.

    def small_bodies_beyond_the_limit(self, channel: BlockingChannel) -> None:
        """Exactly those are refused for which there is no room."""
        name = self._name("small")
        arguments: dict[str, Any] = {"x-max-length": 18, "x-overflow": "reject-publish"}
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.confirm_delivery()
        refused = 0
        for _ in range(20):
            try:
                channel.basic_publish("", name, b"x", PERSISTENT)
            except (NackError, UnroutableError):
                refused += 1
        if refused != 2:
            self.violations.append(f"{refused} of 20 messages were refused by a queue with room for 18")
        channel.queue_delete(name)

    def expired_behind_a_live_one(self, channel: BlockingChannel) -> None:
        name = self._name("ttl")
        channel.queue_declare(name, durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", name, b"lives", PERSISTENT)
        channel.basic_publish("", name, b"dies", pika.BasicProperties(delivery_mode=2, expiration="1"))
        time.sleep(0.2)  # its time passes
        channel.basic_publish("", name, b"later", PERSISTENT)
        bodies = [body for _, _, body in (channel.basic_get(name, auto_ack=True) for _ in range(3))]
        if b"dies" in bodies:
            self.violations.append("a message was delivered 199 ms after it had expired")
        channel.queue_delete(name)

    def _garbage(self) -> None:
        """No AMQP, or hardly."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._rng.choice(self._ports)), 5) as raw,
        ):
            raw.sendall(
                self._rng.choice((b"AMQP\0\0\x09\x01", b"GET / HTTP/1.1\r\n\r\n", b"")) + self._rng.randbytes(300)
            )

    def _value(self, depth: int = 0) -> Any:
        draws: list[Callable[[], Any]] = [
            lambda: self._rng.choice((0, 1, -1, 255, 256, 2**31, 2**32, HUGE, -HUGE - 1)),
            lambda: "", lambda: "x" * 256, lambda: "drop-head", lambda: None,
            lambda: self._rng.random() < 0.5, lambda: b"\xff\xfe",
        ]  # fmt: skip
        if depth < 4:
            draws.append(lambda: [self._value(depth + 1) for _ in range(3)])
            draws.append(lambda: {f"k{n}": self._value(depth + 1) for n in range(3)})
        return self._rng.choice(draws)()
