"""The first step of recovery: which files there are, which segments count, and up to where.

A segment ends where a later one begins (see segment.py), whatever its own records say.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.errors import DiskError
from coterie.log.errors import Damaged, Foreign, UnknownVersion
from coterie.log.folder import TEMPORARY, Folder, SegmentName, parse_segment_name, parse_snapshot_name
from coterie.log.place import START, Place, Position
from coterie.log.problems import Kind, Problem
from coterie.log.record import MARK_SIZE, PREFIX_SIZE, decode_prefix
from coterie.log.segment import HEADER_SIZE, MAGIC, Header, decode_header
from coterie.log.snapshot import Snapshot, read_snapshot

ENDLESS = 2**63
_WORTHLESS = 1 << 16
"""Bytes of a file that cannot be read at all and is removed; a larger one is kept under another name."""


@dataclass(slots=True)
class Surveyed:
    """A segment that counts."""

    name: SegmentName
    size: int
    header: Header
    bound: int = ENDLESS
    """The last ordinal that may count in it."""


class Survey:
    """Of one folder."""

    def __init__(self, folder: Folder, log_id: bytes | None) -> None:
        self._folder = folder
        self.log_id = log_id
        self.problems: list[Problem] = []
        self.snapshot: Snapshot | None = None
        self.sound_snapshots: list[int] = []
        self.segments: list[Surveyed] = []
        self.next_number = 1
        self.void: list[str] = []
        """Segments of which nothing counts: they may go."""

    async def run(self) -> None:
        """Raises DiskError, if not even the folder can be listed; UnknownVersion; and Foreign, if nothing in the folder
        is of this log and something of another."""
        names: dict[SegmentName, int] = {}
        snapshots: dict[str, int] = {}
        unfinished: list[str] = []
        for text, size in (await self._folder.list()).items():
            name = parse_segment_name(text)
            if name is not None:
                names[name] = size
            elif parse_snapshot_name(text) is not None:
                snapshots[text] = size
            elif text.endswith(TEMPORARY):
                unfinished.append(text)
            else:
                self._tell(Kind.STRANGER, text)
        await self._read_snapshots(snapshots)
        await self._read_headers(names)
        if not self.segments and self.snapshot is None and any(p.kind is Kind.FOREIGN for p in self.problems):
            raise Foreign("; ".join(map(str, self.problems)))
        self._bound()
        for text in unfinished:
            await self._remove(Kind.LEFTOVER, text)

    def _tell(self, kind: Kind, file: str, text: object = "", halts: bool = False) -> None:
        self.problems.append(Problem(kind, file, str(text), halts=halts))

    async def _read_snapshots(self, files: dict[str, int]) -> None:
        for name in sorted(files, reverse=True):
            try:
                id, found = await read_snapshot(self._folder, name, files[name], self.log_id)
            except UnknownVersion:
                raise
            except Foreign as error:
                self._tell(Kind.FOREIGN, name, error)
            except DiskError as error:
                self._tell(Kind.BAD_SNAPSHOT, name, error)
            else:
                self.log_id = id
                self.sound_snapshots.insert(0, found.position.ordinal)
                if self.snapshot is None:
                    self.snapshot = found

    async def _read_headers(self, names: dict[SegmentName, int]) -> None:
        end = 0
        self.next_number = max((name.last for name in names), default=0) + 1
        for name in sorted(names, key=lambda name: (name.number, -name.last, -name.generation)):
            size, file = names[name], str(name)
            if name.last <= end:
                await self._remove(Kind.LEFTOVER, file, "merged into another segment")
                continue
            try:
                data = await self._folder.read(file, 0, min(size, HEADER_SIZE + PREFIX_SIZE))
                header = decode_header(data, name, self.log_id)
            except UnknownVersion:
                raise
            except Foreign as error:
                self._tell(Kind.FOREIGN, file, error)
                continue
            except Damaged as error:
                guessed = self._guess_header(name, data)
                if guessed is None:
                    await self._headless(name, size, data, error)
                    continue
                self._tell(Kind.BAD_HEADER, file, error)
                header = guessed
            except DiskError as error:
                # It may be readable the next time: nothing is given up because of it.
                self._tell(Kind.UNREADABLE, file, error, halts=True)
                continue
            self.log_id = header.log_id or self.log_id
            self.segments.append(Surveyed(name, size, header))
            end = name.last

    def _guess_header(self, name: SegmentName, data: bytes) -> Header | None:
        """From the first record, which tells the mark and the ordinal. Of a merged one it tells too little."""
        mark = data[HEADER_SIZE : HEADER_SIZE + MARK_SIZE]
        prefix = decode_prefix(data, HEADER_SIZE, mark)
        if prefix is None or name.generation or not prefix.ordinal:
            return None
        previous = self.segments[-1] if self.segments else None
        if previous is not None and previous.header.first > prefix.ordinal:
            return None
        place = Place(prefix.epoch, prefix.index - 1) if prefix.index else START
        before = Position(prefix.ordinal - 1, place, b"")
        return Header(self.log_id or b"", name.number, name.last, prefix.ordinal, 0, before, mark)

    async def _headless(self, name: SegmentName, size: int, data: bytes, error: Damaged) -> None:
        """Nothing in it can be read. If a crash interrupted its making nothing is missing; otherwise that shows by the
        ordinals."""
        file = str(name)
        if not size:
            await self._remove(Kind.EMPTY, file)
        elif not MAGIC.startswith(data[: len(MAGIC)].rstrip(b"\0")):  # a torn header begins right and ends with zeros
            self._tell(Kind.FOREIGN, file, "not a segment of a log")
        elif name.generation:
            self._tell(Kind.BAD_HEADER, file, error)
        elif size <= _WORTHLESS:
            await self._remove(Kind.TORN, file, error)
        else:
            self._tell(Kind.TORN, file, f"{error}; it is kept as {file}.damaged")
            try:
                await self._folder.replace(file, f"{file}.damaged")
            except DiskError as second:
                self._tell(Kind.UNREADABLE, file, f"cannot be renamed: {second}")

    def _bound(self) -> None:
        first = ENDLESS + 1
        kept = []
        for segment in reversed(self.segments):
            segment.bound = first - 1
            if segment.header.first > segment.bound and segment is not self.segments[-1]:
                self.void.append(str(segment.name))
                continue
            kept.append(segment)
            first = min(first, segment.header.first)
        self.segments = kept[::-1]

    async def _remove(self, kind: Kind, file: str, text: object = "") -> None:
        self._tell(kind, file, text)
        try:
            await self._folder.remove(file)
        except DiskError as error:
            self._tell(Kind.UNREADABLE, file, f"cannot be removed: {error}")
            self.void.append(file)  # it is tried again, before anything else is removed
