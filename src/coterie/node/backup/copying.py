"""From a source to a target: what an earlier backup there has already is not copied again; the manifest comes last.

Files of the log only grow. One with the same name and the same first bytes is the same file, so the pieces that an
earlier backup has of it are a beginning of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from coterie import __version__
from coterie.errors import CoterieError, UserError
from coterie.log.segment import HEADER_SIZE
from coterie.node.backup.manifest import FOLDER, BackedUp, Manifest, Piece, decode, path_of
from coterie.node.backup.source import Source
from coterie.node.backup.target import Target

PIECE_MAX: Final = 8 << 20
"""Bytes that are in memory at one time."""
_HEAD: Final = 256
_SUFFIX: Final = ".json"
Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Copied:
    manifest: Manifest
    bytes: int
    """That were copied."""
    reused: int
    """That an earlier backup had."""


def manifests(target: Target) -> list[str]:
    """The backups that are there, the oldest first."""
    return [name.removesuffix(_SUFFIX) for name in target.list(FOLDER) if name.endswith(_SUFFIX)]


def manifest_of(target: Target, id: str = "") -> Manifest:
    """Nothing: the newest. Raises UserError and CoterieError."""
    there = manifests(target)
    if not there:
        raise UserError(f"{target.where}: there is no backup (one that was interrupted is none)")
    wanted = id or there[-1]
    data = target.read(path_of(wanted))
    if data is None:
        raise UserError(f"{target.where}: there is no backup {wanted}: there are {', '.join(there[-10:])}")
    return decode(data, f"{target.where}/{path_of(wanted)}")


def copy(source: Source, target: Target, told: Told = lambda done, of: None, now: datetime | None = None) -> Copied:
    """Raises CoterieError."""
    id = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%S.%fZ")
    known = _known(target)
    facts = source.facts
    total = sum(size for _, size in facts.files)
    copied = reused = 0
    files: list[BackedUp] = []
    for name, size in facts.files:
        head = source.read(name, 0, min(size, _HEAD)).hex()
        pieces = _had(known.get(name), head, size, target)
        at = sum(piece.size for piece in pieces)
        reused += at
        while at < size:
            data = _exactly(source, name, at, min(PIECE_MAX, size - at))
            piece = Piece(len(data), hashlib.sha256(data).hexdigest())
            if target.size(piece.path) != piece.size:
                target.write(piece.path, data)
            pieces.append(piece)
            at += len(data)
            copied += len(data)
            told(copied + reused, total)
        told(copied + reused, total)
        files.append(BackedUp(name, size, head, tuple(pieces)))
    manifest = Manifest(id, facts.node, facts.cluster, facts.at, facts.last, __version__, tuple(files))
    target.write(manifest.path, manifest.encode())
    return Copied(manifest, copied, reused)


def _exactly(source: Source, name: str, at: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.read(name, at + len(data), size - len(data))
        if not more:
            raise CoterieError(f"{name} ends at {at + len(data)} bytes, and not at {at + size} as it should")
        data += more
    return data


def _known(target: Target) -> dict[str, BackedUp]:
    """Of the newest backup that can be read. What cannot is not relied on."""
    for id in reversed(manifests(target)):
        try:
            return {file.name: file for file in manifest_of(target, id).files}
        except CoterieError:
            continue
    return {}


def _had(before: BackedUp | None, head: str, size: int, target: Target) -> list[Piece]:
    """The pieces of a file that are there and whole."""
    found: list[Piece] = []
    if before is None or len(before.head) < 2 * HEADER_SIZE or not head.startswith(before.head):
        return found
    at = 0
    for piece in before.pieces:
        if at + piece.size > size or target.size(piece.path) != piece.size:
            break
        found.append(piece)
        at += piece.size
    return found
