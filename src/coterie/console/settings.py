"""The settings of the console: every limit has one, with a default, a unit and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.settings import setting


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """What is served over HTTP, and how much of it at a time."""

    body_max: int = setting(16 << 20, "largest body of a request: a message, definitions", unit="bytes", minimum=1024)
    connections_max: int = setting(1_000, "connections that clients of the console may have open", minimum=1)
    requests_max: int = setting(100, "requests that are being answered; more get 503", minimum=1)
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
    advertise: str = setting(
        "", "URL by which readers of streams reach this console, as https://host:port; empty: where it listens"
    )
    stream_chunk: int = setting(1 << 20, "bodies in one batch of a bulk read", unit="bytes", minimum=1)
    stream_share: float = setting(
        0.2, "part of the node's time for readers of streams together, while it has other things to do", minimum=0.01
    )
    stream_readers_max: int = setting(32, "bulk reads that are being answered; more get 503", minimum=1)
    stream_patience: float = setting(
        1.0, "time that a bulk read waits until this node has come as far as it was asked for", unit="s", minimum=0
    )
    hosts: tuple[str, ...] = setting(
        (), "names that the node is asked for by clients on its own host, a proxy for one, besides localhost; *: any"
    )
