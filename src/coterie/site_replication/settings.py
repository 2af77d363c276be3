"""What a broker can be told about the links to others that its queues are replicated by."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.errors import UserError
from coterie.runtime.base import TlsConfig
from coterie.settings import setting


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Section `replication`."""

    to: str = setting(
        "",
        "where queues are replicated to, as amqps://user@host:port/vhost, or amqp:// without TLS, with commas between "
        "the hosts of a cluster and blanks between destinations; the same on every broker of a cluster; empty: "
        "nowhere. A password (user:password@) may be in it in the environment, and in a file that others cannot read",
        hidden=True,
    )
    password_file: str = setting(
        "", "file with the password of the users that have none in `to`, which others must not be able to read"
    )
    tls_ca: str = setting(
        "", "file with the authority whose certificates amqps:// takes; empty: those that this machine trusts"
    )
    tls_cert: str = setting(
        "", "file with the certificate that links show; it logs them in (EXTERNAL) where `to` names no user"
    )
    tls_key: str = setting("", "file with its private key")
    vhost: str = setting("/", "the vhost whose queues are replicated")
    queues: str = setting(
        "",
        "which of them, besides those whose policy says replicate: a regular expression for the names of durable "
        "queues; empty: no others",
    )
    batch_bytes: int = setting(128 << 10, "how much is sent in one message of a link", unit="bytes", minimum=1)
    window: int = setting(
        16, "how many messages of a link may be under way, not confirmed yet by the other side", minimum=1
    )
    look_interval: float = setting(
        1.0, "how often a link looks for queues that are new or gone", unit="s", minimum=0.01
    )
    retry_min: float = setting(0.5, "how long a link waits before it tries again", unit="s", minimum=0.01)
    retry_max: float = setting(30.0, "and at most, when it has failed again and again", unit="s", minimum=0.01)
    connect_timeout: float = setting(
        10.0,
        "how long the other side may take to let a link in, and, if it has several hosts, to confirm anything: then "
        "the next one is tried",
        unit="s",
        minimum=0.1,
    )
    heartbeat: int = setting(
        10, "seconds after which each side sends a sign of life; after two without any, the link is down", minimum=1
    )

    def tls(self, hostname: str) -> TlsConfig:
        """For a stream to that host, whose certificate must be for that name."""
        return TlsConfig(
            self.tls_cert, self.tls_key, self.tls_ca, self.connect_timeout, 1, version="1.2", hostname=hostname
        )

    def check_tls(self, secure: bool) -> None:
        """`secure`: an address is amqps://. Raises UserError for half a configuration, or one without effect."""
        given = [f"replication.{name}" for name in ("tls_ca", "tls_cert", "tls_key") if getattr(self, name)]
        if given and not secure:
            raise UserError(f"{given[0]} has no effect: no address of replication.to begins with amqps://")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UserError("replication.tls_cert and replication.tls_key need each other")
