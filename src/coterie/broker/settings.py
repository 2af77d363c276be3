"""The broker's settings: every limit has one, with a default, a unit and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.settings import setting


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Limits of the broker itself; those of queues are arguments and policies."""

    dispatch_batch: int = setting(
        64, "most messages given to one consumer before it is another one's turn", minimum=1, shared=True
    )
    route_cache_max: int = setting(20_000, "routes that a vhost remembers, by exchange and routing key", minimum=1)
    topic_steps_max: int = setting(
        100_000, "steps that the routing keys of a message may take through the patterns bound to topic exchanges; "
        "with more they lead nowhere, and a client that publishes so is told", minimum=1000, shared=True,
    )  # fmt: skip
    exchange_hops_max: int = setting(1_000, "exchanges that one message may go through", minimum=1, shared=True)
    memory_high: int = setting(
        1 << 30,
        "messages in memory above which publishers are blocked, or half as much again for the process; 0: no limit",
        unit="bytes",
        minimum=0,
    )
    memory_low: float = setting(0.8, "part of memory_high under which publishers go on", minimum=0)
    alarm_interval: float = setting(0.5, "time between two looks at how much memory is held", unit="s", minimum=0.01)
    queue_resident_max: int = setting(
        64 << 20, "bodies that a durable queue keeps in memory; beyond, those on disk are paged out", unit="bytes",
        minimum=0,
    )  # fmt: skip
    page_batch: int = setting(512, "messages that are brought back from disk at a time", minimum=1)
    page_batch_bytes: int = setting(8 << 20, "and their bodies together", unit="bytes", minimum=1)
    page_interval: float = setting(0.25, "time between two looks at what can be paged out", unit="s", minimum=0.001)
    page_retry: float = setting(
        1.0, "time after which a load from disk that failed is tried again", unit="s", minimum=0.01
    )
    page_tries: int = setting(30, "loads that may fail before a message is given up as lost", minimum=1)
    queues_max: int = setting(
        100_000, "queues that a vhost may have; a vhost's own limit may be lower", minimum=1, shared=True
    )
    exchanges_max: int = setting(100_000, "exchanges that a vhost may have", minimum=1, shared=True)
    bindings_max: int = setting(1_000_000, "bindings that a vhost may have", minimum=1, shared=True)
    vhosts_max: int = setting(10_000, "vhosts that a broker may have", minimum=1)
    policies_max: int = setting(10_000, "policies that a vhost may have", minimum=1, shared=True)
    leases_max: int = setting(100, "named leases that a queue may have", minimum=1, shared=True)
    lease_rows_max: int = setting(
        100_000, "messages that one step of a lease takes, retires or gives back at most", minimum=1, shared=True
    )
    lease_expires: float = setting(
        30 * 86400.0, "time after which an unused named lease ends, and what it holds is ready again; 0: never",
        unit="s", minimum=0.0,
    )  # fmt: skip
    death_records_max: int = setting(
        100, "deaths that a dead letter's headers tell; older ones are left out", minimum=1, shared=True
    )
