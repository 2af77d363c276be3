"""Until when certificates are good, read from their files: Python's own library shows only those of a connection."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from coterie.errors import UserError


@dataclass(frozen=True, slots=True)
class Validity:
    """Of one certificate."""

    begins: datetime
    ends: datetime


def validities(file: str) -> list[Validity]:
    """Of each of the certificates in a PEM file, the first to end first. Raises UserError if it cannot be read."""
    try:
        found = x509.load_pem_x509_certificates(Path(file).read_bytes())
        known = [Validity(each.not_valid_before_utc, each.not_valid_after_utc) for each in found]
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: no certificate can be read from it: {error}") from None
    return sorted(known, key=lambda each: each.ends)
