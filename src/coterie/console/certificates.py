"""Until when certificates are good, read from their files: Python's own library shows only those of a connection."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from coterie.errors import UserError

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERAL_TIME: Final = 0x18


def ends(file: str) -> list[datetime]:
    """When each of the certificates in a PEM file ends. Raises UserError if it cannot be read."""
    try:
        text = Path(file).read_text(encoding="ascii", errors="replace")
        found = [not_after(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(text)]
    except (OSError, ValueError, IndexError) as error:
        raise UserError(f"{file}: no certificate can be read from it: {error}") from None
    if not found:
        raise UserError(f"{file}: there is no certificate in it")
    return found


def not_after(der: bytes) -> datetime:
    """The end of its validity. Raises ValueError or IndexError for what is no certificate."""
    ((_, certificate),) = _elements(der)
    fields = _elements(next(_elements(certificate))[1])
    tag, _ = next(fields)
    if tag == _VERSION:
        next(fields)  # the serial number
    next(fields)  # the signature's algorithm
    next(fields)  # the issuer
    tag, validity = next(fields)
    if tag != _SEQUENCE:
        raise ValueError("no validity where there should be one")
    _, (tag, text) = _elements(validity)
    form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERAL_TIME: "%Y%m%d%H%M%SZ"}.get(tag)
    if form is None:
        raise ValueError("its end is no time")
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element, one after the other, as DER has them."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            length = size & 0x7F
            size, at = int.from_bytes(data[at : at + length], "big"), at + length
        if at + size > len(data):
            raise ValueError("it ends in the middle")
        yield tag, data[at : at + size]
        at += size
