"""Every method of AMQP 0-9-1 and of RabbitMQ's extensions to it, from one table.

    Declare = METHODS["queue.declare"]; Declare.encode(queue="jobs", durable=True, ...); decode(payload) -> Method

A method's arguments are read into a `Call`: the method and its arguments by name. The three that are sent and received
by the hundred thousand (publish, deliver, ack) have their own paths in publishing.py and delivering.py, which read and
write the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from coterie.amqp.wire.codes import COMMAND_INVALID, FRAME_ERROR, FRAME_METHOD
from coterie.amqp.wire.tables import Table, Value, decode_table, encode_table, long, read_long, read_short, short
from coterie.errors import ProtocolError
from coterie.runtime.base import Buffer

_U8, _U16, _U32, _U64 = (struct.Struct(f">{code}") for code in "BHIQ")
_FIXED: Final = {"octet": _U8, "short": _U16, "long": _U32, "longlong": _U64}
_FRAME = struct.Struct(">BHI")


@dataclass(slots=True)
class Call:
    """A method with its arguments."""

    method: Method
    arguments: dict[str, Value]

    def text(self, name: str) -> str:
        value = self.arguments[name]
        assert isinstance(value, str)
        return value

    def name(self, name: str) -> str:
        """The name of a queue or an exchange, without the line ends that RabbitMQ takes out of them."""
        return self.text(name).replace("\r", "").replace("\n", "")

    def number(self, name: str) -> int:
        value = self.arguments[name]
        assert isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        return bool(self.arguments[name])

    def table(self, name: str) -> Table:
        value = self.arguments[name]
        assert isinstance(value, dict)
        return value

    def raw(self, name: str) -> bytes:
        value = self.arguments[name]
        assert isinstance(value, bytes)
        return value


@dataclass(frozen=True, slots=True)
class Method:
    """Its name, its numbers and its arguments in their order."""

    name: str
    class_id: int
    method_id: int
    fields: tuple[tuple[str, str], ...]
    """Type and name of each; bits that follow each other share an octet."""
    prefix: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", struct.pack(">HH", self.class_id, self.method_id))

    def encode(self, **arguments: Value) -> bytes:
        """The payload of a method frame. What is not given is empty, 0 or false."""
        out, bits, used = [self.prefix], 0, 0
        for kind, name in self.fields:
            value = arguments.get(name)
            if kind == "bit":
                bits |= bool(value) << used
                used += 1
                continue
            if used:
                out.append(bytes((bits,)))
                bits = used = 0
            out.append(_write(kind, value))
        if used:
            out.append(bytes((bits,)))
        return b"".join(out)

    def frame(self, channel: int, **arguments: Value) -> bytes:
        payload = self.encode(**arguments)
        return b"".join((_FRAME.pack(FRAME_METHOD, channel, len(payload)), payload, b"\xce"))

    def decode(self, payload: Buffer) -> Call:
        """Raises ProtocolError 501 if the payload is not what the method's should be, 502 if a table in it is none."""
        at, bit = 4, 8
        arguments: dict[str, Value] = {}
        try:
            for kind, name in self.fields:
                if kind == "bit":
                    if bit == 8:
                        bits, bit, at = payload[at], 0, at + 1
                    arguments[name] = bool(bits >> bit & 1)
                    bit += 1
                else:
                    bit = 8
                    arguments[name], at = _read(kind, payload, at)
        except (struct.error, IndexError):
            raise ProtocolError(FRAME_ERROR, f"cannot decode {self.name}: it ends too early") from None
        if at != len(payload):
            raise ProtocolError(FRAME_ERROR, f"cannot decode {self.name}: there is something behind it")
        return Call(self, arguments)


def decode(payload: Buffer) -> Call:
    """Any method. Raises ProtocolError 503 for one that does not exist."""
    if len(payload) < 4:
        raise ProtocolError(FRAME_ERROR, "a method frame without a method")
    method = _BY_PREFIX.get(bytes(payload[:4]))
    if method is None:
        class_id, method_id = struct.unpack_from(">HH", payload)
        raise ProtocolError(COMMAND_INVALID, f"there is no method {method_id} of class {class_id}")
    return method.decode(payload)


def _write(kind: str, value: Value) -> bytes:
    if kind in _FIXED:
        return _FIXED[kind].pack(value or 0)
    if kind == "shortstr":
        return short(value if isinstance(value, str) else "")
    if kind == "longstr":
        return long(value if isinstance(value, str | bytes) else b"")
    return encode_table(value if isinstance(value, Mapping) else {})


def _read(kind: str, payload: Buffer, at: int) -> tuple[Value, int]:
    form = _FIXED.get(kind)
    if form is not None:
        return form.unpack_from(payload, at)[0], at + form.size
    if kind == "shortstr":
        return read_short(payload, at)
    if kind == "longstr":
        return read_long(payload, at)
    return decode_table(payload, at)


