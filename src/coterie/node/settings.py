"""Where a node listens for clients, and with which certificates."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from coterie.addresses import AllowList, allow_list
from coterie.errors import UserError
from coterie.runtime.base import Endpoint, TlsConfig
from coterie.settings import setting


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """The front doors of a node, each as host:port; an empty one stays shut."""

    amqp: str = setting("localhost:5672", "AMQP 0-9-1; port 0 takes a free one; localhost is 127.0.0.1 and ::1")
    amqps: str = setting("", "AMQP 0-9-1 over TLS, usually port 5671; needs tls_cert and tls_key")
    console: str = setting("localhost:15672", "HTTP API and console page")
    probes: str = setting("localhost:15692", "liveness, readiness and metrics over HTTP, without a login")
    amqp_allow: tuple[str, ...] = setting(
        (),
        "networks that may connect to `amqp`, as 10.0.0.0/8 or ::1; none: all. Others are closed unread",
    )
    amqps_allow: tuple[str, ...] = setting((), "the same for `amqps`")
    console_allow: tuple[str, ...] = setting((), "the same for `console`")
    probes_allow: tuple[str, ...] = setting((), "the same for `probes`")
    console_tls: bool = setting(False, "HTTPS and not HTTP on `console`; needs tls_cert and tls_key")
    tls_cert: str = setting("", "file with the node's certificate, and those between it and the authority")
    tls_key: str = setting("", "file with its private key")
    tls_ca: str = setting("", "file with the certificate of the authority that signs clients' certificates")
    tls_clients: str = setting(
        "none", "whether clients must show a certificate: it logs them in with EXTERNAL",
        choices=("none", "optional", "required"),
    )  # fmt: skip
    tls_reload: float = setting(
        5.0, "time between two looks whether these files have changed; 0: they are loaded again on SIGHUP only",
        unit="s", minimum=0,
    )  # fmt: skip
    tls_version: str = setting("1.2", "the oldest TLS that is spoken with clients", choices=("1.2", "1.3"))

    def allowed(self, door: str) -> AllowList:
        """Who may come to `amqp`, `amqps`, `console` or `probes`. Raises UserError."""
        networks: tuple[str, ...] = getattr(self, f"{door}_allow")
        if networks and not getattr(self, door):
            raise UserError(f"listen.{door}_allow has no effect: listen.{door} is empty")
        return allow_list(networks, f"listen.{door}_allow")

    def tls(self) -> TlsConfig | None:
        """For `amqps`; None if that is shut. Raises UserError for half a configuration."""
        if not self.amqps:
            return None
        self._check_files("listen.amqps")
        if self.tls_clients != "none" and not self.tls_ca:
            raise UserError(f"listen.tls_clients = {self.tls_clients} needs listen.tls_ca")
        return TlsConfig(
            self.tls_cert, self.tls_key, self.tls_ca, 10.0, 1000,
            verify=self.tls_clients, version=self.tls_version,  # type: ignore[arg-type]
        )  # fmt: skip

    def console_config(self) -> TlsConfig | None:
        """For `console`; None: it is plain HTTP. Whoever asks logs in by a password, and needs no certificate."""
        if not self.console_tls:
            return None
        self._check_files("listen.console_tls")
        version = self.tls_version
        return TlsConfig(self.tls_cert, self.tls_key, "", 10.0, 1000, verify="none", version=version)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raises UserError for what a node would not start with."""
        if not (self.amqp or self.amqps):
            raise UserError("listen.amqp and listen.amqps are both empty: no client could reach the node")
        for door in ("amqp", "amqps", "console"):
            self.allowed(door)
        self.tls()
        self.console_config()

    def _check_files(self, what: str) -> None:
        if not (self.tls_cert and self.tls_key):
            raise UserError(f"{what} needs listen.tls_cert and listen.tls_key")


def hosts_of(at: Endpoint) -> list[str]:
    """The addresses to listen on. `localhost` is this host by either protocol: clients take one of them first, and not
    all of them the other one then."""
    if at.host != "localhost":
        return [at.host]
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            tried.bind(("::1", 0))
    except OSError:  # a machine, or a container, without IPv6
        return ["127.0.0.1"]
    return ["127.0.0.1", "::1"]


def endpoint(text: str, name: str) -> Endpoint:
    """`host:port` or `[host]:port`. Raises UserError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or not host:
        raise UserError(f"{name}: '{text}' is not host:port")
    return Endpoint(host.removeprefix("[").removesuffix("]"), int(port))
