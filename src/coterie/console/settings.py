"""The settings of the console: every limit has one, with a default, a unit and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.settings import setting


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """What is served over HTTP, and how much of it at a time."""

    body_max: int = setting(16 << 20, "largest body of a request: a message, definitions", unit="bytes", minimum=1024)
    connections_max: int = setting(
        1_000, "open connections; one more closes the oldest without a login of the address with most", minimum=1
    )
    address_connections_max: int = setting(
        250, "those without a login of one address, or IPv6 network of 64 bits; one more closes the oldest", minimum=1
    )
    requests_max: int = setting(100, "requests of users that are being answered; more get 503", minimum=1)
    user_requests_max: int = setting(75, "those of one user; more get 429", minimum=1)
    unknown_requests_max: int = setting(
        64,
        "requests without a login that are being answered, logins among them; one more ends the oldest of the address "
        "with most",
        minimum=1,
    )
    address_unknown_requests_max: int = setting(16, "those of one address; more get 429", minimum=1)
    head_timeout: float = setting(
        10.0, "time for a TLS handshake, for the head of a request, and until a first one begins", unit="s", minimum=0.1
    )
    body_timeout: float = setting(30.0, "time for the body of a request; a login has half of it", unit="s", minimum=0.1)
    idle_timeout: float = setting(
        75.0, "time that a connection by which somebody logged in stays open without a request", unit="s", minimum=0.1
    )
    probe_connections_max: int = setting(
        64, "connections to listen.probes; one more closes the oldest of the address with most", minimum=2
    )
    probe_timeout: float = setting(5.0, "time for a probe, from connect to the end", unit="s", minimum=0.1)
    answer_timeout: float = setting(
        30.0, "time that a change may take to become durable; then the answer is 503", unit="s", minimum=0.1
    )
    page_max: int = setting(500, "most objects on one page of a list", minimum=1)
    get_max: int = setting(10_000, "most messages of one request to get or to browse", minimum=1)
    get_bytes: int = setting(
        16 << 20, "bodies of one answer to get or to browse; the first message always comes", unit="bytes", minimum=1
    )
    sample_interval: float = setting(5.0, "time between two samples, of which rates are made", unit="s", minimum=0.05)
    samples_kept: int = setting(4, "samples that are kept", minimum=2)
    history_kept: int = setting(180, "samples that the page's charts show", minimum=2)
    log_kept: int = setting(1_000, "lines of the log that the page can show", minimum=1)
    sessions_max: int = setting(
        1_000, "logins on the page that are open; with one more, that which was used longest ago ends", minimum=1
    )
    session_idle: float = setting(
        3600.0, "time after which a login on the page that is not used ends", unit="s", minimum=1
    )
    session_max: float = setting(86_400.0, "time after which any login on the page ends", unit="s", minimum=1)
    move_batch: int = setting(500, "messages that are moved to another queue in one step", minimum=1)
    advertise: str = setting(
        "", "URL by which readers of streams reach this console, as https://host:port; empty: where it listens"
    )
    stream_chunk: int = setting(1 << 20, "bodies in one batch of a bulk read", unit="bytes", minimum=1)
    stream_share: float = setting(
        0.2, "part of the node's time for readers of streams together, while it has other things to do", minimum=0.01
    )
    stream_readers_max: int = setting(32, "bulk reads that are being answered; more get 503", minimum=1)
    stream_waiters_max: int = setting(
        32, "readers of streams whose answers wait for messages; more are answered at once", minimum=0
    )
    stream_wait_max: float = setting(30.0, "time that such an answer waits at most", unit="s", minimum=0)
    stream_patience: float = setting(
        1.0, "time that a bulk read waits until this node has come as far as it was asked for", unit="s", minimum=0
    )
    hosts: tuple[str, ...] = setting(
        (), "names that the node is asked for by clients on its own host, a proxy for one, besides localhost; *: any"
    )
