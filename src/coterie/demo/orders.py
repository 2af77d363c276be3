"""The books of numbered messages: what clients were promised, what they were given, and what contradicts that.

Every message is published once, so whatever comes twice was delivered twice. It may, if it is flagged as redelivered.
What was confirmed must come; what was acknowledged, and the acknowledgement committed, must not come again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Order:
    """One message."""

    sent: float
    node: int = 0
    """Where it was published."""
    confirmed: bool = False
    plain: int = 0
    """Deliveries without the flag."""
    flagged: int = 0
    settled: bool = False
    """Acknowledged, and the transaction of that is committed."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """What became of all of them."""

    published: int
    confirmed: int
    unconfirmed: int
    unconfirmed_consumed: int
    """Whose confirm was lost with a connection, and which were in the queue nevertheless."""
    consumed_once: int
    consumed_again: int
    """Came more than once, and was flagged."""
    lost: int
    late: int
    """Deliveries that a broker had sent before a fault, and that were read after the message was settled elsewhere."""


@dataclass
class Fault:
    """Something that was done to these brokers, and when deliveries came after it."""

    began: float
    nodes: frozenset[int]
    elsewhere: dict[int, float] = field(default_factory=dict)
    """By broker: seconds until the first delivery of a message that was published after the fault."""
    handed_over: float | None = None
    """Seconds until the first delivery, elsewhere, that is flagged."""


@dataclass
class Ledger:
    """Of all clients of a cluster together."""

    orders: dict[bytes, Order] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    fault: Fault | None = None
    """The last one."""
    confirmed: int = 0
    deliveries: int = 0
    late: int = 0

    def publish(self, body: bytes, now: float, node: int = 0) -> None:
        self.orders[body] = Order(now, node)

    def confirm(self, body: bytes) -> None:
        self.orders[body].confirmed = True
        self.confirmed += 1

    def deliver(self, body: bytes, flagged: bool, node: int, now: float, doubtful: bool = False) -> None:
        """Doubtful: something was done to that broker since the connection was opened. What comes on it may have been
        under way since before that, so that others may have had the message meanwhile."""
        order = self.orders.get(body)
        self.deliveries += 1
        if order is None:
            self.violations.append(f"{body!r}: nobody sent it")
            return
        again = order.plain + order.flagged > 0
        if order.settled and doubtful:
            self.late += 1
        elif order.settled:
            self.violations.append(f"{body!r}: came back after its ack was committed")
        if not flagged and (order.plain or (again and not doubtful)):
            self.violations.append(f"{body!r}: came again without the flag")
        if flagged:
            order.flagged += 1
        else:
            order.plain += 1
        fault = self.fault
        if fault is not None and node not in fault.nodes:
            if order.sent > fault.began:
                fault.elsewhere.setdefault(node, now - fault.began)
            if flagged and fault.handed_over is None:
                fault.handed_over = now - fault.began

    def settle(self, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            if body in self.orders:
                self.orders[body].settled = True

    def missing(self) -> list[bytes]:
        """Confirmed, and not consumed yet."""
        return [
            body for body, order in self.orders.items() if order.confirmed and not order.plain and not order.flagged
        ]

    def close(self) -> Accounts:
        """Nothing more comes: whatever was confirmed must have come."""
        lost = self.missing()
        self.violations += [f"{body!r}: was confirmed and is lost" for body in lost]
        orders = self.orders.values()
        seen = [order for order in orders if order.plain or order.flagged]
        unconfirmed = [order for order in orders if not order.confirmed]
        once = sum(order.plain + order.flagged == 1 for order in seen)
        return Accounts(
            published=len(self.orders),
            confirmed=len(self.orders) - len(unconfirmed),
            unconfirmed=len(unconfirmed),
            unconfirmed_consumed=sum(order.plain + order.flagged > 0 for order in unconfirmed),
            consumed_once=once,
            consumed_again=len(seen) - once,
            lost=len(lost),
            late=self.late,
        )
