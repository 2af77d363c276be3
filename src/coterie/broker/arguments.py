"""The arguments of queues and exchanges: which are known, what they may be, and when two declarations are the same.

Types and values are checked as RabbitMQ checks them: a wrong one is refused with 406, an unknown one is kept and has no
meaning. A declaration of what exists already must agree in the known ones, or it is refused with 406.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.broker.validation import Check, Whole, flag, short_text, table, text, type_name
from coterie.errors import ProtocolError

Arguments = Mapping[str, object]

TTL: Final = "x-message-ttl"
EXPIRES: Final = "x-expires"
MAX_LENGTH: Final = "x-max-length"
MAX_BYTES: Final = "x-max-length-bytes"
OVERFLOW: Final = "x-overflow"
DEAD_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_KEY: Final = "x-dead-letter-routing-key"
MAX_PRIORITY: Final = "x-max-priority"
SINGLE_ACTIVE: Final = "x-single-active-consumer"
LAST_VALUE_KEY: Final = "x-last-value-key"
DELIVERY_LIMIT: Final = "x-delivery-limit"
DEDUPLICATE_LENGTH: Final = "x-deduplicate-length"
DEDUPLICATE_TTL: Final = "x-deduplicate-ttl"
QUEUE_TYPE: Final = "x-queue-type"
QUEUE_MODE: Final = "x-queue-mode"
REPLICATED: Final = "x-replicated"
QPID_REPLICATED: Final = "qpid.replicated"
ALTERNATE: Final = "alternate-exchange"

_SHOWN: Final = 60

DROP_HEAD: Final = "drop-head"
RING: Final = "ring"
REJECT: Final = "reject-publish"
REJECT_DEAD: Final = "reject-publish-dlx"
OVERFLOWS: Final = (DROP_HEAD, RING, REJECT, REJECT_DEAD)
QUEUE_TYPES: Final = ("classic", "quorum")

PRIORITY_MAX: Final = 255
MS_MAX: Final = 2**32 - 1
"""Milliseconds, as in RabbitMQ: seven weeks."""
IDS_MAX: Final = 100_000_000
"""Message ids that a queue may remember."""
DELIVERIES_MAX: Final = 2**31 - 1
"""Deliveries of one message that are worth counting."""
DEFAULTS: Final[Mapping[str, object]] = {"x-queue-type": "classic", "x-queue-mode": "default"}
"""Saying it is the same as not saying it."""


def _one_of(*words: str) -> Check:
    def check(value: object) -> str:
        wrong = text(value)
        return wrong or ("" if value in words else f"{value!r} is none of {', '.join(words)}")

    return check


def _replicated(value: object) -> str:
    if isinstance(value, bool) or value in ("true", "false"):
        return ""
    return f"true or false is due, not {value!r}" if isinstance(value, str) else flag(value)


QUEUE_CHECKS: Final[Mapping[str, Check]] = {
    TTL: Whole(0, MS_MAX),
    EXPIRES: Whole(1, MS_MAX),
    MAX_LENGTH: Whole(0),
    MAX_BYTES: Whole(0),
    OVERFLOW: _one_of(*OVERFLOWS),
    DEAD_EXCHANGE: short_text,
    DEAD_KEY: short_text,
    MAX_PRIORITY: Whole(0, PRIORITY_MAX),
    SINGLE_ACTIVE: flag,
    LAST_VALUE_KEY: short_text,
    DELIVERY_LIMIT: Whole(0, DELIVERIES_MAX),
    DEDUPLICATE_LENGTH: Whole(1, IDS_MAX),
    DEDUPLICATE_TTL: Whole(1, MS_MAX),
    QUEUE_TYPE: _one_of(*QUEUE_TYPES),
    QUEUE_MODE: _one_of("default", "lazy"),
    REPLICATED: _replicated,
    QPID_REPLICATED: _replicated,
}
EXCHANGE_CHECKS: Final[Mapping[str, Check]] = {
    ALTERNATE: short_text,
    REPLICATED: _replicated,
    QPID_REPLICATED: _replicated,
}


def check_values(arguments: Arguments, checks: Mapping[str, Check], what: str) -> None:
    """`what` names the thing, as in "queue 'q' in vhost '/'". Those that mean nothing must be such as can be kept."""
    for key, check in checks.items():
        if key in arguments:
            wrong = check(arguments[key])
            if wrong:
                raise ProtocolError(PRECONDITION_FAILED, f"invalid arg '{key}' for {what}: {wrong}")
    wrong = table(arguments)
    if wrong:
        raise ProtocolError(PRECONDITION_FAILED, f"invalid arguments for {what}: {wrong}")


def sound(arguments: Arguments, checks: Mapping[str, Check]) -> tuple[Arguments, list[str]]:
    """Of something that exists already, as an older version has let it in: the arguments that can be meant, and what is
    wrong with the others. A number out of its range is the nearest one in it; what else is wrong counts for nothing."""
    problems: list[str] = []
    found: dict[str, object] = {}
    for key, value in arguments.items():
        check = checks.get(key)
        wrong = short_text(key) or table({key: value}) or ("" if check is None else check(value))
        if wrong:
            problems.append(f"'{str(key)[:_SHOWN]}': {wrong}")
            if not (isinstance(check, Whole) and isinstance(value, int) and not isinstance(value, bool)):
                continue
            value = check.nearest(value)
        found[key] = value
    return (found, problems) if problems else (arguments, problems)


def check_queue(arguments: Arguments, durable: bool, exclusive: bool, auto_delete: bool, what: str) -> None:
    """Values, and what does not go together."""
    check_values(arguments, QUEUE_CHECKS, what)

    def refuse(name: str, why: str) -> None:
        raise ProtocolError(PRECONDITION_FAILED, f"invalid arg '{name}' for {what}: {why}")

    if DEAD_KEY in arguments and DEAD_EXCHANGE not in arguments:
        refuse(DEAD_KEY, f"it means nothing without {DEAD_EXCHANGE}")
    if arguments.get(OVERFLOW) == RING and MAX_LENGTH not in arguments and MAX_BYTES not in arguments:
        refuse(OVERFLOW, f"a ring has a size: {MAX_LENGTH} or {MAX_BYTES}")
    kinds = [name for name in (MAX_PRIORITY, LAST_VALUE_KEY) if name in arguments]
    if arguments.get(OVERFLOW) == RING:
        kinds.append(OVERFLOW)
    if len(kinds) > 1:
        refuse(kinds[0], f"a queue is of one kind, and {kinds[1]} asks for another one")
    if arguments.get(QUEUE_TYPE) == "quorum":
        for name, wrong in (("non-durable", not durable), ("exclusive", exclusive), ("auto-delete", auto_delete)):
            if wrong:
                raise ProtocolError(PRECONDITION_FAILED, f"invalid property '{name}' for {what}: a quorum queue is not")


def replicated(arguments: Arguments) -> bool:
    """Whether a cluster keeps it on every node: yes, unless its arguments say no."""
    return all(arguments.get(name, True) not in (False, "false") for name in (REPLICATED, QPID_REPLICATED))


def check_same(name: str, current: object, received: object, what: str) -> None:
    """A property of a declaration must be what it is already."""
    if current != received:
        now, new = (str(value).lower() for value in (current, received))
        raise ProtocolError(
            PRECONDITION_FAILED, f"inequivalent arg '{name}' for {what}: received '{new}' but current is '{now}'"
        )


def check_same_arguments(current: Arguments, received: Arguments, names: Iterable[str], what: str) -> None:
    """The known arguments of a declaration must be what they are already."""
    for name in names:
        default = DEFAULTS.get(name)
        now, new = current.get(name, default), received.get(name, default)
        if now != new or isinstance(now, bool) != isinstance(new, bool):
            raise ProtocolError(
                PRECONDITION_FAILED,
                f"inequivalent arg '{name}' for {what}: received {_said(new)} but current is {_said(now)}",
            )


def _said(value: object) -> str:
    return "none" if value is None else f"the value '{value}' of type '{type_name(value)}'"
