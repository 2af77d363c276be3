"""The blocking half of the disk: one folder's files, as system calls, from I/O threads, for each file one at a time."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import DiskError, NoSuchFile
from coterie.runtime.base import Buffer

MOST_OPEN = 256
"""Open files that are kept for later. More are open only while they have unsynced data."""
MOST_BUFFERS = min(1024, os.sysconf("SC_IOV_MAX")) if hasattr(os, "sysconf") else 16
"""What one gathering write takes."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_UNKNOWN = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What a kernel or a file system says that has no such writes as `_SYNCED`."""
_sync_data = getattr(os, "fdatasync", os.fsync)
_SYNCED: int = getattr(os, "RWF_DSYNC", 0)
"""Flag of a write that is durable when it ends; 0: there is none."""


@dataclass(slots=True)
class _File:
    fd: int
    size: int
    dirty: bool = False
    """Written to, by this process, since the last sync."""
    synced: bool = False
    """Synced by this process, and not written to since. A killed process may have left unsynced data behind."""
    named: bool = False
    """Its entry in the folder is known to be durable."""
    broken: DiskError | None = None
    """Why no sync of it can be believed any more."""


@dataclass(slots=True)
class Write:
    """An append that somebody else does: the kernel, while no thread of ours touches the file."""

    name: str
    file: _File
    start: int
    flags: int
    """Of pwritev2."""
    sync: bool
    """It takes a sync of its own."""

    @property
    def fd(self) -> int:
        return self.file.fd

    def ended(self, size: int, written: int, synced: int) -> bool:
        """What was written of `size` bytes, and what the sync came to: 0 or more, or the number of the error below 0.
        False: it has to be done again, by `Folder.append`. Raises DiskError if no sync can be believed any more."""
        file = self.file
        durable = self.flags or self.sync
        failed = written if written < 0 else synced
        if written == size and failed >= 0:
            file.size = self.start + size
            file.dirty, file.synced = not durable, bool(durable)
            return True
        if durable and -failed not in (0, errno.ECANCELED, *_NO_ROOM, *_UNKNOWN, errno.EFBIG):
            file.broken = disk_error(self.name, OSError(-failed, os.strerror(-failed)))
            raise file.broken
        return False


