"""TLS of a node: contexts made of the files that a TlsConfig names, or of the key of a KeyTls, and what a user is told
about them.

A context is made once, and again when its files have changed and are good (`Reload`): handshakes that begin then have
the new one, connections keep theirs.

Both sides verify the other's certificate against the one authority, unless a listener's configuration asks for less;
names are checked where a configuration has one: members are addressed by numbers. Handshakes of accepted streams are
limited so that one address cannot keep others out. A peer whose handshake fails is logged once per host and reason.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import dataclass

from coterie.crowd import Crowd
from coterie.errors import UserError
from coterie.logs import Log
from coterie.runtime.aio.authority import trust_key
from coterie.runtime.base import Endpoint, KeyTls, StreamTls, TlsConfig

log = Log(__name__)

_VERIFY = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}
REMEDY = "set the same secret on every member"
COMPLAINTS_MAX = 256
"""Complaints that were logged: more than these start a new list."""


Stamps = tuple[tuple[int, int, int] | None, ...]
"""What tells that one of the files is another: when it was written, its size, its number; None: it is not there."""


@dataclass(frozen=True, slots=True)
class Reload:
    """One context's files, looked at again: away from the loop."""

    tls: TlsConfig
    server: bool
    stamps: Stamps
    result: ssl.SSLContext | UserError


class Tls:
    """The contexts of one node, and how many handshakes of accepted streams are under way."""

    def __init__(self) -> None:
        self._pending: dict[StreamTls, Crowd[asyncio.Task[None]]] = {}
        self._contexts: dict[tuple[StreamTls, bool], ssl.SSLContext] = {}
        self._complained: dict[tuple[str, str], None] = {}
        self._hung_up: dict[str, None] = {}
        """Hosts that have, once."""
        self._stamps: dict[tuple[TlsConfig, bool], Stamps] = {}
        """Of the files when they were looked at last."""

    def context(self, tls: StreamTls, *, server: bool) -> ssl.SSLContext:
        """For accepted or for dialled streams. Raises UserError that names the file to correct."""
        context = self._contexts.get((tls, server))
        if context is None:
            if isinstance(tls, TlsConfig):
                self._stamps[tls, server] = stamps_of(tls)
            context = self._contexts[tls, server] = _make(tls, server)
        return context

    def known(self) -> dict[tuple[TlsConfig, bool], Stamps]:
        """What there are contexts for: to give to `look_again`."""
        return dict(self._stamps)

    def renew(self, found: list[Reload]) -> None:
        """New handshakes have what was found, if it is good."""
        for each in found:
            self._stamps[each.tls, each.server] = each.stamps
            if isinstance(each.result, UserError):
                log.warning("changed TLS files are no good: those from before stay in use", why=str(each.result))
            else:
                self._contexts[each.tls, each.server] = each.result
                log.info("TLS files are loaded again", cert=each.tls.cert)

    @property
    def pending(self) -> int:
        return sum(map(len, self._pending.values()))

    def begin(self, tls: StreamTls, task: asyncio.Task[None], host: str) -> None:
        """One more handshake. If that listener has as many as it may, the oldest of the address with most ends."""
        most = tls.handshakes_max
        pending = self._pending.setdefault(tls, Crowd(most, most))
        oldest = pending.who_goes(host) if pending.crowded(host) else None
        if oldest is not None:
            pending.remove(oldest)
            oldest.cancel()
        pending.add(task, host)

    def end(self, tls: StreamTls, task: asyncio.Task[None]) -> None:
        self._pending[tls].remove(task)

    def refused(self, peer: Endpoint, error: ssl.SSLError, tls: StreamTls) -> None:
        self._complain(peer, _secret_reason(error) if isinstance(tls, KeyTls) else _reason(error))

    def hung_up(self, peer: Endpoint) -> None:
        """One that was accepted, during the handshake, and without a reason: it does not like what it was shown. Once
        may be chance: two that dial each other at the same moment drop one of the connections."""
        if peer.host not in self._hung_up:
            if len(self._hung_up) >= COMPLAINTS_MAX:
                self._hung_up.clear()
            self._hung_up[peer.host] = None
            return
        self._complain(peer, f"it hangs up during the handshake, as one does that has another secret: {REMEDY}")

    def _complain(self, peer: Endpoint, why: str) -> None:
        if (peer.host, why) not in self._complained:
            if len(self._complained) >= COMPLAINTS_MAX:
                self._complained.clear()
            self._complained[peer.host, why] = None
            log.warning("TLS refused", peer=peer, why=why)


def stamps_of(tls: TlsConfig) -> Stamps:
    return tuple(_stamp(path) for path in (tls.cert, tls.key, tls.ca))


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def look_again(known: dict[tuple[TlsConfig, bool], Stamps], anyway: bool) -> list[Reload]:
    """Load the files that have changed, or all of them `anyway`. Reads files: not for the loop."""
    found: list[Reload] = []
    for (tls, server), before in known.items():
        stamps = stamps_of(tls)
        if stamps != before or anyway:
            result: ssl.SSLContext | UserError
            try:
                result = _make(tls, server)
            except UserError as error:
                result = error
            found.append(Reload(tls, server, stamps, result))
    return found


def _make(tls: StreamTls, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if server:
        context.num_tickets = 0  # nobody resumes a session here
    if isinstance(tls, KeyTls):
        trust_key(context, tls.key)
    else:
        _load_files(context, tls, server)
    return context


def _load_files(context: ssl.SSLContext, tls: TlsConfig, server: bool) -> None:
    if tls.version == "1.2":
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    named = not server and bool(tls.hostname)
    context.check_hostname = named
    if server:
        context.verify_mode = _VERIFY[tls.verify]
    if named and not tls.ca:
        context.load_default_certs()
    elif tls.ca or context.verify_mode is not ssl.CERT_NONE:
        try:
            context.load_verify_locations(tls.ca)
        except (OSError, ValueError) as error:
            raise UserError(f"tls_ca: {tls.ca}: {_trouble(error, 'a certificate in PEM form')}") from None
    if named and not tls.cert:
        return
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


def _trouble(error: Exception, form: str) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return f"cannot be read: {error.strerror}"
    return f"not {form}"


_NO_TLS = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNSUPPORTED_PROTOCOL", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE")
_ANOTHER = ("TLSV1_ALERT_UNKNOWN_CA", "PEER_DID_NOT_RETURN_A_CERTIFICATE", "TLSV13_ALERT_CERTIFICATE_REQUIRED")


def _secret_reason(error: ssl.SSLError) -> str:
    """Between processes that should have the same key."""
    if isinstance(error, ssl.SSLCertVerificationError) or error.reason in _ANOTHER:
        return f"it has another secret: {REMEDY}"
    if error.reason in _NO_TLS:
        return "it does not encrypt, and this member does: set the same secret, and the same `encrypt`, on every member"
    return f"{error.reason or error}".lower().replace("_", " ")


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): tls_ca must have signed it"
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate: set tls_cert, tls_key and tls_ca on every member"
    if error.reason in _NO_TLS:
        return "it does not speak TLS 1.3: set tls_cert, tls_key and tls_ca on every member"
    return f"{error.reason or error}".lower().replace("_", " ")


def subject_of(certificate: object) -> tuple[tuple[str, str], ...]:
    """Names and values of the subject of what `SSLSocket.getpeercert` returns; nothing if there is no certificate."""
    parts = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    return tuple((str(name), str(value)) for part in parts for name, value in part)
