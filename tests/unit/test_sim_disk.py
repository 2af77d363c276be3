"""The simulated disk: durability, tearing, flipped bits, a full disk."""

from __future__ import annotations

from coterie.errors import DiskError
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node


class Host:
    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.node = Node(self.world, Fabric(self.world), "a")
        self.node.boot()
        self.results: list[object] = []

    @property
    def disk(self):  # type: ignore[no-untyped-def]
        assert self.node.process is not None
        return self.node.process.disk

    def settle(self) -> list[object]:
        self.world.run(self.world.time + 1)
        results, self.results = self.results, []
        return results

    def restart(self) -> None:
        self.node.crash()
        self.node.boot()

    def content(self, name: str) -> object:
        self.disk.read(name, 0, 10**6, self.results.append)
        return self.settle()[0]


def test_completions_of_one_file_come_in_order_and_tell_the_offsets() -> None:
    host = Host()
    for part in (b"one", b"two", b"three"):
        host.disk.append("log", [part], host.results.append)
    host.disk.sync("log", host.results.append)
    assert host.results == []
    assert host.settle() == [0, 3, 6, None]
    assert host.content("log") == b"onetwothree"


def test_what_was_synced_survives_a_crash_and_a_tail_of_what_was_not_is_lost() -> None:
    contents = set()
    for seed in range(40):
        host = Host(seed)
        host.disk.append("log", [b"safe"], host.results.append)
        host.disk.sync("log", host.results.append)
        host.disk.append("log", [b"-one"], host.results.append)
        host.disk.append("log", [b"-two"], host.results.append)
        host.settle()
        host.restart()
        contents.add(host.content("log"))
    assert contents == {b"safe", b"safe-one", b"safe-one-two"}


def test_a_torn_write_survives_in_part() -> None:
    contents = set()
    for seed in range(60):
        host = Host(seed)
        host.node.platter.tear = True
        host.disk.append("log", [b"safe"], host.results.append)
        host.disk.sync("log", host.results.append)
        host.disk.append("log", [b"12345678"], host.results.append)
        host.settle()
        host.restart()
        content = host.content("log")
        assert isinstance(content, bytes)
        contents.add(content)
    assert all(content.startswith(b"safe") for content in contents)
    assert any(4 < len(content) < 12 for content in contents)
    assert any(content.endswith(b"\0") for content in contents)


def test_a_flipped_bit_is_there_after_a_restart_too() -> None:
    host = Host()
    host.disk.append("log", [b"\0" * 100], host.results.append)
    host.disk.sync("log", host.results.append)
    host.settle()
    assert host.node.platter.flip()
    host.restart()
    content = host.content("log")
    assert isinstance(content, bytes)
    assert sum(byte.bit_count() for byte in content) == 1


def test_a_full_disk_refuses_and_works_again_when_there_is_room() -> None:
    host = Host()
    host.node.platter.capacity = 10
    host.disk.append("a", [b"12345678"], host.results.append)
    host.disk.append("b", [b"12345678"], host.results.append)
    first, second = host.settle()
    assert first == 0
    assert isinstance(second, DiskError)
    host.disk.remove("a", host.results.append)
    host.settle()
    host.disk.append("b", [b"12345678"], host.results.append)
    host.settle()
    assert host.content("b") == b"12345678"


def test_replace_list_truncate_and_missing_files() -> None:
    host = Host()
    host.disk.append("new", [b"123456"], host.results.append)
    host.disk.truncate("new", 3, host.results.append)
    host.disk.replace("new", "old", host.results.append)
    host.settle()
    host.disk.list(host.results.append)
    assert host.settle() == [{"old": 3}]
    host.disk.read("new", 0, 1, host.results.append)
    (result,) = host.settle()
    assert isinstance(result, DiskError)


def test_what_a_process_had_not_completed_when_it_died_never_completes() -> None:
    host = Host()
    host.disk.append("log", [b"x"], host.results.append)
    host.restart()
    assert host.settle() == []
