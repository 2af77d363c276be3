"""The certificates of processes that share a key: an authority that is made of the key, and signs for whoever has it.

The same key gives the same authority everywhere, so nothing but the key has to be handed out. Each process draws a
private key of its own, has it signed when it starts, and keeps it in memory: it is in no file. Certificates are valid
for ever, and were so long ago: whoever has the key can make another at any time, so an end would protect nobody, and
processes that run for years, or whose clocks are wrong, still connect. They name nobody.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the curve P-256: private keys are numbers from 1 to one less."""
_SCALAR_BYTES = 48
"""16 more than the order has: what is left of the division is then as good as drawn evenly (FIPS 186-5, A.2.1)."""
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""The second one means: no end (RFC 5280, 4.1.2.5)."""


def trust_key(context: ssl.SSLContext, key: bytes) -> None:
    """Trust whoever has this key, and nobody else; and show the others that this side has it."""
    authority = _private_key(key)
    own = ec.generate_private_key(ec.SECP256R1())
    root = _certificate(authority, "coterie authority", authority.public_key(), is_authority=True)
    leaf = _certificate(authority, "coterie member", own.public_key(), is_authority=False)
    context.load_verify_locations(cadata=root.public_bytes(Encoding.PEM).decode())
    pem = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + leaf.public_bytes(Encoding.PEM)
    with _unseen_file(pem) as path:
        context.load_cert_chain(path)


def _private_key(key: bytes) -> ec.EllipticCurvePrivateKey:
    wide = HKDFExpand(hashes.SHA256(), _SCALAR_BYTES, b"coterie 1 authority P-256").derive(key)
    return ec.derive_private_key(int.from_bytes(wide, "big") % (_ORDER - 1) + 1, ec.SECP256R1())


def _certificate(
    authority: ec.EllipticCurvePrivateKey, name: str, key: ec.EllipticCurvePublicKey, *, is_authority: bool
) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=False, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    # The ids say whose key is whose: a certificate of another authority is told from a broken one.
    identity = x509.SubjectKeyIdentifier.from_public_key(key)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name("coterie authority"))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FIRST)
        .not_valid_after(_LAST)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identity, critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority, hashes.SHA256())
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@contextmanager
def _unseen_file(data: bytes) -> Iterator[str]:
    """A file with this in it, for a moment: Python's ssl reads keys from nothing else. In memory where there is such a
    thing, else one that only this user can read."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("coterie", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{descriptor}"
        made = None
    else:
        descriptor, path = tempfile.mkstemp(prefix="coterie-")
        made = path
    try:
        os.write(descriptor, data)
        yield path
    finally:
        os.close(descriptor)
        if made is not None:
            os.unlink(made)
