"""Is everything there? Asked before Spark asks: it would keep asking for minutes, or end the process in silence."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from coterie.errors import UserError
from coterie.extras import need

REACH_SECONDS = 5.0
"""How long a master or a server may take to accept a connection."""


def need_spark() -> None:
    """Raises UserError if what every job needs is not installed."""
    need("numpy", "pandas", "pyarrow", "pyspark", extra="spark")


def reach(master: str, places: Sequence[tuple[str, int]]) -> None:
    """Return if one of these places accepts connections; raise UserError if none does."""
    why = []
    for host, port in places:
        try:
            socket.create_connection((host, port), REACH_SECONDS).close()
            return
        except (OSError, OverflowError, UnicodeError) as error:
            why.append(f"{host}:{port}: {(getattr(error, 'strerror', None) or str(error)).lower()}")
    raise UserError(f"--master {master}: nobody is there ({'; '.join(why)})")
