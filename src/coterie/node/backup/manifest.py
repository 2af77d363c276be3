"""A manifest: what one backup consists of, with a checksum of each piece, and one of itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from coterie.errors import CoterieError

VERSION: Final = 1
FOLDER: Final = "backups"
PIECES: Final = "pieces"
_SUM: Final = "sum"


@dataclass(frozen=True, slots=True)
class Piece:
    size: int
    sha256: str

    @property
    def path(self) -> str:
        """In the target."""
        return f"{PIECES}/{self.sha256[:2]}/{self.sha256}"


@dataclass(frozen=True, slots=True)
class BackedUp:
    """One file of the log."""

    name: str
    size: int
    head: str
    """Its first bytes, in hex: with the name they say which file it is, as a segment's header has bytes by chance."""
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    id: str
    """When it was begun; later ones sort behind earlier ones."""
    node: str
    cluster: str
    """Empty: the node stood alone."""
    at: str
    """The place of the cluster's log that it has come to; empty: it is not known."""
    last: int
    """The ordinal of the last record of the log."""
    made_by: str
    """The version of Coterie."""
    files: tuple[BackedUp, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def path(self) -> str:
        return path_of(self.id)

    def encode(self) -> bytes:
        said: dict[str, Any] = {
            "format": VERSION, "id": self.id, "node": self.node, "cluster": self.cluster, "at": self.at,
            "last": self.last, "made_by": self.made_by,
            "files": [
                {
                    "name": file.name, "size": file.size, "head": file.head,
                    "pieces": [[piece.size, piece.sha256] for piece in file.pieces],
                }
                for file in self.files
            ],
        }  # fmt: skip
        return json.dumps({**said, _SUM: _sum(said)}, indent=1).encode() + b"\n"


def path_of(id: str) -> str:
    return f"{FOLDER}/{id}.json"


def decode(data: bytes, where: str) -> Manifest:
    """Raises CoterieError."""
    try:
        said = json.loads(data)
        if not isinstance(said, dict):
            raise TypeError
        if said.get("format") != VERSION:
            raise CoterieError(f"{where} is of format {said.get('format')}, and this program knows {VERSION}: upgrade")
        told = said.pop(_SUM)
        if told != _sum(said):
            raise CoterieError(f"{where} is damaged: its checksum does not fit")
        files = tuple(
            BackedUp(
                str(file["name"]), int(file["size"]), str(file["head"]),
                tuple(Piece(int(size), str(sha256)) for size, sha256 in file["pieces"]),
            )
            for file in said["files"]
        )  # fmt: skip
        return Manifest(
            said["id"], said["node"], said["cluster"], said["at"], int(said["last"]), said["made_by"], files
        )
    except (ValueError, KeyError, TypeError):
        raise CoterieError(f"{where} is damaged: it is no manifest") from None


def _sum(said: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
