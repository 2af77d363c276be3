"""From a target to a data folder: every byte is compared with its checksum, the log is followed by its chain, and every
message is read, before anything has its name. What comes of it is a new cluster, or a broker that stands alone.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coterie.broker.log_store import StoreSettings
from coterie.broker.log_store.lines import QueueKey
from coterie.broker.log_store.offline import OfflineStore
from coterie.cluster.recovering.beginning import ID_SIZE, Records, new_cluster
from coterie.cluster.recovering.candidate import STATE, candidate_of
from coterie.cluster.recovering.mark import RESTORED
from coterie.errors import CoterieError, DiskError, NoSuchFile, UserError
from coterie.node.backup.copying import Told
from coterie.node.backup.manifest import BackedUp, Manifest, Piece
from coterie.node.backup.target import Target
from coterie.node.naming import keep_name
from coterie.node.node import lock
from coterie.node.offline import STORE
from coterie.runtime.aio import AioRuntime
from coterie.runtime.aio.overlay import ClosingDisk, OverlayDisk
from coterie.runtime.base import Buffer

UNFINISHED: Final = "restoring"
"""In the data folder, until everything is in it and was looked at."""
_PIECES_KEPT: Final = 4


@dataclass(frozen=True, slots=True)
class Restored:
    """What a backup has."""

    queues: dict[QueueKey, int]
    """How many messages of each."""
    users: int
    lost: tuple[str, ...]
    """What could not be read when the backup was made, in sentences."""
    cluster: str = ""
    """The new one; empty: none."""


def fetch(target: Target, file: BackedUp, at: int, piece: Piece) -> bytes:
    """A piece as it was written. Raises CoterieError, which names the file."""
    where = f"{target.where}/{piece.path}, bytes {at} to {at + piece.size} of {file.name}"
    data = target.read(piece.path)
    if data is None:
        raise CoterieError(f"{where}: the piece is missing")
    if len(data) != piece.size or hashlib.sha256(data).hexdigest() != piece.sha256:
        raise CoterieError(f"{where}: the piece is damaged: its checksum does not fit")
    return data


async def verify(target: Target, manifest: Manifest, settings: StoreSettings, told: Told) -> Restored:
    """As a restore would, without a folder. Raises CoterieError."""
    for done, file, at, piece in _pieces(manifest):
        fetch(target, file, at, piece)
        told(done, manifest.size)
    runtime = AioRuntime("verify")
    runtime.disk = OverlayDisk(_ManifestDisk(target, manifest, runtime.call_soon), runtime.call_soon)
    try:
        return await _look(await OfflineStore.open(runtime, settings, STORE), manifest, told)
    finally:
        await runtime.close()


async def restore(
    target: Target, manifest: Manifest, folder: Path, name: str, settings: StoreSettings, told: Told, accept_loss: bool
) -> Restored:
    """`name`: of the node that is to run there. Raises UserError if there is a store already, and CoterieError."""
    _check_empty(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = lock(folder)
    try:
        unfinished = folder / UNFINISHED
        _clear(unfinished)
        unfinished.mkdir(mode=0o700)
        _write(target, manifest, unfinished, told)
        runtime = AioRuntime("restore", disk_dir=folder)
        try:
            store = await OfflineStore.open(runtime, settings, UNFINISHED)
            found = await _look(store, manifest, told)
            if found.lost and not accept_loss:
                raise CoterieError(
                    f"{'; '.join(found.lost)}: the backup is as it was made, and its source was damaged then: take "
                    "another one (--backup), or what can be read (--accept-loss)"
                )
            cluster, records = _begin(store, manifest, folder, name, runtime)
            await store.change(records, (await store.check()).ranges if found.lost else {})
            await store.close()
        finally:
            await runtime.close()
        keep_name(folder, name)
        unfinished.rename(folder / STORE)
        _sync(folder)
        return Restored(found.queues, found.users, found.lost, cluster)
    except OSError as error:
        raise CoterieError(f"{folder}: cannot be written: {error.strerror}") from None
    finally:
        os.close(held)


def _begin(
    store: OfflineStore, manifest: Manifest, folder: Path, name: str, runtime: AioRuntime
) -> tuple[str, Records]:
    """The identity of the new cluster, if it was one."""
    state = store.found.records.get(STATE)
    if state is None or not state.get("cluster"):
        return "", {STATE: None}
    old = candidate_of(str(folder), manifest.node, store.found, {})
    return new_cluster(old, name, runtime.entropy(ID_SIZE), runtime.wall(), RESTORED)


async def _look(store: OfflineStore, manifest: Manifest, told: Told) -> Restored:
    bad = await store.check(told)
    found = store.found
    if found.records.get(STATE, {}).get("updating"):
        raise CoterieError("the backup is of a store whose update was cut off: take another one (--backup)")
    lost = [*found.damage]
    if store.last < manifest.last:
        lost.append(f"the last records of the log, {store.last + 1} to {manifest.last}, cannot be read")
    lost += [f"{count} messages of queue '{name}' in vhost '{vhost}' cannot be read" for (vhost, name, _), count in
             sorted(bad.queues.items())]  # fmt: skip
    users = sum(kind == "user" for kind, _ in found.records)
    return Restored(store.messages, users, tuple(lost))


def _check_empty(folder: Path) -> None:
    there = folder.exists() and [each.name for each in folder.iterdir() if each.name.startswith((STORE, "store"))]
    if there:
        raise UserError(
            f"{folder} has data in it ({', '.join(sorted(there))}): name an empty folder, or keep it aside by "
            "`coterie cluster set-aside`"
        )


def _write(target: Target, manifest: Manifest, folder: Path, told: Told) -> None:
    for done, file, at, piece in _pieces(manifest):
        data = fetch(target, file, at, piece)
        with (folder / file.name).open("ab") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        told(done, manifest.size)
    _sync(folder)


def _pieces(manifest: Manifest) -> list[tuple[int, BackedUp, int, Piece]]:
    """With how many bytes there are up to its end, in the file's and in all."""
    found: list[tuple[int, BackedUp, int, Piece]] = []
    done = 0
    for file in manifest.files:
        if Path(file.name).name != file.name or sum(piece.size for piece in file.pieces) != file.size:
            raise CoterieError(f"the manifest of {manifest.id} is damaged: {file.name!r} makes no sense")
        at = 0
        for piece in file.pieces:
            done += piece.size
            found.append((done, file, at, piece))
            at += piece.size
    return found


