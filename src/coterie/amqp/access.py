"""What a user may do with queues and exchanges, and how a refusal reads."""

from __future__ import annotations

from typing import Literal

from coterie.amqp.wire.codes import ACCESS_REFUSED
from coterie.broker.users import User
from coterie.broker.vhost import Vhost
from coterie.errors import ProtocolError

Permission = Literal["configure", "write", "read"]
Resource = Literal["queue", "exchange"]
TOPIC = "topic"
DEFAULT_EXCHANGE = "amq.default"
"""What the nameless exchange is called in permissions."""


def check(user: User, vhost: str, what: Permission, kind: Resource, name: str) -> None:
    """Raises ProtocolError 403 if the user may not."""
    if not user.may(vhost, what, DEFAULT_EXCHANGE if kind == "exchange" and not name else name):
        text = f"{what} access to {kind} '{name}' in vhost '{vhost}' refused for user '{user.name}'"
        raise ProtocolError(ACCESS_REFUSED, text)


def check_topic(user: User, vhost: Vhost, what: Permission, exchange: str, key: str) -> None:
    """The same for a routing key, if it is a topic exchange that is named and the user's keys are restricted."""
    found = vhost.exchanges.get(exchange)
    if found is None or found.spec.kind != TOPIC or user.may_topic(vhost.name, exchange, what, key):
        return
    where = f"in exchange '{exchange}' in vhost '{vhost.name}'"
    raise ProtocolError(ACCESS_REFUSED, f"{what} access to topic '{key}' {where} refused for user '{user.name}'")
