"""The lines of an audit log in files: `NODE-INCARNATION.NUMBER.jsonl`, for nobody else to read, and only so many.

A line is the operating system's when the call returns: a process that is killed loses none. If the disk refuses, that
is logged, and the next line is tried again; when that succeeds, it is logged how many were lost. Files that are there
stay until the disk has taken something newer: a full disk costs no line that it has.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import quote

from coterie.errors import UserError
from coterie.logs import Log
from coterie.trace import Event

log = Log(__name__)
MODE: Final = 0o600
FOLDER_MODE: Final = 0o700


class AuditFiles:
    """Of one incarnation of a node; the files of earlier ones count, too."""

    def __init__(self, folder: Path, node: str, inc: int, segment_bytes: int, kept: int) -> None:
        """Raises UserError if nothing can be written there."""
        self._folder, self._node, self._inc = folder, quote(node, safe=""), inc
        self._segment_bytes, self._kept = segment_bytes, kept
        self._ours = re.compile(re.escape(self._node) + r"-(\d+)\.(\d+)\.jsonl")
        self._fd = -1
        self._number = 0
        self._size = 0
        self._fresh = False
        """Nothing is in the file yet: older ones are not deleted for it."""
        self.lost = 0
        """Lines that the disk did not take since it last took one."""
        try:
            folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise UserError(f"audit.folder: {folder}: cannot be written to: {why}: choose another folder") from None

    def __call__(self, action: str, event: Event) -> bool:
        data = event.to_json().encode() + b"\n"
        try:
            if self._fd < 0 or self._size + len(data) > self._segment_bytes:
                self._next()
            self._write(data)
        except OSError as error:
            if not self.lost:
                log.error("the audit log cannot be written: lines are lost", folder=self._folder, why=error.strerror)
            self.lost += 1
            return False
        if self.lost:
            log.warning("the audit log is written again", folder=self._folder, lost=self.lost)
        self.lost = 0
        return True

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            self._take_back()
            raise
        self._size += len(data)
        if self._fresh:
            self._fresh = False
            self._prune()

    def _prune(self) -> None:
        try:
            for old in self._there()[: -self._kept]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.warning("old files of the audit log cannot be deleted", folder=self._folder, why=error.strerror)

    def _take_back(self) -> None:
        """Half a line."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            self._shut()  # the next line begins a file

    def _next(self) -> None:
        self._shut()
        self._number += 1
        path = self._folder / f"{self._node}-{self._inc}.{self._number:06}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, MODE)
        self._size = 0
        self._fresh = True

    def _there(self) -> list[Path]:
        """The oldest first."""
        found: list[tuple[int, int, Path]] = []
        for each in self._folder.iterdir():
            named = self._ours.fullmatch(each.name)
            if named is not None:
                found.append((int(named[1]), int(named[2]), each))
        return [path for _, _, path in sorted(found)]

    def _shut(self) -> None:
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def close(self) -> None:
        self._shut()
