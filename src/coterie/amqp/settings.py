"""The settings of the AMQP front door: every limit has one, with a default, a unit and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coterie.settings import setting

PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"
MECHANISMS: Final = (PLAIN, AMQPLAIN, EXTERNAL)


@dataclass(frozen=True, slots=True)
class AmqpSettings:
    """What clients may do, and how much of it at a time."""

    frame_max: int = setting(131_072, "largest frame that either side may send", unit="bytes", minimum=4096)
    channel_max: int = setting(2047, "channels that a connection may have", minimum=1)
    heartbeat: int = setting(
        60, "silence after which a side shows that it is alive, as offered to clients; 0: never", unit="s", minimum=0
    )
    message_max: int = setting(128 << 20, "largest body of a message", unit="bytes", minimum=0)
    consumer_timeout: float = setting(
        1800.0, "time that a client has to settle a delivery; then its channel is closed (406); 0: any time",
        unit="s", minimum=0,
    )  # fmt: skip
    consumers_max: int = setting(10_000, "consumers that a channel may have", minimum=1)
    connections_max: int = setting(20_000, "open connections", minimum=1)
    handshakes_max: int = setting(
        1_000, "connections that are being opened; one more closes the oldest silent one of the address with most",
        minimum=1,
    )  # fmt: skip
    address_handshakes_max: int = setting(
        500, "those of one address, or IPv6 network of 64 bits; one more closes the oldest silent one", minimum=1
    )
    handshake_timeout: float = setting(10.0, "time that a client has to open its connection", unit="s", minimum=0.1)
    close_timeout: float = setting(
        5.0, "time that a client has to answer a close, or to end when its own is answered", unit="s", minimum=0.1
    )
    write_high: int = setting(
        1 << 20,
        "bytes that may wait for a slow client; while there are more, nothing is delivered to it",
        unit="bytes",
        minimum=4096,
    )
    turn_work: int = setting(
        10_000, "copies of messages for queues, and steps on the way to them, that one connection has the broker make "
        "before it is the turn of others", minimum=1,
    )  # fmt: skip
    publish_window: int = setting(
        16 << 20,
        "bodies that a connection published and that are not safe yet, and 256 for each copy; while there are more, it "
        "is not read",
        unit="bytes",
        minimum=1,
    )
    partial_max: int = setting(
        256 << 20, "bodies of a connection's messages that have not come completely", unit="bytes", minimum=1
    )
    backlog_max: int = setting(
        1 << 20,
        "frames of a channel behind a command that is being decided; while there are more, it is not read",
        unit="bytes",
        minimum=1,
    )
    transaction_max: int = setting(
        128 << 20,
        "bodies that a transaction may publish before it is committed, and 256 for each copy",
        unit="bytes",
        minimum=1,
    )
    mechanisms: tuple[str, ...] = setting(
        MECHANISMS, "ways of logging in that clients are offered; EXTERNAL only to those with a certificate"
    )
    certificate_name: str = setting(
        "common_name",
        "which part of a client's certificate is the name of its user",
        choices=("common_name", "distinguished_name"),
    )
