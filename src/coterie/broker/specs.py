"""What an exchange, a queue or a binding is declared as: checked when it is made, and unchanged for its whole life."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.broker import arguments, validation
from coterie.broker.arguments import Arguments
from coterie.errors import ProtocolError

DIRECT: Final = "direct"
TOPIC: Final = "topic"
FANOUT: Final = "fanout"
HEADERS: Final = "headers"
REPLICATION: Final = "x-replication"
REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""The pseudo-queue of direct replies: consumed from, and named in reply_to."""
EXCHANGE_KINDS: Final = (DIRECT, FANOUT, HEADERS, TOPIC, REPLICATION)

Destination = Literal["queue", "exchange"]


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue's declaration. `check` raises ProtocolError 406 for what no queue can be."""

    durable: bool = False
    auto_delete: bool = False
    exclusive: bool = False
    """For the connection that declares it alone, and gone with it."""
    arguments: Arguments = field(default_factory=dict)

    def check(self, what: str) -> None:
        arguments.check_queue(self.arguments, self.durable, self.exclusive, self.auto_delete, what)

    def sound(self) -> tuple[QueueSpec, list[str]]:
        """As `arguments.sound` has it, of a queue that exists."""
        found, problems = arguments.sound(self.arguments, arguments.QUEUE_CHECKS)
        return (replace(self, arguments=found), problems) if problems else (self, problems)

    @property
    def kind(self) -> str:
        """fifo, ring, last-value or priority."""
        if arguments.MAX_PRIORITY in self.arguments:
            return "priority"
        if arguments.LAST_VALUE_KEY in self.arguments:
            return "last-value"
        return "ring" if self.arguments.get(arguments.OVERFLOW) == arguments.RING else "fifo"

    @property
    def max_priority(self) -> int:
        value = self.arguments.get(arguments.MAX_PRIORITY, 0)
        assert isinstance(value, int)
        return value

    @property
    def last_value_key(self) -> str:
        return str(self.arguments.get(arguments.LAST_VALUE_KEY, ""))

    @property
    def single_active(self) -> bool:
        return self.arguments.get(arguments.SINGLE_ACTIVE) is True

    @property
    def replicated(self) -> bool:
        """Whether a cluster keeps it on every node."""
        return arguments.replicated(self.arguments)


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    """An exchange's declaration."""

    name: str
    kind: str = DIRECT
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    """Only other exchanges may send to it."""
    arguments: Arguments = field(default_factory=dict)

    def check(self, what: str) -> None:
        arguments.check_values(self.arguments, arguments.EXCHANGE_CHECKS, what)
        if self.kind == REPLICATION and arguments.ALTERNATE in self.arguments:
            text = f"invalid arg '{arguments.ALTERNATE}' for {what}: each step that comes to it names its queue"
            raise ProtocolError(PRECONDITION_FAILED, text)

    def sound(self) -> tuple[ExchangeSpec, list[str]]:
        """As `arguments.sound` has it, of an exchange that exists."""
        found, problems = arguments.sound(self.arguments, arguments.EXCHANGE_CHECKS)
        return (replace(self, arguments=found), problems) if problems else (self, problems)

    @property
    def replicated(self) -> bool:
        return arguments.replicated(self.arguments)


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a queue or to another exchange."""

    source: str
    kind: Destination
    destination: str
    key: str = ""
    arguments: Arguments = field(default_factory=dict)

    def check(self) -> None:
        """Raises ProtocolError 406 for what no binding can be."""
        for what, text in (("source", self.source), ("destination", self.destination), ("routing key", self.key)):
            validation.refuse(validation.short_text(text), f"{what} of a binding")
        validation.refuse(validation.table(self.arguments), "arguments for a binding")
