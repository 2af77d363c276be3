"""Addresses: which are of this machine, and networks that somebody may come from, of a listener or of a user.

An IPv4 address that comes in by an IPv6 socket (`::ffff:10.1.2.3`) is the IPv4 address; the zone of a link-local one
(`%eth0`) does not matter.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from coterie.errors import UserError
from coterie.logs import Log

log = Log(__name__)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
NETWORKS_MAX: Final = 1000
COMPLAINTS_MAX: Final = 256
"""Hosts about which was logged: more than these start a new list."""
_MAPPED: Final = 96
"""Bits before the IPv4 address in one that is mapped."""


@dataclass(frozen=True, slots=True)
class AllowList:
    """Some networks; without any, everybody may come."""

    networks: tuple[Network, ...] = ()
    _told: dict[str, None] = field(default_factory=dict, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.networks)

    def allows(self, host: str) -> bool:
        """Whether one may come from that numeric address; one that is none comes from nowhere."""
        if not self.networks:
            return True
        address = _address(host)
        return address is not None and any(address in network for network in self.networks)

    def admits(self, host: str) -> bool:
        """The same, for a door: whom it is shut for is told in the log, once for each host."""
        if self.allows(host):
            return True
        if host not in self._told:
            if len(self._told) >= COMPLAINTS_MAX:
                self._told.clear()
            self._told[host] = None
            log.warning("a connection is refused: its address is not allowed here", peer=host)
        return False

    def texts(self) -> list[str]:
        return [str(network) for network in self.networks]


def allow_list(texts: Iterable[object], where: str) -> AllowList:
    """Raises UserError that says what is wrong, and `where`."""
    networks = tuple(dict.fromkeys(_network(text, where) for text in texts))
    if len(networks) > NETWORKS_MAX:
        raise UserError(f"{where}: more than {NETWORKS_MAX} networks")
    return AllowList(networks)


def _network(text: object, where: str) -> Network:
    try:
        if not isinstance(text, str) or len(text) > 100:
            raise ValueError
        interface = ipaddress.ip_interface(text.strip())
    except ValueError:
        shown = repr(text)[:100]
        raise UserError(
            f"{where}: {shown} is no address or network, as 10.0.0.0/8 or 2001:db8::/32; names are not looked up: "
            "localhost is 127.0.0.1 and ::1"
        ) from None
    if "%" in text:
        raise UserError(f"{where}: '{text}' has a zone, which does not count here: write {text.partition('%')[0]}")
    network = interface.network
    if interface.ip != network.network_address:
        raise UserError(f"{where}: '{text}' is an address within a network: write {network} or {interface.ip}")
    mapped = interface.ip.ipv4_mapped if isinstance(interface.ip, ipaddress.IPv6Address) else None
    if mapped is not None and network.prefixlen >= _MAPPED:
        return ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED))
    return network


def is_loopback(host: str) -> bool:
    """Whether a numeric address is within this machine."""
    address = _address(host)
    return address is not None and address.is_loopback


def is_this_machine(host: str) -> bool:
    """Whether nobody on another machine is reached there, or reaches it. A name other than localhost may be anybody."""
    return host == "localhost" or is_loopback(host)


def _address(host: str) -> Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
