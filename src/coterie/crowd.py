"""Who is at a door and has not shown who they are: so many in all, so many from one address.

Promises: when it is full, somebody of the address that has most of them goes, the oldest that may go, and never
whoever came from an address that has few. So one address cannot keep the others out, however many it opens. An address
is an IPv4 address, or an IPv6 network of 64 bits, which is what one customer of a provider has.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Crowd(Generic[T]):
    """Each is in it once, by its address, the oldest first."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.most = most
        self.most_of_one = most_of_one
        self._by_address: dict[str, dict[T, None]] = {}
        self._address_of: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._address_of)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._address_of))

    def __contains__(self, who: T) -> bool:
        return who in self._address_of

    def of(self, host: str) -> int:
        """How many are there from the address of that host."""
        return len(self._by_address.get(address_of(host), ()))

    @property
    def largest(self) -> int:
        """How many the address has that has most."""
        return max(map(len, self._by_address.values()), default=0)

    def add(self, who: T, host: str) -> None:
        address = address_of(host)
        self._address_of[who] = address
        self._by_address.setdefault(address, {})[who] = None

    def remove(self, who: T) -> None:
        """It may be gone already."""
        address = self._address_of.pop(who, None)
        if address is not None:
            there = self._by_address[address]
            del there[who]
            if not there:
                del self._by_address[address]

    def crowded(self, host: str) -> bool:
        """Whether one more from there would be one too many."""
        return len(self) >= self.most or self.of(host) >= self.most_of_one

    def who_goes(self, host: str, may_go: Callable[[T], bool] = lambda who: True) -> T | None:
        """To make room for one more from there; None: nobody can, so the one more has to go."""
        address = address_of(host)
        if self.of(host) < self.most_of_one:
            address = max(self._by_address, key=lambda each: len(self._by_address[each]), default=address)
        return next(filter(may_go, self._by_address.get(address, ())), None)


@lru_cache(4096)
def address_of(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