class Folder:
    """Files by relative name. Everything raises DiskError when the disk refuses."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[str, _File] = {}
        """Least recently used first."""
        self._lock = threading.Lock()
        self._synced = _SYNCED

    def append(self, name: str, buffers: Sequence[Buffer], sync_follows: bool = False) -> int:
        """`sync_follows`: the file is to be synced next. If nothing but these bytes is unsynced, that is done by the
        same system call, which spares its thread another turn of waiting for the interpreter."""
        file = self._file(name, create=True)
        if file.broken is not None:
            raise file.broken
        start = file.size
        at_once = sync_follows and file.synced and file.named and len(buffers) <= MOST_BUFFERS
        flags = self._synced if at_once else 0
        try:
            file.dirty, file.synced = True, False
            file.size = _write(file.fd, buffers, start, flags)
            if flags:
                file.dirty, file.synced = False, True
        except OSError as error:
            if flags and error.errno in _UNKNOWN:
                self._synced = 0
                return self.append(name, buffers)
            if flags and error.errno not in (*_NO_ROOM, errno.EFBIG):
                file.broken = disk_error(name, error)  # perhaps of the sync: none can be believed any more
            try:
                os.ftruncate(file.fd, start)
            except OSError as second:
                # Half an entry may stay in the file, and whatever follows it would be unreadable.
                file.broken = disk_error(name, second)
            raise disk_error(name, error) from None
        return start

    def write(self, name: str, sync_follows: bool) -> Write | None:
        """For an append that is made elsewhere, without blocking; None: only `append` can make this file's next one."""
        file = self._open.get(name)
        if file is None or not file.named or file.broken is not None:
            return None
        flags = self._synced if sync_follows and file.synced else 0
        return Write(name, file, file.size, flags, sync_follows and not flags)

    def read(self, name: str, offset: int, size: int) -> bytes:
        fd = self._file(name).fd
        parts = []
        try:
            while size > 0 and (part := os.pread(fd, min(size, 1 << 30), offset)):
                parts.append(part)
                offset += len(part)
                size -= len(part)
        except OSError as error:
            raise disk_error(name, error) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def sync(self, name: str) -> None:
        file = self._file(name)
        if file.broken is not None:
            raise file.broken
        if file.synced:  # of many syncs in a row the first does the work
            return
        try:
            _sync_data(file.fd)
            if not file.named:  # created by this process, or by one that was killed before it came to this
                _sync_folder(self._locate(name).parent)
                file.named = True
        except OSError as error:
            file.broken = disk_error(name, error)
            raise file.broken from None
        file.dirty, file.synced = False, True

    def truncate(self, name: str, size: int) -> None:
        file = self._file(name)
        if size < file.size:
            try:
                os.ftruncate(file.fd, size)
            except OSError as error:
                raise disk_error(name, error) from None
            file.size = size
            file.dirty, file.synced = True, False

    def replace(self, old: str, new: str) -> None:
        source, target = self._locate(old), self._locate(new)
        try:
            _make_folder(target.parent)
            os.replace(source, target)
            with self._lock:
                gone = self._open.pop(new, None) if old != new else None
                moved = self._open.pop(old, None)
                if moved is not None:
                    self._open[new] = moved
            if gone is not None:
                os.close(gone.fd)
            _sync_folder(target.parent)
            if source.parent != target.parent:
                _sync_folder(source.parent)
            if moved is not None:
                moved.named = True
        except OSError as error:
            raise disk_error(old, error) from None

    def remove(self, name: str) -> None:
        path = self._locate(name)
        try:
            try:
                os.unlink(path)
            except FileNotFoundError:
                _sync_folder(path.parent)  # it may be gone since a removal of which only this failed
                raise
            with self._lock:
                gone = self._open.pop(name, None)
            if gone is not None:
                os.close(gone.fd)
            _sync_folder(path.parent)
        except OSError as error:
            raise disk_error(name, error) from None

    def list(self) -> dict[str, int]:
        found: dict[str, int] = {}

        def failed(error: OSError) -> None:
            raise error

        try:
            for folder, _, names in os.walk(self._path, onerror=failed):
                for name in names:
                    path = Path(folder, name)
                    try:
                        found[path.relative_to(self._path).as_posix()] = path.stat().st_size
                    except FileNotFoundError:  # removed by a later call
                        continue
        except OSError as error:
            raise disk_error(".", error) from None
        return dict(sorted(found.items()))

    def close(self) -> None:
        """Close every file. Nobody calls anything else meanwhile or afterwards."""
        for file in self._open.values():
            os.close(file.fd)
        self._open.clear()

    def close_idle(self, busy: Container[str]) -> None:
        """If too many files are open, close those used longest ago that nobody uses and that are safe on the disk."""
        if len(self._open) <= MOST_OPEN:
            return
        with self._lock:
            surplus = len(self._open) - MOST_OPEN
            idle = [name for name, file in self._open.items() if name not in busy and not (file.dirty or file.broken)]
            for name in idle[:surplus]:
                os.close(self._open.pop(name).fd)

    def _file(self, name: str, create: bool = False) -> _File:
        with self._lock:
            file = self._open.pop(name, None)
            if file is not None:
                self._open[name] = file
                return file
        path = self._locate(name)
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            try:
                fd = os.open(path, flags)
            except FileNotFoundError:
                if not create:
                    raise
                _make_folder(path.parent)
                fd = os.open(path, flags | os.O_CREAT, 0o600)
            file = _File(fd, os.fstat(fd).st_size)
        except OSError as error:
            raise disk_error(name, error) from None
        with self._lock:
            self._open[name] = file
        return file

    def _locate(self, name: str) -> Path:
        parts = name.split("/")
        if "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise DiskError(f"{name!r} is not the name of a file inside the data folder {self._path}")
        return self._path.joinpath(*parts)


def disk_error(name: str, error: OSError) -> DiskError:
    if error.errno in _NO_ROOM:
        return DiskError(f"{name}: the disk is full: free some space, nothing was written")
    if error.errno == errno.ENOENT:
        return NoSuchFile(f"{name}: no such file")
    return DiskError(f"{name}: {error.strerror or error}")


def _write(fd: int, buffers: Sequence[Buffer], offset: int, flags: int) -> int:
    """Write them all, one after the other; gives where they end."""
    for first in range(0, len(buffers), MOST_BUFFERS):
        part: list[Buffer] = [
            b if type(b) is bytes else memoryview(b).cast("B") for b in buffers[first : first + MOST_BUFFERS]
        ]
        size = sum(map(len, part))
        while size:
            written = os.pwritev(fd, part, offset, flags)
            offset += written
            size -= written
            if size:
                part = _after(part, written)
    return offset


def _after(buffers: Sequence[Buffer], taken: int) -> list[Buffer]:
    """What is left of them after so many bytes."""
    left: list[Buffer] = []
    for buffer in buffers:
        if taken < len(buffer):
            left.append(memoryview(buffer)[taken:])
        taken = max(taken - len(buffer), 0)
    return left


def _make_folder(path: Path) -> None:
    """Make a folder and those above it, each durable in the one above."""
    if not path.is_dir():
        _make_folder(path.parent)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            return
        _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    """Make what was created, renamed or removed in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
