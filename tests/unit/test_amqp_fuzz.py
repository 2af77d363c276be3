"""Sessions of a client with bytes flipped, cut out, doubled and swapped, in great numbers: `make fuzz`.

Every input is one altered session. The frame reader either hands on well-formed frames or refuses with ProtocolError;
a live connection is closed properly or goes on; and a client beside it never notices.
"""

from __future__ import annotations

import random

from amqp_rig import Client, Rig, publish_frames

from coterie.amqp.wire.codes import FRAME_ERROR, NAMES
from coterie.amqp.wire.framing import FrameHandler, FrameReader, Repeat
from coterie.amqp.wire.methods import METHODS, decode
from coterie.amqp.wire.properties import Properties
from coterie.errors import ProtocolError

SESSION = [
    METHODS["queue.declare"].frame(1, queue="q", arguments={"x-max-priority": 3}),
    METHODS["queue.bind"].frame(
        1, queue="q", exchange="amq.topic", routing_key="a.#", arguments={"x": [1, {"y": b"z"}]}
    ),
    METHODS["basic.qos"].frame(1, prefetch_count=3),
    METHODS["basic.consume"].frame(1, queue="q", consumer_tag="t"),
    METHODS["confirm.select"].frame(2),
    publish_frames(2, "", "q", b"one", Properties(headers={"a": [1, {"b": "c"}]}, delivery_mode=2)),
    publish_frames(2, "", "q", b"one" * 20, Properties(delivery_mode=1)),
    publish_frames(2, "", "q", b"two" * 20, Properties(delivery_mode=1)),
    publish_frames(2, "amq.headers", "q", b"", Properties(headers={"a": 1})),
    METHODS["basic.ack"].frame(1, delivery_tag=1),
    METHODS["tx.select"].frame(1),
    METHODS["basic.nack"].frame(1, delivery_tag=0, multiple=True, requeue=True),
    METHODS["tx.commit"].frame(1),
    METHODS["basic.get"].frame(1, queue="q"),
    METHODS["queue.purge"].frame(1, queue="q"),
    METHODS["channel.close"].frame(2, reply_code=200, reply_text="ok"),
]
CONNECTION_SHARE = 50
"""One input in so many goes through a whole connection as well."""


def altered(rng: random.Random) -> bytes:
    """A session that somebody spoiled, here and there."""
    parts = list(SESSION)
    for _ in range(rng.choice((0, 0, 1, 2))):
        what, at = rng.randrange(4), rng.randrange(len(parts))
        if what == 0:
            del parts[at]
        elif what == 1:
            parts.insert(at, rng.choice(parts))
        elif what == 2:
            parts.insert(at, parts.pop(rng.randrange(len(parts))))
        else:
            parts.insert(at, rng.randbytes(rng.randrange(20)))
        parts = parts or list(SESSION)
    data = bytearray(b"".join(parts))
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(data))
        what = rng.randrange(5)
        if what == 0:
            data[at] = rng.randrange(256)
        elif what == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 2:
            del data[at : at + rng.randrange(1, 9)]
        elif what == 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            data[at : at + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\1"))
        if not data:
            data = bytearray(b"\0")
    return bytes(data)


class Reads(FrameHandler):
    """Decodes what it is handed, as a connection would."""

    def method(self, channel: int, payload: bytes) -> None:
        decode(payload)

    def header(self, channel: int, payload: bytes) -> None: ...

    def body(self, channel: int, payload: bytes) -> None: ...

    def publish(self, channel: int, method: bytes, header: bytes, body: bytes) -> Repeat | None:
        decode(method)
        return None

    def heartbeat(self, channel: int) -> None: ...


def feed(data: bytes, rng: random.Random) -> None:
    """Whatever else it raises than a ProtocolError with a code that clients know is a bug."""
    reader = FrameReader(Reads(), 4096)
    at = 0
    code = FRAME_ERROR
    try:
        while at < len(data):
            step = rng.choice((len(data), 1, 7, 64))
            reader.feed(data[at : at + step])
            at += step
    except ProtocolError as error:
        code = error.reply_code
    assert code in NAMES


def test_an_altered_session_fuzz_never_confuses_the_frame_reader(fuzz_rounds: int) -> None:
    rng = random.Random(f"frames {fuzz_rounds}")
    for _ in range(fuzz_rounds):
        feed(altered(rng), rng)


def test_an_altered_session_fuzz_is_closed_properly_and_disturbs_nobody(fuzz_rounds: int) -> None:
    rng = random.Random(f"connections {fuzz_rounds}")
    rig, other = Rig(), None
    for number in range(max(1, fuzz_rounds // CONNECTION_SHARE)):
        if number % 500 == 0:
            rig = Rig()
            other = rig.client()
        assert other is not None
        client = Client(rig).open(channels=2)
        client.raw(altered(rng))
        rig.run()
        closes = [each for each in client.heard() if each.name == "connection.close"]
        assert len(closes) <= 1
        client.gone()
        rig.run()
        assert not rig.world.unhandled
        assert len(rig.server.connections) == 1
        assert other.call(1, "queue.declare", queue="sound", exclusive=True).name == "queue.declare-ok"
