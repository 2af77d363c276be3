"""Snapshots: the owner's state after one record, in sections, each with a checksum.

    header   magic, version, log id, ordinal, place, chain, checksum
    piece*   section, size, checksum, bytes       a section is the pieces that bear its number, one after the other
    end      section 2**32 - 1, number of pieces, checksum of all pieces' checksums

A snapshot is written in the background, a slice a turn, to a temporary file, which is synced and then renamed. It never
stands for more than is committed and synced here. Older ones are removed when a newer one is in place, but for the
last of them: a snapshot that turns out to be damaged costs a longer replay, not the state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from coterie.errors import DiskError
from coterie.log.errors import Damaged, Foreign, TailGone, UnknownVersion
from coterie.log.folder import TEMPORARY, Folder, parse_snapshot_name, snapshot_name
from coterie.log.place import MOST, Place, Position
from coterie.log.record import CHAIN_SIZES
from coterie.log.segment import ID_SIZE
from coterie.log.settings import LogSettings
from coterie.runtime.base import Buffer

MAGIC: Final = b"cotsnap\n"
VERSION: Final = 1
_HEADER = struct.Struct("<8sHBx16sQQQ32sI")
_PIECE = struct.Struct("<IIII")
_END: Final = 2**32 - 1
SECTION_MAX: Final = _END - 1
PIECE_MAX: Final = 2**31


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One that was read."""

    position: Position
    sections: dict[int, bytes]


class Snapshots:
    """Of one log."""

    def __init__(self, folder: Folder, settings: LogSettings, log_id: bytes, kept: list[int]) -> None:
        """`kept`: the ordinals of those that were found sound, oldest first."""
        self._folder = folder
        self._settings = settings
        self._log_id = log_id
        self.kept = kept
        self.writing = False

    @property
    def oldest(self) -> int:
        """Records up to this ordinal are never replayed again; 0: all may be."""
        return self.kept[0] if len(self.kept) >= self._settings.snapshots else 0

    async def write(
        self, position: Position, pieces: Iterable[tuple[int, Buffer]], valid: Callable[[], bool] = lambda: True
    ) -> None:
        """`pieces` is asked for the next (section, bytes) a few milliseconds a turn; whatever it reads must not change
        meanwhile. Raises DiskError, and then there is no new snapshot (or, if only the renaming was not confirmed,
        there may be). The caller sees to it that `position` is committed and synced."""
        assert not self.writing, "one snapshot at a time"
        self.writing = True
        name = snapshot_name(position.ordinal)
        temporary = name + TEMPORARY
        try:
            await self._folder.make_way(temporary)
            await self._write(temporary, position, pieces)
            await self._folder.sync(temporary)
            if not valid():
                await self._folder.remove(temporary)
                raise TailGone("the log was truncated meanwhile")
            await self._folder.replace(temporary, name)
            self.kept = sorted({*self.kept, position.ordinal})
            await self._remove_old()
        except DiskError:
            self._folder.discard([temporary], self._settings.retry_interval)
            raise
        finally:
            self.writing = False

    async def _write(self, file: str, position: Position, pieces: Iterable[tuple[int, Buffer]]) -> None:
        buffers: list[Buffer] = [_encode_header(self._log_id, position)]
        now = self._folder.runtime.now
        size = count = crc = 0
        began = now()
        for section, data in pieces:
            if not 0 <= section <= SECTION_MAX or len(data) > PIECE_MAX:
                raise ValueError(f"section {section} of {len(data)} bytes")
            checksum = crc32(data)
            buffers += (_piece(section, len(data), checksum), data)
            crc = crc32(checksum.to_bytes(4, "little"), crc)
            count += 1
            size += len(data)
            if size >= self._settings.slice_bytes or now() - began > self._settings.slice_seconds:
                await self._folder.append(file, buffers)
                buffers, size = [], 0
                began = now()
        buffers.append(_piece(_END, count, crc))
        await self._folder.append(file, buffers)

    async def _remove_old(self) -> None:
        while len(self.kept) > self._settings.snapshots:
            try:
                await self._folder.remove(snapshot_name(self.kept[0]))
            except DiskError:
                return  # it is tried again after the next one
            del self.kept[0]

    async def remove_after(self, ordinal: int) -> None:
        """Those of states that shall not have been, also any that is not known here. Raises DiskError."""
        for name in await self._folder.list():
            found = parse_snapshot_name(name)
            if found is not None and found > ordinal:
                await self._folder.remove(name)
        self.kept = [kept for kept in self.kept if kept <= ordinal]


async def read_snapshot(folder: Folder, name: str, size: int, log_id: bytes | None) -> tuple[bytes, Snapshot]:
    """Gives the log's id too. Raises DiskError: Damaged, Foreign, UnknownVersion or what the disk says."""
    data = memoryview(await folder.read(name, 0, size))
    id, position = _decode_header(data)
    if log_id is not None and id != log_id:
        raise Foreign(f"of another log, {id.hex()}")
    if parse_snapshot_name(name) != position.ordinal:
        raise Damaged("the snapshot's header makes no sense under this name")
    sections: dict[int, bytearray] = {}
    at, count, all_crc = _HEADER.size, 0, 0
    while True:
        if len(data) - at < _PIECE.size:
            raise Damaged("the snapshot is cut off")
        section, size, checksum, crc = _PIECE.unpack_from(data, at)
        if crc32(data[at : at + _PIECE.size - 4]) != crc:
            raise Damaged("the snapshot is damaged")
        at += _PIECE.size
        if section == _END:
            if (size, checksum) != (count, all_crc) or at != len(data):
                raise Damaged("the snapshot is not whole")
            return id, Snapshot(position, {number: bytes(parts) for number, parts in sections.items()})
        piece = data[at : at + size]
        if len(piece) < size or crc32(piece) != checksum:
            raise Damaged(f"section {section} of the snapshot is damaged")
        sections.setdefault(section, bytearray()).extend(piece)
        all_crc = crc32(checksum.to_bytes(4, "little"), all_crc)
        count += 1
        at += size


def _piece(section: int, size: int, checksum: int) -> bytes:
    plain = _PIECE.pack(section, size, checksum, 0)[:-4]
    return plain + crc32(plain).to_bytes(4, "little")


def _encode_header(log_id: bytes, position: Position) -> bytes:
    assert len(log_id) == ID_SIZE
    ordinal, place, chain = position
    plain = _HEADER.pack(MAGIC, VERSION, len(chain), log_id, ordinal, *place, chain, 0)[:-4]
    return plain + crc32(plain).to_bytes(4, "little")


def _decode_header(data: memoryview) -> tuple[bytes, Position]:
    if len(data) < _HEADER.size:
        raise Damaged("empty" if not len(data) else "the snapshot is cut off")
    magic, version, chain_size, id, ordinal, epoch, index, chain, crc = _HEADER.unpack_from(data)
    if crc32(data[: _HEADER.size - 4]) != crc:
        raise Damaged("the snapshot's header is damaged")
    if magic != MAGIC:
        raise Foreign("not a snapshot of a log")
    if version != VERSION:
        raise UnknownVersion(f"the snapshot is of version {version}, and this program knows version {VERSION} only")
    if max(ordinal, epoch, index) >= MOST or (chain_size and chain_size not in CHAIN_SIZES):
        raise Damaged("the snapshot's header makes no sense")
    return id, Position(ordinal, Place(epoch, index), chain[:chain_size])
