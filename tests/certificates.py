"""An authority for tests, and certificates of it that are for hosts."""

from __future__ import annotations

import datetime
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Files(NamedTuple):
    """Paths."""

    cert: str
    key: str

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self)
        return context


class Authority:
    """Signs."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = self._write(f"{name}.ca", self._sign(name, self._key.public_key(), ()))

    def certificate(self, name: str, *addresses: str) -> Files:
        """For hosts by their addresses; none: for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PrivateFormat.PKCS8
        private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        signed = self._sign(name, key.public_key(), addresses)
        return Files(self._write(f"{name}.cert", signed), self._write(f"{name}.key", private))

    def _write(self, name: str, data: bytes) -> str:
        path = self._folder / f"{name}.pem"
        path.write_bytes(data)
        return str(path)

    def _sign(self, name: str, key: ec.EllipticCurvePublicKey, addresses: tuple[str, ...]) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        own = key == self._key.public_key()
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=own, path_length=None), critical=True)
        )
        if addresses:
            named = x509.SubjectAlternativeName([x509.IPAddress(ip_address(each)) for each in addresses])
            made = made.add_extension(named, critical=False)
        return made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
