"""What commands with several processes share: ports for them."""

from __future__ import annotations

import socket
from pathlib import Path

from coterie.workers import free_ports

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_are_free_and_each_is_another_one() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    for port in ports:
        with socket.socket() as each:
            each.bind(("127.0.0.1", port))


def test_a_port_that_is_in_use_is_not_among_them_and_no_outgoing_connection_gets_one() -> None:
    lowest = int(RANGE.read_text(encoding="ascii").split()[0])
    with socket.socket() as used:
        used.bind(("127.0.0.1", free_ports(1)[0]))
        ports = free_ports(300)
        assert used.getsockname()[1] not in ports
    assert all(port < lowest for port in ports)
