"""What a clustered broker can be told."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.settings import setting


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Section `cluster`."""

    size: int = setting(
        0,
        "with how many brokers a new cluster begins, who are its first voters; the same on every broker, also on one "
        "that joins later; 0: this broker stands alone",
        minimum=0,
    )
    lease: float = setting(
        1.5,
        "A broker that has not heard from a majority of the voters for so long gives nothing to consumers. Less than "
        "heartbeat_timeout.",
        unit="s",
        minimum=0.01,
    )
    heartbeat_timeout: float = setting(
        3.0, "Silence after which another broker is taken for dead.", unit="s", minimum=0.05
    )
    dispatch: str = setting(
        "credit",
        "Who gets a message. credit: any consumer with room, in turn, wherever it is; ownership: those of one broker "
        "at a time.",
        choices=("credit", "ownership"),
        shared=True,
    )
    ownership_time: float = setting(
        0.05, "With ownership: how long a broker keeps a queue that others want too.", unit="s", minimum=0.001
    )
    credit_max: int = setting(
        2000, "Messages that a consumer without a prefetch limit is allotted before it has settled any.", minimum=1
    )
    backlog_max: int = setting(
        8 << 20, "Bytes of events that may wait to be sent before publishers are blocked.", unit="B", minimum=1
    )
    unsynced_max: int = setting(
        256 << 20,
        "Bytes that may wait for a broker's disk before it steps back: it leaves those in step until its disk is well. "
        "More than store.pending_max, which stops publishers.",
        unit="B",
        minimum=1,
    )
    kept_max: int = setting(
        256 << 20,
        "Bytes of events that a broker keeps while it gets the state of another one; beyond, it tries again later.",
        unit="B",
        minimum=1,
    )
    update_batch: int = setting(
        256 << 10,
        "Bytes of messages that a broker which catches up asks others for at a time. Less spares those it asks.",
        unit="B",
        minimum=1,
    )
    message_max: int = setting(
        256 << 20, "The largest event, a message and its properties.", unit="B", minimum=65536, shared=True
    )
