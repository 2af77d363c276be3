"""Looks now and then whether the files of certificates have changed, and has them loaded again; or at once, if told to.

Files are written one after the other, and a certificate without its key is no good: then the old ones stay in use, and
the next look finds the rest.
"""

from __future__ import annotations

from coterie.logs import Log
from coterie.runtime.aio.tls import Reload, Tls, look_again
from coterie.runtime.base import Runtime, Timer

log = Log(__name__)


class CertificateWatch:
    """Of one node. `interval` in seconds; 0: it looks only when it is told to."""

    def __init__(self, runtime: Runtime, tls: Tls, interval: float) -> None:
        self._runtime = runtime
        self._tls = tls
        self._interval = interval
        self._timer: Timer | None = None
        self._looking = False
        self._again = False
        """Told to look while it was looking: what it finds may be from before."""
        self._stopped = False

    def start(self) -> None:
        if self._interval and not self._stopped and self._timer is None:
            self._timer = self._runtime.call_later(self._interval, self._look, False)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reload(self) -> None:
        """Load all files now, whether they seem to have changed or not."""
        log.info("told to load the TLS files again")
        self._look(True)

    def _look(self, anyway: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._looking:
            self._again = self._again or anyway
        elif not self._stopped:
            self._looking = True
            known = self._tls.known()
            self._runtime.offload(lambda: look_again(known, anyway), self._looked)

    def _looked(self, found: list[Reload] | Exception) -> None:
        self._looking = False
        if isinstance(found, Exception):
            log.warning("the TLS files cannot be looked at", why=str(found))
        else:
            self._tls.renew(found)
        if self._again:
            self._again = False
            self._look(True)
        else:
            self.start()
