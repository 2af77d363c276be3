"""TLS of a node: contexts made of the files that a TlsConfig names, once, and what a user is told about them.

Both sides verify the other's certificate against the one authority, unless a listener's configuration asks for less;
names are not checked, since members are addressed by numbers. A peer whose handshake fails is logged once per host.
"""

from __future__ import annotations

import ssl
from collections import Counter

from coterie.errors import UserError
from coterie.log import Log
from coterie.runtime.base import Endpoint, TlsConfig

log = Log(__name__)

_VERIFY = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}
COMPLAINTS_MAX = 256
"""Hosts about which was logged: more than these start a new list."""


class Tls:
    """The contexts of one node, and how many handshakes of accepted streams are under way."""

    def __init__(self) -> None:
        self._pending: Counter[TlsConfig] = Counter()
        self._contexts: dict[tuple[TlsConfig, bool], ssl.SSLContext] = {}
        self._complained: dict[str, None] = {}

    def context(self, tls: TlsConfig, *, server: bool) -> ssl.SSLContext:
        """For accepted or for dialled streams. Raises UserError that names the file to correct."""
        context = self._contexts.get((tls, server))
        if context is None:
            context = self._contexts[tls, server] = _make(tls, server)
        return context

    @property
    def pending(self) -> int:
        return self._pending.total()

    def begin(self, tls: TlsConfig) -> bool:
        """One more handshake; False: there are as many as that listener may have."""
        if self._pending[tls] >= tls.handshakes_max:
            return False
        self._pending[tls] += 1
        return True

    def end(self, tls: TlsConfig) -> None:
        self._pending[tls] -= 1

    def refused(self, peer: Endpoint, error: ssl.SSLError) -> None:
        if peer.host not in self._complained:
            if len(self._complained) >= COMPLAINTS_MAX:
                self._complained.clear()
            self._complained[peer.host] = None
            log.warning("TLS refused", peer=peer, why=_reason(error))


def _make(tls: TlsConfig, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if tls.version == "1.2" else ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = _VERIFY[tls.verify] if server else ssl.CERT_REQUIRED
    if server:
        context.num_tickets = 0  # nobody resumes a session here
    if tls.ca or context.verify_mode is not ssl.CERT_NONE:
        try:
            context.load_verify_locations(tls.ca)
        except (OSError, ValueError) as error:
            raise UserError(f"tls_ca: {tls.ca}: {_trouble(error, 'a certificate in PEM form')}") from None
    for path, name in ((tls.cert, "tls_cert"), (tls.key, "tls_key")):
        try:
            open(path, "rb").close()
        except OSError as error:
            raise UserError(f"{name}: {path}: cannot be read: {error.strerror}") from None
    try:
        context.load_cert_chain(tls.cert, tls.key, lambda: b"")
    except (OSError, ValueError) as error:
        form = "a certificate and its private key, in PEM form and without a pass phrase"
        raise UserError(f"tls_cert and tls_key: {tls.cert}, {tls.key}: {_trouble(error, form)}") from None
    return context


def _trouble(error: Exception, form: str) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return f"cannot be read: {error.strerror}"
    return f"not {form}"


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): tls_ca must have signed it"
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate: set tls_cert, tls_key and tls_ca on every member"
    if error.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNSUPPORTED_PROTOCOL", "RECORD_LAYER_FAILURE"):
        return "it does not speak TLS 1.3: set tls_cert, tls_key and tls_ca on every member"
    return f"{error.reason or error}".lower().replace("_", " ")


def subject_of(certificate: object) -> tuple[tuple[str, str], ...]:
    """Names and values of the subject of what `SSLSocket.getpeercert` returns; nothing if there is no certificate."""
    parts = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    return tuple((str(name), str(value)) for part in parts for name, value in part)
