"""Hostile values: what the specification allows and nobody expects, and what it forbids.

Everything that a broker reads of others is made here from one source of chance: names, tables, arguments, properties,
policies, definitions, steps of links and of leases, frames in no order. Names begin with `bad`, so that whoever sends
them harms nobody else's queues by what it may do anyway.

`complaints` is the other side: what must hold of a broker that met them, said without the broker's own checks.
"""

from __future__ import annotations

import json
import random
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from coterie.amqp.wire.properties import Properties, encode
from coterie.amqp.wire.tables import FarMoment, RawText, Table, Value, encode_table
from coterie.broker.message import make_message
from coterie.broker.message_codec import encode_messages
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from coterie.broker.broker import Broker
    from coterie.broker.message import Message

PREFIX: Final = "bad"
NUMBERS: Final = (
    0, 1, -1, 2, 7, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
BEYOND: Final = (2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**40)
"""What no table can hold."""
REASONS: Final = ("rejected", "expired", "maxlen", "delivery_limit", "", "nonsense")
ARGUMENTS: Final = (
    "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange",
    "x-dead-letter-routing-key", "x-max-priority", "x-single-active-consumer", "x-last-value-key", "x-delivery-limit",
    "x-deduplicate-length", "x-deduplicate-ttl", "x-queue-type", "x-queue-mode", "x-replicated", "qpid.replicated",
)  # fmt: skip
LEVELS: Final = tuple(f"{PREFIX}-cascade-{'n' * 230}{level}" for level in range(9))
"""Exchanges, and with a letter more queues: whatever comes to the two queues of a level dies, and goes on to the next
one. One message is two letters, four, and so on, each with all its deaths to tell: too much work for one step."""
SENSIBLE: Final[dict[str, tuple[Value, ...]]] = {
    "x-message-ttl": (0, 1, 20, 150), "x-expires": (50, 400), "x-max-length": (0, 1, 4), "x-max-length-bytes": (0, 50),
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx", "ring"), "x-max-priority": (0, 3, 255),
    "x-single-active-consumer": (True, False), "x-last-value-key": ("k", "", "x-death"),
    "x-delivery-limit": (0, 1, 2**31 - 1), "x-deduplicate-length": (1, 3), "x-deduplicate-ttl": (1, 100),
    "x-queue-type": ("classic", "quorum"), "x-queue-mode": ("default", "lazy"), "x-replicated": (True, "false"),
    "qpid.replicated": ("true", False),
}  # fmt: skip


class Hostile:
    """One source of them. The same seed gives the same values in the same order."""

    def __init__(self, seed: object, queues: Sequence[str] = (), graves: str = "") -> None:
        self.rng = random.Random(f"hostile/{seed}")
        self._queues = queues
        """Of others, to which it may publish."""
        self._graves = graves
        """An exchange to which its dead letters may go."""

    # Texts and numbers.

    def name(self) -> str:
        """Of a queue or an exchange of its own; mostly one that there is already."""
        if self.rng.random() < 0.7:
            return self.rng.choice((f"{PREFIX}-1", f"{PREFIX}-1", f"{PREFIX}-2"))
        return PREFIX + self.rng.choice(("", "-1", "-2", "-3", "-x", "-\udcff\udc80", "-" + "n" * 251, "-ä'\"\x00\x7f"))

    def long_name(self) -> str:
        """That nothing can have."""
        return PREFIX + self.rng.choice(("n" * 253, "ä" * 127, "\udcff" * 253, "n" * 70_000))

    def text(self) -> str:
        rng = self.rng
        return rng.choice(
            ("", "k", "a.b.#", "*", "t" * 255, "t" * 256, "ä" * 128, "\udcff", "\0", "9" * 400, self.name())
        )

    def value(self, depth: int = 0) -> Value:
        rng = self.rng
        kind = rng.randrange(14 if depth < 3 else 11)
        if kind < 3:
            return rng.choice(NUMBERS)
        if kind < 5:
            return self.text().encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        simple: tuple[Value, ...] = (
            None, True, False, 1.5, float("nan"), float("-inf"), b"\xff\0", RawText(b"\xc3\x28"), Decimal("1.25"),
            datetime(2026, 1, 1, tzinfo=UTC), FarMoment(2**64 - 1), FarMoment(2**40),
        )  # fmt: skip
        if kind < 11:
            return rng.choice(simple)
        if kind == 11:
            return [self.value(depth + 1) for _ in range(rng.choice((0, 1, 3)))]
        if kind == 12:
            return {self.key(): self.value(depth + 1) for _ in range(rng.choice((0, 1, 3)))}
        nested: Value = self.value(depth + 1)
        for _ in range(rng.choice((3, 3, 3, 20, 27, 40))):
            nested = [nested] if rng.random() < 0.5 else {"n": nested}
        return nested

    def key(self) -> str:
        return self.rng.choice(("", "k", "x-death", "CC", "BCC", "x-match", "!bytes", "n" * 255, "\udcff", "count"))

    # Arguments, headers, properties.

    def arguments(self) -> Table:
        rng = self.rng
        found: Table = {}
        for name in rng.sample(ARGUMENTS, rng.choice((0, 0, 1, 2))):
            found[name] = rng.choice(SENSIBLE[name]) if name in SENSIBLE and rng.random() < 0.8 else self.value()
        if rng.random() < 0.6:
            found["x-dead-letter-exchange"] = rng.choice((self._graves, self._graves, "", self.name()))
            found["x-message-ttl"] = rng.choice((0, 5, 60))
            if rng.random() < 0.5:
                found["x-dead-letter-routing-key"] = rng.choice(
                    ("k", self.name(), "k" * 255, "k" * 256, "ä" * 128, self.long_name()[:300])
                )
        if rng.random() < 0.2:
            found[self.key()] = self.value()
        return found

    def deaths(self) -> Value:
        """What is said to have happened to a message."""
        rng = self.rng
        if rng.random() < 0.2:
            return self.value()
        queues = (*self._queues, *(self.name() for _ in range(3)), "")
        return [
            self.value(1)
            if rng.random() < 0.1
            else {
                "queue": rng.choice(queues) if rng.random() < 0.9 else self.value(1),
                "reason": rng.choice(REASONS) if rng.random() < 0.9 else self.value(1),
                "count": rng.choice((2**63 - 1, 2**63 - 1, 2**63 - 2, *NUMBERS))
                if rng.random() < 0.8
                else self.value(1),
                "exchange": self.value(2),
            }
            for _ in range(rng.choice((1, 1, 2, 30)))
        ]

    def headers(self) -> Table:
        rng = self.rng
        found: Table = {"k": self.value()} if rng.random() < 0.5 else {}
        if rng.random() < 0.6:
            found["x-death"] = self.deaths()
            if rng.random() < 0.7:  # of the very queues in which it will die: by what other clients do, or by itself
                queues = [*self._queues, PREFIX, f"{PREFIX}-1", f"{PREFIX}-2"]
                found["x-death"] = [
                    {"queue": queue, "reason": reason, "count": 2**63 - 1}
                    for queue in queues
                    for reason in ("rejected", "expired", "maxlen")
                ]
        for name in ("CC", "BCC"):
            if rng.random() < 0.2:
                keys: list[Value] = [*self._queues[:2], self.name(), "k" * 300, 7]
                found[name] = rng.choice(keys[:2] or [None]) if rng.random() < 0.1 else keys
        for name in ("x-first-death-queue", "x-last-death-reason", "x-delay", self.key()):
            if rng.random() < 0.1:
                found[name] = self.value()
        return found

    def properties(self) -> Properties:
        rng = self.rng
        return Properties(
            headers=self.headers() if rng.random() < 0.9 else None,
            delivery_mode=rng.choice((None, 0, 1, 2, 2, 2, 255)),
            priority=rng.choice((None, 0, 255)),
            expiration=rng.choice(("4294967296", "-1", "1e3", "", "\udcff")) if rng.random() < 0.03 else self._ttl(),
            message_id=rng.choice((None, "", "m", "m" * 255)),
            timestamp=rng.choice((None, 0, 2**64 - 1)),
            user_id="somebody" if rng.random() < 0.02 else None,
            reply_to=rng.choice((None, None, "amq.rabbitmq.reply-to.\udcff", "\udcff" * 200)),
            type=rng.choice((None, "\udcff")),
        )

    def _ttl(self) -> str | None:
        return self.rng.choice((None, None, "0", "10", "4294967295"))

    def header(self, size: int) -> bytes:
        """Of a message with a body of that size; now and then it is none."""
        while True:
            try:
                raw = bytearray(encode(self.properties(), size))
                break
            except (ProtocolError, ValueError):  # what cannot even be written
                continue
        if self.rng.random() < 0.03:
            raw[self.rng.randrange(12, len(raw))] = self.rng.randrange(256)
        return bytes(raw)

    # What operators and links say.

    def policy(self) -> dict[str, Any]:
        """As the console takes it, by the names of a policy's fields. It concerns nobody else's queues."""
        rng = self.rng
        definition: dict[str, Any] = {}
        for name in rng.sample(ARGUMENTS, rng.choice((0, 1, 2, 3))):
            key = name.removeprefix("x-")
            definition[key] = rng.choice(SENSIBLE.get(name, ("k" * 256,))) if rng.random() < 0.6 else self.json()
        if rng.random() < 0.3:
            definition["dead-letter-routing-key"] = rng.choice(("k", "k" * 255, "k" * 256))
            definition["dead-letter-exchange"] = self._graves
        return {
            "name": rng.choice(("p", "p" * 256, "", "q\udcff", "\ud800")),
            "pattern": rng.choice((f"^{PREFIX}", f"^{PREFIX}", "(", "[", "(" * 600 + ")" * 600, f"^{PREFIX}-[12]$")),
            "definition": definition,
            "apply_to": rng.choice(("all", "queues", "exchanges", "nobody")),
            "priority": rng.choice((0, 1, *NUMBERS, *BEYOND)),
        }

    def json(self) -> Any:
        """Any value that JSON has."""
        return self.rng.choice((None, True, 1.5, "t", "k" * 256, "\ud800", [], {}, [[]], *NUMBERS, *BEYOND))

    def definitions(self) -> dict[str, Any]:
        """A document of one vhost, as somebody might import it."""

        def shapes(*makes: Callable[[], dict[str, Any]]) -> Any:
            found = [self._twisted(make()) for make in makes for _ in range(self.rng.choice((0, 1, 3)))]
            return found if self.rng.random() < 0.97 else self.json()

        def named() -> dict[str, Any]:
            arguments = self.json() if self.rng.random() < 0.1 else self._packed()
            name = self.name() if self.rng.random() < 0.9 else self.long_name()
            return {"name": name, "arguments": arguments, "durable": True, "auto_delete": False}

        def exchange() -> dict[str, Any]:
            return named() | {"type": self.rng.choice(("topic", "headers", "direct", "nonsense")), "internal": False}

        def binding() -> dict[str, Any]:
            return {
                "source": self.name(), "destination": self.name(), "destination_type": "queue",
                "routing_key": self.text(), "arguments": self._packed(),
            }  # fmt: skip

        def policy() -> dict[str, Any]:
            found = self.policy()
            return found | {"apply-to": found.pop("apply_to")}

        return {
            "queues": shapes(named), "exchanges": shapes(exchange), "bindings": shapes(binding),
            "policies": shapes(policy),
        }  # fmt: skip

    def _twisted(self, shape: dict[str, Any]) -> dict[str, Any]:
        """Now and then one thing of it is another one."""
        if self.rng.random() < 0.2:
            shape[self.rng.choice(sorted(shape))] = self.json()
        return shape

    def lease(self) -> dict[str, Any]:
        rng = self.rng
        said: dict[str, Any] = {
            "do": rng.choice(("acquire", "acquire", "retire", "release", "take", "end", "steal", None)),
            "name": rng.choice(("l", "l", "m", "", "l" * 256, "\ud800", 7)),
            "user": "sim",
            "session": rng.choice(("s", "s", None, "t" * 300, 5)),
        }
        for name in rng.sample(("rows", "bytes", "after", "first", "last", "upto", "id", "operator"), 3):
            said[name] = rng.choice((0, 1, 3, True, *NUMBERS, self.json()))
        return said

    def step(self) -> bytes:
        """Of a link: a step that could be one, or that cannot."""
        rng = self.rng
        said: dict[str, Any] = {
            "do": rng.choice(
                ("begin", "begin", "begin", "enqueue", "enqueue", "present", "remove", "list", "end", "x")
            ),
            "source": rng.choice(("s", "s", "\ud800", "s" * 5000, 7)) if rng.random() < 0.2 else "s",
            "queue": rng.choice((self.name(), self.long_name(), "", "amq.x", "bad\ud800", 5))
            if rng.random() < 0.3
            else rng.choice((f"{PREFIX}-r1", f"{PREFIX}-r2")),
            "session": "s" if rng.random() < 0.9 else self.json(),
            "incarnation": rng.choice((1, 1, 2)) if rng.random() < 0.8 else self.json(),
            "auto_delete": False if rng.random() < 0.8 else self.json(),
            "arguments": self._packed(),
            "after": rng.choice((0, "", *NUMBERS)),
            "ranges": rng.choice(([[1, 5]], [[1, 2**62 - 1]], [[5, 1]], [[0, 0]], 5, [[]], [["a", "b"]], [[1, 2**63]])),
        }
        if rng.random() < 0.1:
            said["x"] = None
        text = json.dumps(said).encode()
        if rng.random() < 0.05:
            text = text[:-1] + b',"d":' + b"[" * 5000 + b"]" * 5000 + b"}"
        parts: list[Any] = [text]
        if said["do"] == "enqueue":
            first = rng.choice((1, 2, 9, 2**32, 2**62 - 2, 2**63, 2**64 - 2))
            count = rng.choice((1, 1, 2))
            said["count"] = count if rng.random() < 0.9 else rng.choice((0, 2**40, -1, 2**64))
            parts = [json.dumps(said).encode(), struct.pack(f">{count}Q", *range(first, first + count))]
            encode_messages([self._message() for _ in range(count)], parts)
        data = struct.pack(">I", len(parts[0])) + b"".join(parts)
        if rng.random() < 0.1:
            at = rng.randrange(len(data))
            data = data[:at] + bytes((rng.randrange(256),)) + data[at + 1 :]
        return data

    def _packed(self) -> Any:
        rng = self.rng
        packed: dict[str, Any] = {}
        if rng.random() < 0.7:
            name = rng.choice(ARGUMENTS)
            packed[name] = rng.choice(SENSIBLE[name]) if name in SENSIBLE and rng.random() < 0.4 else self.json()
        if rng.random() < 0.3:
            strange = ({"!decimal": "nonsense"}, {"!bytes": 5}, {"!time": 1e300}, {"!time": "x"}, {"!far": -1}, 2**70)
            packed["a"] = rng.choice(strange)
        if rng.random() < 0.2:
            packed |= {"x-dead-letter-exchange": self._graves, "x-dead-letter-routing-key": "k" * 256}
        return packed if rng.random() < 0.95 else self.json()

    def _message(self) -> Message:
        one = make_message("", "k", b"bad|", Properties(delivery_mode=2))
        if self.rng.random() < 0.2:
            one.header = self.header(4)
        if self.rng.random() < 0.1:
            one.ttl = self.rng.choice((2**62, 5))
        if self.rng.random() < 0.05:
            one.header = one.body = b""
        return one


def complaints(broker: Broker) -> Iterator[str]:
    """What a broker has that it should not have let in."""
    for vhost in broker.vhosts.values():
        for name, queue in vhost.queues.items():
            texts = (name, queue.limits.dead_key or "", queue.limits.dead_exchange or "", queue.spec.last_value_key)
            if not name or any(_bytes(text) > 255 for text in texts):
                yield f"queue {name!r} has a name, or a name among its limits, that cannot be written"
            if not 0 <= (queue.limits.ttl or 0) < 2**32 or queue.next_position >= 2**63:
                yield f"queue {name!r} has limits or positions that make no sense"
            yield from _unwritable(f"queue {name!r}", queue.spec.arguments)
            if name.startswith(LEVELS[-1]) and queue.counters.enqueued:
                yield f"queue {name!r} has letters of letters, of which there is no end in one step"
            if queue.counters.unwritable:
                yield f"a dead letter of queue {name!r} could not be written"
            replica = queue.replica
            if replica is not None and (type(replica.incarnation) is not int or _bytes(replica.session) > 255):
                yield f"queue {name!r} follows one that cannot be"
        if vhost.gone.unwritable:
            yield "a dead letter of a queue that is gone could not be written"
        for binding in vhost.bindings():
            if _bytes(binding.key) > 255:
                yield f"a binding has the key {binding.key!r}"
            yield from _unwritable("a binding", binding.arguments)
        for name in (*vhost.exchanges, *vhost.policies, *vhost.operator_policies):
            if not 0 < _bytes(name) <= 255:
                yield f"an exchange, or a policy, is called {name!r}"


def _bytes(text: str) -> int:
    try:
        return len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return 256


def _unwritable(what: str, arguments: Any) -> Iterator[str]:
    try:
        encode_table(arguments)
    except (ProtocolError, ValueError, TypeError, struct.error) as error:
        yield f"{what} has arguments that cannot be written: {error}"
