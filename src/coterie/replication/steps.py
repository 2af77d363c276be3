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

from coterie.amqp.properties import PREFIX, Properties, scan
from coterie.broker.message import Message, make_message
from coterie.cluster.wire import Malformed, Routes, decode_messages, encode_messages, read_json, read_positions
from coterie.errors import ProtocolError
from coterie.runtime.base import Buffer

EXCHANGE: Final = "coterie.replication"
"""Where a link publishes to; it declares it."""
BEGIN, PRESENT, ENQUEUE, REMOVE, LIST, END = "begin", "present", "enqueue", "remove", "list", "end"
_NEEDS: Final[dict[str, dict[str, type]]] = {
    BEGIN: {"queue": str, "incarnation": int, "session": str, "auto_delete": bool, "arguments": dict},
    PRESENT: {"queue": str, "session": str, "after": int},
    ENQUEUE: {"queue": str, "session": str, "count": int},
    REMOVE: {"queue": str, "session": str, "ranges": list},
    LIST: {"after": str},
    END: {"queue": str, "incarnation": int},
}
_SIZE = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
NUMBER_MAX: Final = 2**63

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


def decode(data: Buffer, routes: Routes) -> Step:
    """Raises Malformed for whatever is no step: it may come from anybody who may publish here."""
    view = memoryview(data)
    try:
        (size,) = _SIZE.unpack_from(view)
        at = _SIZE.size + size
        said = read_json(bytes(view[_SIZE.size : at]))
        step = Step(said["do"], said["source"], said)
        _check(step)
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
    if not isinstance(step.source, str) or step.do not in _NEEDS:
        raise Malformed("no step of a replication")
    for name, kind in _NEEDS[step.do].items():
        value: object = step.said[name]
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value < NUMBER_MAX):
            raise Malformed(f"'{step.do}' with a wrong {name}")
    for pair in step.said.get("ranges", ()):
        first, last = pair
        if type(first) is not int or type(last) is not int or not 0 < first <= last < NUMBER_MAX:
            raise Malformed("a range of positions that is none")


def _check_messages(step: Step) -> None:
    """Nothing of it is looked at any more before a client gets it."""
    before = 0
    for position in step.positions:
        if not before < position < NUMBER_MAX:
            raise Malformed("positions that do not rise")
        before = position
    if len(step.messages) != len(step.positions):
        raise Malformed("as many positions as messages are due")
    header = b""
    for message in step.messages:
        if message.header is not header:
            header = message.header
            scan(header)
        if int.from_bytes(header[4:PREFIX], "big") != len(message.body):
            raise Malformed("a header that belongs to another body")
