"""How a clustered broker is put together and started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.cluster.member import Member
from coterie.cluster.settings import ClusterSettings
from coterie.errors import UserError
from coterie.group.channel import Channel
from coterie.group.presets import preset
from coterie.runtime.base import Runtime


def make_channel(
    runtime: Runtime,
    member: Member,
    bind: str,
    peers: Sequence[str],
    settings: ClusterSettings,
    group: str = "coterie",
    tcp: Mapping[str, object] | None = None,
) -> Channel:
    """The brokers' group: total order over TCP, with static peers. `tcp`: settings of the transport besides `bind`."""
    if settings.lease >= settings.heartbeat_timeout:
        raise UserError("cluster.lease must be less than cluster.heartbeat_timeout: see docs/cluster.md")
    us = member.replica.us
    host, _, port = bind.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"node.bind '{bind}' is no host:port")
    layers = preset(
        "total-order",
        TCP={"bind_host": host.strip("[]"), "bind_port": int(port), **(tcp or {})},
        STATIC={"peers": list(peers), "interval": 0.2},
        TOTAL={"held": "majority"},
        FAILURE={
            "heartbeat_interval": settings.heartbeat_timeout / 4,
            "heartbeat_timeout": settings.heartbeat_timeout,
        },
        FRAG={"message_max": settings.message_max},
    )
    return Channel(
        runtime, layers, group=group, name=us.name, incarnation=us.incarnation, receiver=member,
        buffer_max=4 << 20,
    )  # fmt: skip