_TABLE: Final[Mapping[str, Mapping[str, str]]] = {
    "connection 10": {
        "start 10": "octet version_major, octet version_minor, table server_properties, longstr mechanisms, "
        "longstr locales",
        "start-ok 11": "table client_properties, shortstr mechanism, longstr response, shortstr locale",
        "secure 20": "longstr challenge",
        "secure-ok 21": "longstr response",
        "tune 30": "short channel_max, long frame_max, short heartbeat",
        "tune-ok 31": "short channel_max, long frame_max, short heartbeat",
        "open 40": "shortstr virtual_host, shortstr reserved_1, bit reserved_2",
        "open-ok 41": "shortstr reserved_1",
        "close 50": "short reply_code, shortstr reply_text, short class_id, short method_id",
        "close-ok 51": "",
        "blocked 60": "shortstr reason",
        "unblocked 61": "",
        "update-secret 70": "longstr new_secret, shortstr reason",
        "update-secret-ok 71": "",
    },
    "channel 20": {
        "open 10": "shortstr reserved_1",
        "open-ok 11": "longstr reserved_1",
        "flow 20": "bit active",
        "flow-ok 21": "bit active",
        "close 40": "short reply_code, shortstr reply_text, short class_id, short method_id",
        "close-ok 41": "",
    },
    "access 30": {
        "request 10": "shortstr realm, bit exclusive, bit passive, bit active, bit write, bit read",
        "request-ok 11": "short ticket",
    },
    "exchange 40": {
        "declare 10": "short reserved_1, shortstr exchange, shortstr type, bit passive, bit durable, bit auto_delete, "
        "bit internal, bit no_wait, table arguments",
        "declare-ok 11": "",
        "delete 20": "short reserved_1, shortstr exchange, bit if_unused, bit no_wait",
        "delete-ok 21": "",
        "bind 30": "short reserved_1, shortstr destination, shortstr source, shortstr routing_key, bit no_wait, "
        "table arguments",
        "bind-ok 31": "",
        "unbind 40": "short reserved_1, shortstr destination, shortstr source, shortstr routing_key, bit no_wait, "
        "table arguments",
        "unbind-ok 51": "",
    },
    "queue 50": {
        "declare 10": "short reserved_1, shortstr queue, bit passive, bit durable, bit exclusive, bit auto_delete, "
        "bit no_wait, table arguments",
        "declare-ok 11": "shortstr queue, long message_count, long consumer_count",
        "bind 20": "short reserved_1, shortstr queue, shortstr exchange, shortstr routing_key, bit no_wait, "
        "table arguments",
        "bind-ok 21": "",
        "purge 30": "short reserved_1, shortstr queue, bit no_wait",
        "purge-ok 31": "long message_count",
        "delete 40": "short reserved_1, shortstr queue, bit if_unused, bit if_empty, bit no_wait",
        "delete-ok 41": "long message_count",
        "unbind 50": "short reserved_1, shortstr queue, shortstr exchange, shortstr routing_key, table arguments",
        "unbind-ok 51": "",
    },
    "basic 60": {
        "qos 10": "long prefetch_size, short prefetch_count, bit global",
        "qos-ok 11": "",
        "consume 20": "short reserved_1, shortstr queue, shortstr consumer_tag, bit no_local, bit no_ack, "
        "bit exclusive, bit no_wait, table arguments",
        "consume-ok 21": "shortstr consumer_tag",
        "cancel 30": "shortstr consumer_tag, bit no_wait",
        "cancel-ok 31": "shortstr consumer_tag",
        "publish 40": "short reserved_1, shortstr exchange, shortstr routing_key, bit mandatory, bit immediate",
        "return 50": "short reply_code, shortstr reply_text, shortstr exchange, shortstr routing_key",
        "deliver 60": "shortstr consumer_tag, longlong delivery_tag, bit redelivered, shortstr exchange, "
        "shortstr routing_key",
        "get 70": "short reserved_1, shortstr queue, bit no_ack",
        "get-ok 71": "longlong delivery_tag, bit redelivered, shortstr exchange, shortstr routing_key, "
        "long message_count",
        "get-empty 72": "shortstr reserved_1",
        "ack 80": "longlong delivery_tag, bit multiple",
        "reject 90": "longlong delivery_tag, bit requeue",
        "recover-async 100": "bit requeue",
        "recover 110": "bit requeue",
        "recover-ok 111": "",
        "nack 120": "longlong delivery_tag, bit multiple, bit requeue",
    },
    "confirm 85": {"select 10": "bit no_wait", "select-ok 11": ""},
    "tx 90": {
        "select 10": "",
        "select-ok 11": "",
        "commit 20": "",
        "commit-ok 21": "",
        "rollback 30": "",
        "rollback-ok 31": "",
    },
}  # fmt: skip


def _methods() -> dict[str, Method]:
    found = {}
    for class_name, methods in _TABLE.items():
        class_text, class_id = class_name.split()
        for method_name, spec in methods.items():
            method_text, method_id = method_name.split()
            names = [tuple(argument.split()) for argument in spec.split(", ") if argument]
            name = f"{class_text}.{method_text}"
            found[name] = Method(name, int(class_id), int(method_id), tuple((kind, name) for kind, name in names))
    return found


METHODS: Final = _methods()
"""By name: "queue.declare"."""
_BY_PREFIX: Final = {method.prefix: method for method in METHODS.values()}
