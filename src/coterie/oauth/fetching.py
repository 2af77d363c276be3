"""Fetching the issuer's keys: blocking, so for a thread. Every step is bounded, in time and in size.

Redirects are not followed: where keys come from is what the settings say, or the issuer's own document.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

from coterie.errors import CoterieError, UserError
from coterie.oauth.keys import Key, read_keys
from coterie.oauth.settings import OauthSettings, check_url

DOCUMENT_MAX: Final = 512 << 10
"""Bytes of what an issuer answers."""
DISCOVERY: Final = "/.well-known/openid-configuration"


class Unreachable(CoterieError):
    """The issuer does not answer, or not as one would."""


def check_ca(ca: str) -> None:
    """Raises UserError if the file is no good."""
    try:
        ssl.create_default_context(cafile=ca or None)
    except (OSError, ValueError) as error:
        trouble = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else ""
        raise UserError(f"oauth.ca: {ca}: {trouble or 'not a certificate in PEM form'}") from None


def fetch_keys(settings: OauthSettings) -> list[Key]:
    """Those that tokens may be signed with now. Raises Unreachable."""
    deadline = time.monotonic() + settings.timeout
    url = settings.jwks_url or _discover(settings, deadline)
    keys = read_keys(_document(url, settings.ca, deadline))
    if not keys:
        raise Unreachable(f"{url} has no key that could be used")
    return keys


def _discover(settings: OauthSettings, deadline: float) -> str:
    where = settings.issuer.rstrip("/") + DISCOVERY
    found = _document(where, settings.ca, deadline)
    if found.get("issuer") != settings.issuer:
        raise Unreachable(f"{where} is of the issuer {str(found.get('issuer'))[:200]!r}: oauth.issuer must be the same")
    url = found.get("jwks_uri")
    if not isinstance(url, str):
        raise Unreachable(f"{where} has no jwks_uri")
    try:
        check_url(url, "jwks_uri")
    except UserError as error:
        raise Unreachable(f"{where}: {error}") from None
    return url


def _document(url: str, ca: str, deadline: float) -> Mapping[str, object]:
    """A JSON object."""
    try:
        found = json.loads(_get(url, ca, deadline))
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{url} cannot be fetched: {error or type(error).__name__}") from None
    except (ValueError, RecursionError):
        raise Unreachable(f"{url} does not answer with JSON") from None
    if not isinstance(found, dict):
        raise Unreachable(f"{url} does not answer with a JSON object")
    return found


def _get(url: str, ca: str, deadline: float) -> bytes:
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    context = ssl.create_default_context(cafile=ca or None) if parts.scheme == "https" else None
    if context is None:
        connection = http.client.HTTPConnection(host, parts.port)
    else:
        connection = http.client.HTTPSConnection(host, parts.port, context=context)
    sock = socket.create_connection((host, connection.port), timeout=_left(deadline))
    with closing(connection), _cut_off(sock, deadline):
        connection.sock = sock if context is None else context.wrap_socket(sock, server_hostname=host)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "application/json", "Connection": "close"})
        response = connection.getresponse()
        if response.status != 200:
            raise Unreachable(f"{url} answers {response.status}")
        data = response.read(DOCUMENT_MAX + 1)
        _left(deadline)  # if it was cut off, this is not all
    if len(data) > DOCUMENT_MAX:
        raise Unreachable(f"{url} answers with more than {DOCUMENT_MAX:,} bytes")
    return data


@contextmanager
def _cut_off(sock: socket.socket, deadline: float) -> Iterator[None]:
    """At the deadline: whoever sends a byte now and then, of a handshake, a header or a body, would hold the thread for
    ever, as each byte is in time."""

    def cut_off() -> None:
        with suppress(OSError):
            watched.shutdown(socket.SHUT_RDWR)

    with sock, sock.dup() as watched:  # TLS takes the other one over
        timer = threading.Timer(_left(deadline), cut_off)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, http.client.HTTPException):
            _left(deadline)  # then that is why
            raise
        finally:
            timer.cancel()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it takes too long")
    return left
