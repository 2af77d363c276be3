"""STATIC, MULTICAST, FOLDER and DNS: processes that know little find each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transport_rig import Member, SimGroup, real, until

from coterie.errors import UserError
from coterie.group.packet import Packet, encode_header, group_tag
from coterie.group.protocols.discovery import Discovery, Dns, DnsSettings, Folder, Multicast, Static, StaticSettings
from coterie.group.protocols.discovery_folder import FolderSettings, Note
from coterie.group.protocols.discovery_multicast import Here, MulticastSettings
from coterie.group.protocols.tcp import Tcp, TcpSettings
from coterie.group.protocols.transport import Transport
from coterie.group.protocols.udp import Udp, UdpSettings
from coterie.group.stack import Layer, build
from coterie.runtime.aio import run
from coterie.runtime.base import Buffer, DatagramHandler, Endpoint

TRANSPORTS = [Tcp, Udp]


def static(*peers: str, interval: float = 1.0) -> Static:
    return Static(StaticSettings(peers=peers, interval=interval))


def found(member: Member) -> list[str]:
    return [str(endpoint) for endpoint in member.stack.find(Discovery).found()]  # type: ignore[type-abstract]


def everyone_is_connected(*members: Member) -> bool:
    return all(len(member.peers) == len(members) - 1 for member in members)


# STATIC.


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_static_list_that_includes_oneself_connects_everybody(transport: Callable[[], Transport]) -> None:
    group = SimGroup()
    port = transport().settings.bind_port
    peers = [f"10.0.0.{number}:{port}" for number in (1, 2, 3)]
    members = [group.boot(name, transport(), static(*peers)) for name in "abc"]
    group.run(2.0)
    assert everyone_is_connected(*members)


def test_a_peer_that_starts_much_later_is_found_soon() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp(TcpSettings(reconnect_max=1.0)), static("10.0.0.2:7800"))
    group.run(300.0)
    group.boot("b", Tcp(), static())
    group.run(2.0)
    assert a.peers == ["b#1"]


def test_hosts_of_a_static_list_may_be_names() -> None:
    group = SimGroup()
    a = group.boot("a", Udp(), static("b:7900"))
    group.boot("b", Udp(), static())
    group.run(3.0)
    assert a.peers == ["b#1"]


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:", ":7800", "10.0.0.1:x", "10.0.0.1:0", "10.0.0.1:65536"])
def test_a_peer_that_is_no_address_is_refused_with_its_form(text: str) -> None:
    with pytest.raises(UserError, match=r"STATIC: peers: .* of the form host:port"):
        static(text)


def test_discovery_without_a_transport_below_it_is_refused() -> None:
    registry = {"STATIC": Static, "TCP": Tcp}
    with pytest.raises(UserError, match="the first"):
        build([Layer("STATIC", {}), Layer("TCP", {})], registry)


# MULTICAST.


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_processes_that_hear_each_others_calls_find_each_other(transport: Callable[[], Transport]) -> None:
    group = SimGroup()
    members = [group.boot(name, transport(), Multicast()) for name in "abc"]
    group.run(3.0)
    assert everyone_is_connected(*members)


def test_a_late_process_is_answered_at_once() -> None:
    group = SimGroup()
    a, b = (group.boot(name, Tcp(), Multicast(MulticastSettings(interval=100.0))) for name in "ab")
    group.run(150.0)
    c = group.boot("c", Tcp(), Multicast(MulticastSettings(interval=100.0)))
    group.run(1.0)
    assert everyone_is_connected(a, b, c)


def test_who_is_not_heard_any_more_is_not_told_any_more() -> None:
    group = SimGroup()
    a, b = (group.boot(name, Tcp(), Multicast(MulticastSettings(expiry=5.0))) for name in "ab")
    group.run(3.0)
    assert found(a) == [str(b.transport.endpoint)]
    assert b.node is not None
    b.node.crash()
    group.run(10.0)
    assert found(a) == []


class Caller(DatagramHandler):
    def datagram(self, data: Buffer, source: Endpoint) -> None:
        pass


def test_calls_that_are_foreign_or_make_no_sense_are_counted() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp(), Multicast())
    caller = group.boot("z", Tcp())
    socket = caller.runtime.net.datagrams(Endpoint("", 0), Caller())

    def call(here: Here, of: str = "friends") -> bytes:
        packet = Packet(Multicast.codec.encode(here), None, Multicast.id)
        packet.sender = caller.local
        return encode_header(packet, group_tag(of), b"z", True) + bytes(packet.body)

    good = call(Here("10.9.9.9", 1, True))
    for data in (call(Here("h", 1, True), "strangers"), b"", b"x", good[:-1], call(Here("h", 0, True)), bytes(5000)):
        socket.send((data,), Endpoint("239.192.0.78", 7878))
    group.run(0.5)
    layer = a.stack.find(Multicast)
    assert (layer.stats["foreign"], layer.stats["malformed"]) == (1, 5)
    assert found(a) == []
    socket.send((good,), Endpoint("239.192.0.78", 7878))
    group.run(0.5)
    assert found(a) == ["10.9.9.9:1"]


def test_real_multicast_on_loopback_finds_everybody() -> None:
    async def main() -> None:
        def layers() -> tuple[Tcp, Multicast]:
            return Tcp(TcpSettings(bind_port=0)), Multicast(MulticastSettings(group="239.192.7.11:7983", interval=0.1))

        async with real("a", *layers()) as a, real("b", *layers()) as b, real("c", *layers()) as c:
            await until(lambda: everyone_is_connected(a, b, c), a, b, c)

    run(main())


# FOLDER.


def folder(path: Path, interval: float = 1.0, expiry: float = 5.0) -> Folder:
    return Folder(FolderSettings(path=str(path), interval=interval, expiry=expiry))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_processes_that_share_a_folder_find_each_other(transport: Callable[[], Transport], tmp_path: Path) -> None:
    group = SimGroup()
    members = [group.boot(name, transport(), folder(tmp_path / "shared")) for name in ("a", "b", "../c/.d")]
    group.run(3.0)
    assert everyone_is_connected(*members)
    assert len(list((tmp_path / "shared" / "group-friends").iterdir())) == 3


def test_a_note_that_is_not_refreshed_is_ignored_after_a_while(tmp_path: Path) -> None:
    group = SimGroup()
    a, b = (group.boot(name, Tcp(), folder(tmp_path)) for name in "ab")
    group.run(3.0)
    assert found(a) == [str(b.transport.endpoint)]
    assert b.node is not None
    b.node.crash()
    group.run(4.0)
    assert found(a) == [str(b.transport.endpoint)]
    group.run(4.0)
    assert found(a) == []
    b = group.boot("b", Tcp(TcpSettings(bind_port=7801)), folder(tmp_path))
    group.run(3.0)
    assert found(a) == [str(b.transport.endpoint)]


def test_a_process_that_stops_takes_its_note_away(tmp_path: Path) -> None:
    group = SimGroup()
    a, b = (group.boot(name, Tcp(), folder(tmp_path)) for name in "ab")
    group.run(3.0)
    b.stack.stop()
    group.run(2.0)
    assert [file.name for file in (tmp_path / "group-friends").iterdir()] == ["member-a.endpoint"]
    assert found(a) == []


def test_notes_that_make_no_sense_are_counted(tmp_path: Path) -> None:
    group = SimGroup()
    a = group.boot("a", Tcp(), folder(tmp_path))
    group.run(0.5)
    home = tmp_path / "group-friends"
    good = Note(1, 1, Endpoint("10.0.0.9", 7800)).to_text()
    texts = ["", "x\n", good[:-1], good.replace("7800", "0"), good.replace("-1 ", "-2 "), good * 2, "x" * 10_000]
    for number, text in enumerate(texts):
        (home / f"bad{number}.endpoint").write_text(text)
    (home / "binary.endpoint").write_bytes(b"\xff\xfe\n")
    (home / "folder.endpoint").mkdir()
    (home / "another file").write_text(good)
    group.run(1.0)
    assert a.stack.find(Folder).stats["malformed"] == 9
    assert found(a) == []


def test_a_folder_that_cannot_be_used_is_tried_again(tmp_path: Path) -> None:
    group = SimGroup()
    (tmp_path / "taken").write_text("not a folder")
    a = group.boot("a", Tcp(), folder(tmp_path / "taken"))
    group.run(3.0)
    assert a.stack.find(Folder).stats["unreadable"] >= 2
    (tmp_path / "taken").unlink()
    b = group.boot("b", Tcp(), folder(tmp_path / "taken"))
    group.run(3.0)
    assert everyone_is_connected(a, b)


def test_groups_that_share_a_folder_stay_apart(tmp_path: Path) -> None:
    group = SimGroup()
    a = group.boot("a", Tcp(), folder(tmp_path))
    group.boot("b", Tcp(), folder(tmp_path), group="..")
    group.run(5.0)
    assert found(a) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["group-..", "group-friends"]


def test_a_real_folder_finds_everybody(tmp_path: Path) -> None:
    async def main() -> None:
        def layers() -> tuple[Udp, Folder]:
            return Udp(UdpSettings(bind_port=0)), folder(tmp_path, interval=0.05)

        async with real("a", *layers()) as a, real("b", *layers()) as b:
            await until(lambda: everyone_is_connected(a, b), a, b)

    run(main())


def test_settings_of_a_folder_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="path is empty"):
        Folder()
    with pytest.raises(UserError, match="expiry must be at least twice interval"):
        folder(tmp_path, interval=3.0)


def test_an_endpoint_that_nobody_can_reach_is_not_noted_down(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(UserError, match="set advertised_host of TCP"):
            async with real("a", Tcp(TcpSettings(bind_host="0.0.0.0", bind_port=0)), folder(tmp_path)):
                pass

    run(main())


# DNS.


def dns(host: str = "group.example", port: int = 0) -> Dns:
    return Dns(DnsSettings(host=host, port=port, interval=1.0))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_name_that_stands_for_all_hosts_connects_them(transport: Callable[[], Transport]) -> None:
    group = SimGroup()
    group.fabric.names["group.example"] = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    members = [group.boot(name, transport(), dns()) for name in "abc"]
    group.run(3.0)
    assert everyone_is_connected(*members)


def test_a_name_is_looked_up_again_and_again() -> None:
    group = SimGroup()
    a, b = group.boot("a", Tcp(), dns(port=7800)), group.boot("b", Tcp(), static())
    group.run(3.0)
    assert a.stack.find(Dns).stats["unresolved"] >= 3
    group.fabric.names["group.example"] = ("10.0.0.2",)
    group.run(2.0)
    assert (found(a), a.peers) == (["10.0.0.2:7800"], [str(b.local)])
    group.fabric.names["group.example"] = ("10.0.0.3",)
    group.run(2.0)
    assert found(a) == ["10.0.0.3:7800"]
    group.fabric.names["group.example"] = ()
    group.run(2.0)
    assert found(a) == ["10.0.0.3:7800"]


def test_settings_of_dns_that_cannot_work_are_refused() -> None:
    with pytest.raises(UserError, match="host is empty"):
        Dns()
    with pytest.raises(UserError, match="the highest is 65535"):
        dns(port=70_000)
