"""STATIC and DNS: peers from a list, or from a name. The other kinds of discovery are named here, too.

STATIC promises that every endpoint of its list is tried for as long as the process runs. DNS promises the same for the
addresses that its name has, looked up again every interval; what the name lost is not told to the transport any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.errors import UserError
from coterie.group.protocols.discovery_base import FOUND_MAX, Discovery
from coterie.group.protocols.discovery_folder import Folder
from coterie.group.protocols.discovery_multicast import Multicast
from coterie.group.protocols.transport import parse_endpoint
from coterie.runtime.base import Endpoint
from coterie.settings import setting

__all__ = ["Discovery", "Dns", "Folder", "Multicast", "Static"]


@dataclass(frozen=True, slots=True)
class StaticSettings:
    peers: tuple[str, ...] = setting((), "where processes of the group are, as host:port; one's own may be among them")
    interval: float = setting(1.0, "time between attempts for those that are not connected", unit="s", minimum=0.001)


class Static(Discovery):
    """Peers from a list of addresses. A few suffice: they tell where the others are."""

    name = "STATIC"
    id = 3
    Settings = StaticSettings

    settings: StaticSettings

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self._peers = [parse_endpoint(text, "STATIC: peers") for text in self.settings.peers]
        if len(self._peers) > FOUND_MAX:
            raise UserError(
                f"STATIC: {len(self._peers)} peers are too many: list a few, they tell where the others are"
            )

    def look(self) -> None:
        self.find(self._peers)


@dataclass(frozen=True, slots=True)
class DnsSettings:
    host: str = setting("", "name whose addresses are the group's hosts, for example a headless service")
    port: int = setting(0, "port that the group uses on each of them; 0 for the one this process uses", minimum=0)
    interval: float = setting(5.0, "time between look-ups", unit="s", minimum=0.001)


class Dns(Discovery):
    """Peers from a DNS name that stands for all hosts of the group."""

    name = "DNS"
    id = 6
    Settings = DnsSettings

    settings: DnsSettings

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        if not self.settings.host:
            raise UserError("DNS: host is empty: set it to the name that stands for all hosts of the group")
        if self.settings.port > 65535:
            raise UserError(f"DNS: port {self.settings.port} does not exist: the highest is 65535")

    def look(self) -> None:
        self.runtime.net.resolve(self.settings.host, self._resolved)

    def _resolved(self, hosts: Sequence[str]) -> None:
        if not hosts:  # a name server that does not answer is no reason to forget anybody
            self.count("unresolved")
            return
        endpoints = [Endpoint(host, self.settings.port or self.transport.endpoint.port) for host in hosts[:FOUND_MAX]]
        self.keep(endpoints)
        self.find(endpoints)
