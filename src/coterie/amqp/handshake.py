"""How a connection is opened: protocol header, start, start-ok, tune, tune-ok, open, open-ok.

Refusals are RabbitMQ's: another protocol header is answered with ours and the end; a failed login with 403 if the
client says that it understands that, else with the end; what cannot be agreed on, and a vhost that is not the user's,
with 530.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import coterie
from coterie.amqp.settings import EXTERNAL
from coterie.amqp.wire.codes import CHANNEL_ERROR, COMMAND_INVALID, FRAME_MIN, NOT_ALLOWED, PROTOCOL_HEADER
from coterie.amqp.wire.methods import Call
from coterie.amqp.wire.tables import Table
from coterie.auditlog.log import REFUSED
from coterie.broker.users import User, claimed_name
from coterie.errors import ProtocolError
from coterie.logs import Log

if TYPE_CHECKING:
    from coterie.amqp.connection import Connection

log = Log(__name__)

LOCALE: Final = "en_US"
FRAME_MAX: Final = 8192
"""Before another size is agreed on."""
CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
"""What clients look for before they use it."""
_OLD_HEADER: Final = b"AMQP\x01\x01\x00\x09"
"""Of 0-9, which differs in nothing that matters."""


class Handshake:
    """One connection's, from its first byte to its opening."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._begun = b""
        self._expects: str | None = None
        """The method that must come next."""

    def header(self, data: bytes) -> bytes | None:
        """What follows the protocol header, once it has come."""
        self._begun += data
        if len(self._begun) < len(PROTOCOL_HEADER):
            return None
        header, rest = self._begun[:8], self._begun[8:]
        self._begun = b""
        if header not in (PROTOCOL_HEADER, _OLD_HEADER):
            self._connection.turn_away(f"it does not speak AMQP 0-9-1: {header!r}")
            return None
        self._start()
        return rest

    def method(self, call: Call) -> None:
        if call.method.name != self._expects:
            awaited = self._expects or "nothing"
            raise ProtocolError(CHANNEL_ERROR, f"unexpected method {call.method.name}: {awaited} is due")
        self._expects = None
        _STEPS[call.method.name](self, call)

    def _start(self) -> None:
        connection = self._connection
        properties: Table = {
            "product": "Coterie",
            "version": coterie.__version__,
            "platform": "Python",
            "information": "AMQP 0-9-1 with the extensions that the capabilities name",
            "cluster_name": connection.runtime.node,
            "capabilities": dict.fromkeys(CAPABILITIES, True),
        }
        self._expects = "connection.start-ok"
        connection.send(
            "connection.start",
            version_minor=9,
            server_properties=properties,
            mechanisms=" ".join(self._mechanisms()),
            locales=LOCALE,
        )

    def _mechanisms(self) -> list[str]:
        connection = self._connection
        offered = connection.settings.mechanisms
        return [name for name in offered if name != EXTERNAL or connection.certificate is not None]

    def on_start_ok(self, call: Call) -> None:
        connection = self._connection
        connection.meet(call.table("client_properties"))
        mechanism = call.text("mechanism")
        if mechanism not in self._mechanisms():
            raise ProtocolError(COMMAND_INVALID, f"unknown authentication mechanism '{mechanism}'")
        refusal = connection.server.refusal()
        if refusal is not None:  # a broker that is being updated knows no users: nobody's login has failed
            raise refusal
        # Checking a password takes its time, and is done elsewhere: what the client sends meanwhile waits.
        connection.throttle.pause("login")
        users, certificate, response = connection.users, connection.certificate, call.raw("response")

        def decided(result: User | ProtocolError) -> None:
            if isinstance(result, ProtocolError):
                name = claimed_name(mechanism, response, certificate)
                connection.record("login.refused", name, REFUSED, mechanism=mechanism)
            self._logged_in(result)

        users.login(mechanism, response, connection.peer, certificate, decided)

    def _logged_in(self, result: User | ProtocolError) -> None:
        connection = self._connection
        if connection.over:
            return
        if not isinstance(result, ProtocolError):
            connection.user = result
            self._expects = "connection.tune-ok"
            settings = connection.settings
            connection.send(
                "connection.tune",
                channel_max=settings.channel_max,
                frame_max=settings.frame_max,
                heartbeat=settings.heartbeat,
            )
            connection.throttle.resume("login")
            return
        refusal = connection.server.refusal()
        if refusal is not None:  # the users may have gone while the password was checked
            connection.fail(refusal)
        elif connection.can("authentication_failure_close"):
            connection.fail(result)
        else:
            log.info("login refused", client=connection.shown_name)
            connection.hang_up()

    def on_tune_ok(self, call: Call) -> None:
        connection, settings = self._connection, self._connection.settings
        frame_max, channel_max = call.number("frame_max"), call.number("channel_max")
        _agree("frame_max", frame_max, FRAME_MIN, settings.frame_max)
        _agree("channel_max", channel_max, 1, settings.channel_max)
        connection.tune(frame_max, channel_max, call.number("heartbeat"))
        self._expects = "connection.open"

    def on_open(self, call: Call) -> None:
        connection, name = self._connection, call.text("virtual_host")
        connection.server.rates.connect(connection, lambda: self._admit(name))

    def _admit(self, name: str) -> None:
        connection, user = self._connection, self._connection.user
        try:
            if user.expires is None and connection.users.get(user.name) is not user:  # deleted while it waited
                raise ProtocolError(NOT_ALLOWED, f"access to vhost '{name}' refused for user '{user.name}'")
            vhost = connection.server.admit(user, name)
        except ProtocolError as error:
            if error.reply_code == NOT_ALLOWED:
                connection.record_own("login.refused", REFUSED, str(error), of_vhost=name)
            raise
        connection.record_own("login.accepted", of_vhost=name)
        connection.open(vhost)
        connection.send("connection.open-ok")


def _agree(name: str, value: int, least: int, most: int) -> None:
    """Whether a client may ask for that; 0 would be no limit."""
    shown = f"negotiated {name} = {value}{'' if value else ' (no limit)'}"
    if value and value < least:
        raise ProtocolError(NOT_ALLOWED, f"{shown} is lower than the minimum allowed value ({least})")
    if not value or value > most:
        raise ProtocolError(NOT_ALLOWED, f"{shown} is higher than the maximum allowed value ({most})")


_STEPS: Final[dict[str, Callable[[Handshake, Call], None]]] = {
    "connection.start-ok": Handshake.on_start_ok,
    "connection.tune-ok": Handshake.on_tune_ok,
    "connection.open": Handshake.on_open,
}
