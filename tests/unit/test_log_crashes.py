"""A log under everything at once, by seed: appends, snapshots, merges, truncations, a disk that fails, fills up, tears
writes, and power cuts between any two of its operations. After each recovery: what was told synced is there, byte for
byte; nothing that was truncated or never appended is; order and chain are right."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from log_rig import SMALL, Host, content, head_of
from store_rig import PowerCut

from coterie.errors import DiskError
from coterie.log.place import ORIGIN, Position
from coterie.log.problems import Kind
from coterie.log.record import Record

CRASHES = {Kind.TORN, Kind.LEFTOVER, Kind.EMPTY}
"""What a crash alone may leave behind."""


class Script:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"log/{seed}")
        self.host = Host(f"log/{seed}", SMALL)
        self.appended: list[Record] = []
        """The history as it was told to the log; after a crash, as it was found."""
        self.synced = 0
        """The log has told that so many are."""
        self.snapshots: dict[int, bytes] = {}
        self.crashes = self.merged = self.truncated = self.torn = 0

    def run(self, steps: int) -> None:
        acts: list[tuple[int, Callable[[], None]]] = [
            (10, self.append), (3, self.rest), (3, self.snapshot), (3, self.merge), (1, self.truncate),
            (2, self.kill), (1, self.trouble), (3, self.calm), (1, self.close), (2, self.read), (4, self.cut_power),
        ]  # fmt: skip
        weights, calls = zip(*acts, strict=True)
        for _ in range(steps):
            (act,) = self.rng.choices(calls, weights)
            act()
        self.calm()
        self.crash()

    def append(self) -> None:
        if self.host.log.writer.halted:
            return
        if self.rng.random() < 0.1:
            self.host.epoch += 1
        for _ in range(self.rng.randint(1, 8)):
            volatile = self.rng.random() < 0.2
            body = b"" if volatile else self.rng.randbytes(self.rng.choice([0, 1, 50, 200, 900]))
            self.appended += self.host.add(body, volatile=volatile)
        record, life, writer = self.appended[-1], self.host.log.writer.life, self.host.log.writer

        def told() -> None:
            assert writer is self.host.log.writer, "of an earlier life"
            assert life == writer.life, "of an earlier life"
            self.synced = max(self.synced, record.ordinal)

        self.host.log.writer.when_synced(record.place, told)

    def rest(self) -> None:
        self.host.run(self.rng.choice([0.0005, 0.003, 0.02, 2.0]))

    def snapshot(self) -> None:
        ordinal = self.rng.randint(0, self.host.log.writer.synced.ordinal)
        if not ordinal or ordinal <= max(self.host.log.snapshots.kept, default=0):
            return
        state = self.rng.randbytes(self.rng.choice([0, 10, 2000]))
        self.snapshots[ordinal] = state
        pieces = [(section, state[at : at + 300]) for section in (7, 9) for at in range(0, len(state), 300)]
        place = self.appended[ordinal - 1].place
        self.background(self.host.log.snapshot(place, place, pieces))

    def merge(self) -> None:
        oldest = self.host.log.snapshots.oldest
        for record in self.appended[:oldest]:
            if self.rng.random() < 0.5:
                self.host.owner.dead.add(record.place)
        self.merged += self.background(self.host.log.merger.run()) or 0

    def truncate(self) -> None:
        low = max(self.host.log.snapshots.kept, default=0)
        ordinal = self.rng.randint(max(low, len(self.appended) - 15), max(low, len(self.appended)))
        if self.rng.random() < 0.3 and self.host.log.snapshots.kept:
            ordinal = self.rng.choice(self.host.log.snapshots.kept)
        if not 0 < ordinal < len(self.appended):
            return
        place = self.appended[ordinal - 1].place
        try:
            self.host.do(self.host.log.truncate(place), seconds=20)
        except (DiskError, AssertionError):  # what is behind may be gone or not
            self.synced = min(self.synced, ordinal)
            self.crash()
            return
        self.truncated += 1
        self.synced = min(self.synced, ordinal)
        del self.appended[ordinal:]
        self.host.epoch += 1  # another history: not one of the places that were given up is used again

    def kill(self) -> None:
        self.crash(power=False)

    def trouble(self) -> None:
        platter = self.host.node.platter
        platter.failing = self.rng.choice([0.0, 0.2, 0.5])
        platter.sticking = self.rng.choice([0.0, 0.0, 0.3])
        if self.rng.random() < 0.5:
            platter.capacity = platter.used() + self.rng.randint(0, 3000)

    def calm(self) -> None:
        platter = self.host.node.platter
        platter.failing = platter.sticking = 0.0
        platter.capacity = None

    def close(self) -> None:
        self.calm()
        self.host.run(5)
        self.host.do(self.host.log.close())
        if not self.host.log.writer.refused:
            self.synced = len(self.appended)
        self.crash(power=False, clean=True)

    def read(self) -> None:
        if self.host.log.writer.halted:
            return
        writer = self.host.log.writer
        start = self.host.log.tail.verbatim_from.place
        synced = writer.synced.place
        read = [content(record) for record in self.host.read(start)]
        expected = [content(record) for record in self.appended if start < record.place]
        assert read == expected[: len(read)]
        assert len(read) >= len([record for record in self.appended if start < record.place <= synced])

    def cut_power(self) -> None:
        """At one of the next operations of the disk."""
        left = [self.rng.randint(1, 25)]

        def count() -> None:
            left[0] -= 1
            if left[0] <= 0:
                raise PowerCut

        if self.rng.random() < 0.5:
            self.host.disk.before = count
        else:
            self.host.disk.after = count
        try:
            for _ in range(4):
                self.rng.choice([self.append, self.rest, self.snapshot, self.merge])()
        except PowerCut:
            pass
        self.crash()

    def background(self, work: object) -> int | None:
        try:
            result: int | None = self.host.do(work, seconds=30)  # type: ignore[arg-type]
            return result
        except DiskError:
            return None

    def crash(self, power: bool = True, clean: bool = False) -> None:
        self.crashes += 1
        host = self.host
        self.calm()
        host.node.crash(power=power)
        host.boot()
        self.check(clean)

    def check(self, clean: bool) -> None:
        log, owner, found = self.host.log, self.host.owner, self.host.log.found
        assert not found.halted, found.halted
        assert {problem.kind for problem in found.problems} <= (CRASHES if not clean else {Kind.LEFTOVER})
        self.torn += any(problem.kind is Kind.TORN for problem in found.problems)
        count = found.last.ordinal
        assert self.synced <= count <= len(self.appended), (self.synced, count, len(self.appended))
        del self.appended[count:]
        if found.snapshot is not None:
            state = self.snapshots[found.snapshot.position.ordinal]
            assert owner.state == ({7: state, 9: state} if state else {})
        assert list(owner.records) == list(range(owner.base + 1, count + 1))
        for ordinal, record in owner.records.items():
            assert head_of(record) == head_of(self.appended[ordinal - 1])
        last = self.appended[-1] if self.appended else None
        assert found.last == (Position(last.ordinal, last.place, last.chain) if last else ORIGIN)
        owner.records = {record.ordinal: record for record in self.appended}
        wanted = {r.place: b"".join(r.bodies) for r in self.appended if r.place not in owner.dead}
        assert self.host.bodies(wanted) == wanted
        assert log.writer.last.ordinal == count
        self.host.epoch = max(self.host.epoch, found.last.place.epoch)


@pytest.mark.parametrize("seed", [*range(50), 129])
def test_whatever_happens_what_was_synced_is_there_and_what_was_given_up_is_not(seed: int) -> None:
    script = Script(seed)
    script.run(60)


def test_the_seeds_reach_what_they_are_for() -> None:
    crashes = merged = truncated = torn = 0
    for seed in range(100, 115):
        script = Script(seed)
        script.run(60)
        crashes += script.crashes
        merged += script.merged > 0
        truncated += script.truncated
        torn += script.torn
    assert min(crashes, merged, truncated, torn) >= 3, (crashes, merged, truncated, torn)


@pytest.mark.parametrize("seed", range(25))
def test_flipped_bits_never_give_wrong_bytes(seed: int) -> None:
    rng = random.Random(f"flip/{seed}")
    host = Host(f"flip/{seed}", SMALL)
    told: dict[int, Record] = {}
    for _ in range(rng.randint(1, 4)):
        host.add(*(rng.randbytes(rng.choice([0, 60, 300])) for _ in range(rng.randint(1, 20))))
        host.sync()
        if rng.random() < 0.5:
            host.snapshot([(1, b"state" * 20)])
        if rng.random() < 0.5:
            told = dict(host.owner.records)
            host.restart()
            host.owner.records = dict(told)
    told = dict(host.owner.records)
    host.run(3)
    original = {record.place: record for record in told.values()}
    for _ in range(rng.randint(1, 3)):
        host.node.platter.flip()
    synced = host.log.writer.synced.ordinal
    host.node.crash()
    host.boot()
    found = host.log.found
    for record in host.owner.records.values():
        assert head_of(record) == head_of(original[record.place])
    for place, body in host.bodies(original).items():
        assert isinstance(body, str) or body == b"".join(original[place].bodies)
    # Nothing that was noted as synced is cut off without being told.
    assert found.last.ordinal == synced or found.problems
    if found.halted:
        with pytest.raises(DiskError):
            host.fill(1)
        host.do(host.log.truncate(found.last.place))
        host.owner.records = {ordinal: r for ordinal, r in told.items() if ordinal <= found.last.ordinal}
    host.epoch = 9
    host.fill(3)
    host.sync()
