"""What a link tells the broker that its queues are replicated to: steps, each the body of one message.

    begin    a session for one queue: from now on this link alone speaks for it; the answer says what is there
    present  more of that answer: which positions of the source are there, behind one that is known
    enqueue  messages with their positions at the source
    remove   ranges of positions that have left the source
    list     the queues that follow this source
    end      the source has deleted its queue

A step is the size of a JSON object, the object, and, for `enqueue`, the positions and the messages as events of a
cluster carry them. In a cluster the same bytes are the event, and every broker takes the step in its place of the log.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from coterie.amqp.wire.properties import PREFIX, Properties, scan
from coterie.broker import validation
from coterie.broker.arguments import QUEUE_CHECKS, Arguments, check_values
from coterie.broker.message import Message, make_message, parse_ttl, route_bytes
from coterie.broker.message_codec import Malformed, Routes, decode_messages, encode_messages, read_json, read_positions
from coterie.broker.records import unpack
from coterie.errors import ProtocolError
from coterie.runtime.base import Buffer

EXCHANGE: Final = "coterie.replication"
"""Where a link publishes to; it declares it."""
BEGIN, PRESENT, ENQUEUE, REMOVE, LIST, END = "begin", "present", "enqueue", "remove", "list", "end"
_SIZE = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
NUMBER_MAX: Final = 2**62
"""Numbers and positions are below it: so there is room behind each of them."""
SOURCE_MAX: Final = 1_000
RANGES_MAX: Final = 10_000
"""In one step: a link sends a fifth of it."""


def _table(value: object) -> str:
    """As JSON; what it stands for is looked at by `_arguments`."""
    return "" if isinstance(value, dict) else "a table is due"


def _ranges(value: object) -> str:
    if not isinstance(value, list) or len(value) > RANGES_MAX:
        return f"a list of at most {RANGES_MAX} is due"
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or any(map(_POSITION, pair)) or not 0 < pair[0] <= pair[1]:
            return "a range of positions that is none"
    return ""


INCARNATION_MAX: Final = 2**64
_POSITION: Final = validation.Whole(0, NUMBER_MAX - 1)
_INCARNATION: Final = validation.Whole(0, INCARNATION_MAX - 1)
_NEEDS: Final[dict[str, dict[str, validation.Check]]] = {
    BEGIN: {
        "queue": validation.name, "incarnation": _INCARNATION, "session": validation.short_text,
        "auto_delete": validation.flag, "arguments": _table,
    },
    PRESENT: {"queue": validation.name, "session": validation.short_text, "after": _POSITION},
    ENQUEUE: {"queue": validation.name, "session": validation.short_text, "count": _POSITION},
    REMOVE: {"queue": validation.name, "session": validation.short_text, "ranges": _ranges},
    LIST: {"after": validation.short_text},
    END: {"queue": validation.name, "incarnation": _INCARNATION},
}  # fmt: skip
"""What each step says, and how that is checked."""

Answer = dict[str, Any]
"""A JSON object; `error` says why a step was not taken."""


@dataclass(slots=True)
class Step:
    """One of them."""

    do: str
    source: str
    """The identity of the broker, or cluster, that the link belongs to, and the vhost there."""
    said: dict[str, Any]
    positions: Sequence[int] = ()
    messages: list[Message] = field(default_factory=list)
    arguments: Arguments = field(default_factory=dict)
    """Of the queue, if it is to begin."""

    @property
    def queue(self) -> str:
        """Its name, which is the same on both sides."""
        return str(self.said["queue"])

    @property
    def session(self) -> str:
        return str(self.said["session"])


def encode(
    do: str,
    source: str,
    said: Mapping[str, object],
    positions: Sequence[int] = (),
    messages: Sequence[Message] = (),
) -> bytes:
    if positions:
        said = {**said, "count": len(positions)}
    text = json.dumps({"do": do, "source": source, **said}, separators=(",", ":")).encode()
    parts: list[Buffer] = [_SIZE.pack(len(text)), text]
    if positions:
        parts += [_NUMBER.pack(position) for position in positions]
        encode_messages(messages, parts)
    return b"".join(parts)


def decode(data: Buffer, routes: Routes, whole: bool = True) -> Step:
    """Raises Malformed for whatever is no step: it may come from anybody who may publish here. Not `whole`: without its
    messages, which nobody has looked at then."""
    view = memoryview(data)
    try:
        (size,) = _SIZE.unpack_from(view)
        at = _SIZE.size + size
        said = read_json(bytes(view[_SIZE.size : at]))
        step = Step(said["do"], said["source"], said)
        _check(step)
        if not whole:
            return step
        if step.do == ENQUEUE:
            stop = at + 8 * said["count"]
            step.positions = read_positions(view[at:stop])
            step.messages = decode_messages(view, stop, len(view), routes)
            _check_messages(step)
        elif at != len(view):
            raise Malformed("there is something behind the step")
    except Malformed:
        raise
    except (struct.error, ValueError, KeyError, TypeError, IndexError, OverflowError, ProtocolError) as error:
        raise Malformed(f"no step of a replication: {error!r}") from None
    return step


def answered(asked: Properties, answer: Answer) -> Message:
    """The answer as the message that its link waits for."""
    body = json.dumps(answer, separators=(",", ":")).encode()
    return make_message("", asked.reply_to or "", body, Properties(correlation_id=asked.correlation_id))


def _check(step: Step) -> None:
    if not isinstance(step.do, str) or step.do not in _NEEDS:
        raise Malformed("no step of a replication")
    if validation.text(step.source) or len(step.source) > SOURCE_MAX:
        raise Malformed(f"'{step.do}' of a source that is none")
    for name, check in _NEEDS[step.do].items():
        wrong = check(step.said[name])
        if wrong:
            raise Malformed(f"'{step.do}' with a wrong {name}: {wrong}")
    if step.do == BEGIN:
        step.arguments = _arguments(step)


def _arguments(step: Step) -> Arguments:
    """Of the queue that is to follow. They are checked here, and once more with the queue's other properties, when it
    is declared. Raises Malformed."""
    try:
        arguments = unpack(step.said["arguments"])
    except ValueError as error:
        raise Malformed(f"'{step.do}' with arguments that make no sense: {error}") from None
    if not isinstance(arguments, dict):
        raise Malformed(f"'{step.do}' with arguments that are no table")
    check_values(arguments, QUEUE_CHECKS, f"queue '{step.queue}'")
    return arguments


def _check_messages(step: Step) -> None:
    """Nothing of it is looked at any more before a client gets it."""
    before = 0
    for position in step.positions:
        if not before < position < NUMBER_MAX:
            raise Malformed("positions that do not rise")
        before = position
    if len(step.messages) != len(step.positions):
        raise Malformed("as many positions as messages are due")
    header: bytes | None = None
    for message in step.messages:
        if message.header is not header:
            header = message.header
            _, priority, expiration, _, _ = scan(header)
            if (message.priority, message.ttl) != (priority, parse_ttl(expiration)):
                raise Malformed("a message that says otherwise than its header")
            if message.route != route_bytes(message.exchange, message.key):
                raise Malformed("a route that is none")
        if int.from_bytes(header[4:PREFIX], "big") != len(message.body):
            raise Malformed("a header that belongs to another body")
