"""An exchange to which the broker itself publishes (traces, the audit log). It is made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from coterie.errors import ProtocolError
from coterie.logs import Log

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.broker.specs import ExchangeSpec
    from coterie.broker.vhost import Vhost

VHOST: Final = "/"
"""Where such exchanges are."""
log = Log(__name__)


class OwnExchange:
    """`refused` is called if the exchange cannot be declared: one of that name and another type is there already."""

    def __init__(
        self, broker: Broker, serves: Callable[[], bool], spec: ExchangeSpec, refused: Callable[[], None]
    ) -> None:
        self._broker, self._serves, self._spec, self._refused = broker, serves, spec, refused
        self._declaring = False

    def audience(self) -> Vhost | None:
        """The vhost to publish in, if a queue is bound and the broker takes messages now."""
        if not self._serves() or self._broker.blocked:
            return None
        vhost = self._broker.vhosts.get(VHOST)
        if vhost is None:
            return None
        exchange = vhost.exchanges.get(self._spec.name)
        if exchange is None:
            self._declare(vhost)
            return None
        return vhost if exchange.bindings else None

    def _declare(self, vhost: Vhost) -> None:
        if self._declaring:
            return
        self._declaring = True

        def done(error: ProtocolError | None) -> None:
            self._declaring = False
            if error is not None:
                log.error("nothing can be published to the exchange", exchange=self._spec.name, error=error)
                self._refused()

        vhost.declare_exchange(self._spec, False, done)