def _clear(folder: Path) -> None:
    """What an interrupted restore has left."""
    if folder.is_dir():
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _ManifestDisk(ClosingDisk):
    """The files of a backup as a data folder would have them; they are only read."""

    def __init__(self, target: Target, manifest: Manifest, soon: Callable[..., object]) -> None:
        self._target = target
        self._files = {f"{STORE}/{file.name}": file for file in manifest.files}
        self._soon = soon
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def list(self, done: Callable[[dict[str, int] | Exception], None]) -> None:
        self._soon(done, {name: file.size for name, file in self._files.items()})

    def read(self, name: str, offset: int, size: int, done: Callable[[bytes | Exception], None]) -> None:
        file = self._files.get(name)
        if file is None:
            self._soon(done, NoSuchFile(f"{name}: there is no such file"))
            return
        try:
            self._soon(done, self._bytes(file, offset, size))
        except CoterieError as error:
            self._soon(done, DiskError(str(error)))

    def _bytes(self, file: BackedUp, offset: int, size: int) -> bytes:
        found: list[bytes] = []
        at = 0
        for piece in file.pieces:
            if at < offset + size and offset < at + piece.size:
                found.append(self._piece(file, at, piece)[max(0, offset - at) : offset + size - at])
            at += piece.size
        return b"".join(found)

    def _piece(self, file: BackedUp, at: int, piece: Piece) -> bytes:
        data = self._kept.pop(piece.sha256, None)
        self._kept[piece.sha256] = data = fetch(self._target, file, at, piece) if data is None else data
        if len(self._kept) > _PIECES_KEPT:
            self._kept.popitem(last=False)
        return data

    async def close(self) -> None:
        """Nothing is open."""

    def append(self, name: str, buffers: Sequence[Buffer], done: Callable[[int | Exception], None]) -> None:
        self._soon(done, _refused(name))

    def sync(self, name: str, done: Callable[[Exception | None], None]) -> None:
        self._soon(done, _refused(name))

    def truncate(self, name: str, size: int, done: Callable[[Exception | None], None]) -> None:
        self._soon(done, _refused(name))

    def replace(self, old: str, new: str, done: Callable[[Exception | None], None]) -> None:
        self._soon(done, _refused(old))

    def remove(self, name: str, done: Callable[[Exception | None], None]) -> None:
        self._soon(done, _refused(name))


def _refused(name: str) -> DiskError:
    return DiskError(f"{name}: a backup is never changed")
