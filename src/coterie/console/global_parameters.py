"""Global parameters: named values that mean nothing to the broker. It keeps them for whoever set them, on every node of
a cluster, over restarts, and in definitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coterie.broker.broker import Broker
from coterie.console.listing import Shape
from coterie.console.tables import checked_text, checked_value
from coterie.errors import ProtocolError, UserError

KIND: Final = "global-parameter"
"""Of its records."""
NAME_MAX: Final = 255
COUNT_MAX: Final = 1000
"""That are kept."""


def shapes(broker: Broker) -> list[Shape]:
    found = sorted(key for kind, key in broker.records if kind == KIND)
    return [{"name": name, "value": value_of(broker, name)} for name in found]


def is_there(broker: Broker, name: str) -> bool:
    return (KIND, name) in broker.records


def value_of(broker: Broker, name: str) -> object:
    return broker.records[KIND, name]["value"]


def check(name: object, value: object) -> tuple[str, object]:
    """Raises UserError for what cannot be one."""
    text = checked_text("name", name)
    if not text or len(text.encode("utf-8", "surrogateescape")) > NAME_MAX:
        raise UserError(f"the name of a global parameter has 1 to {NAME_MAX} bytes")
    return text, checked_value("value", value)


def put(broker: Broker, name: str, value: object, done: Callable[[ProtocolError | UserError | None], None]) -> None:
    if not is_there(broker, name) and len(shapes(broker)) >= COUNT_MAX:
        done(UserError(f"there are {COUNT_MAX} global parameters already"))
        return
    _keep(broker, name, {"value": value}, done)


def delete(broker: Broker, name: str, done: Callable[[ProtocolError | UserError | None], None]) -> None:
    _keep(broker, name, None, done)


def _keep(
    broker: Broker,
    name: str,
    record: dict[str, object] | None,
    done: Callable[[ProtocolError | UserError | None], None],
) -> None:
    def decided(kept: bool | ProtocolError) -> None:
        if isinstance(kept, ProtocolError):
            done(kept)
        elif kept:
            done(None)
        else:
            done(
                UserError(f"the global parameter '{name}' was changed by somebody else meanwhile: look, and try again")
            )

    broker.keep_record(KIND, name, record, broker.records.get((KIND, name)), decided)
