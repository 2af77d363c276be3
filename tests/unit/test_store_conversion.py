"""A store of the form before the log is written anew at the first start: nothing is lost, whatever happens."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from store_rig import SMALL, Host, Line, PowerCut, TroubledDisk

from coterie.broker.log_store import LogStore
from coterie.errors import DiskError
from coterie.sim.disk import _File

RICH = json.loads((Path(__file__).parent / "testdata" / "stores" / "rich.json").read_text())
"""Several segments, one of which was written anew: messages in two queues, priorities, last values, times of expiry."""


def given(host: Host) -> None:
    """The host was switched off, and has the old store."""
    host.node.crash()
    host.node.platter.files.clear()
    for name, text in RICH["files"].items():
        data = base64.b64decode(text)
        host.node.platter.files[name] = _File(bytearray(data), data)


def check(host: Host) -> None:
    assert host.found.damage == []
    records = {f"{kind}/{key}": record for (kind, key), record in host.found.records.items()}
    assert records == RICH["records"]
    for name, expected in RICH["expected"].items():
        line = Line(host.store, name)
        line.restore(host.store, host.found)
        next_position, entries = host.found.queues["/", name, 1]
        assert next_position >= expected["next"]
        bodies = host.bodies(line)
        found: list[list[Any]] = []
        for entry in entries:
            message = line.entries[entry.position].message
            assert message is not None
            id = None if message.id is None else [*message.id]
            found.append([entry.position, bodies[entry.position].decode(), entry.mark, entry.expires, id])
        assert found == expected["entries"]


def folders(host: Host) -> set[str]:
    return {name.partition("/")[0] for name in host.files} - {"log.reserve"}


def test_everything_of_an_old_store_is_there_and_the_old_folder_goes() -> None:
    host = Host()
    given(host)
    host.boot()
    assert host.found.clean
    check(host)
    assert folders(host) == {"log.1"}
    delivered = {name: [entry.redelivered for entry in host.found.queues["/", name, 1][1]] for name in ("b", "ranks")}
    assert sum(delivered["b"]) == 1
    assert not any(delivered["ranks"])
    host.crash()
    check(host)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_power_lost_at_any_step_of_it_loses_nothing(moment: str) -> None:
    step, ended = 0, False
    while not ended:
        step += 1
        host = Host(step)
        given(host)
        left = step

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise PowerCut

        runtime = host.node.boot()
        disk = TroubledDisk(host.world, host.node.platter)
        disk.owner, runtime.disk = runtime.owner, disk
        setattr(disk, moment, count)
        told: list[object] = []
        LogStore(runtime, SMALL).recover(told.append)
        try:
            host.until(lambda told=told: bool(told))
            ended = True
        except PowerCut:
            pass
        host.node.crash()
        host.boot()
        check(host)
        assert folders(host) in ({"log.1"}, {"log.2"})
    assert step > 40


def test_a_disk_that_has_no_room_for_both_keeps_the_old_one() -> None:
    host = Host()
    given(host)
    before = host.files
    host.node.platter.capacity = host.node.platter.used() + 3000
    with pytest.raises((DiskError, AssertionError)):
        host.boot()
    assert {name: data for name, data in host.files.items() if name.startswith("store/")} == before
    host.node.platter.capacity = None
    host.node.crash()
    host.boot()
    check(host)
