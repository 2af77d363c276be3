"""FOLDER: peers that leave a note in a shared folder.

It promises that processes which share a folder find each other within two intervals. Each keeps one small file, by its
name, with its endpoint and a number that rises with each refresh; a file whose number has not moved for `expiry`, by
the reader's own clock, belongs to somebody who is gone and is ignored. So nobody's clock needs to be right, and a
restarted process overwrites its own old note. The folder is read and written away from the loop.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from coterie.errors import UserError
from coterie.group.protocols.discovery_base import FOUND_MAX, Discovery
from coterie.group.protocols.transport import WILDCARDS, is_reachable
from coterie.group.stack import Stack
from coterie.logs import Log
from coterie.runtime.base import Endpoint
from coterie.settings import setting

log = Log(__name__)

_FORMAT = "coterie-endpoint-1"
_SUFFIX = ".endpoint"
_LARGEST = 1024
"""Bytes of a note that are read."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a file says, on one line: format, incarnation, number, port, host."""

    incarnation: int
    number: int
    """Rises with each refresh."""
    endpoint: Endpoint

    def to_text(self) -> str:
        return f"{_FORMAT} {self.incarnation} {self.number} {self.endpoint.port} {self.endpoint.host}\n"

    @classmethod
    def from_text(cls, text: str) -> Note:
        """Raises ValueError if it is none."""
        if not text.endswith("\n"):
            raise ValueError("cut off")
        form, incarnation, number, port, host = text.split()
        endpoint = Endpoint(host, int(port))
        if form != _FORMAT or not is_reachable(endpoint):
            raise ValueError("not a note")
        return cls(int(incarnation), int(number), endpoint)


@dataclass(frozen=True, slots=True)
class FolderSettings:
    path: str = setting("", "folder that all processes of the group share; made if it is missing")
    interval: float = setting(
        2.0, "time between looks, and between refreshes of one's own note", unit="s", minimum=0.01
    )
    expiry: float = setting(
        20.0, "how long a note counts that is not refreshed; several intervals", unit="s", minimum=0.01
    )


class Folder(Discovery):
    """Peers that keep a note of their endpoint in a shared folder."""

    name = "FOLDER"
    id = 5
    Settings = FolderSettings

    settings: FolderSettings

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        if not self.settings.path:
            raise UserError("FOLDER: path is empty: set it to a folder that all processes of the group share")
        if self.settings.expiry < 2 * self.settings.interval:
            raise UserError("FOLDER: expiry must be at least twice interval, or living processes are ignored")
        self._number = 0
        self._busy = False
        self._seen: dict[str, tuple[Note, float]] = {}  # by file: the note, and when it was first seen like this
        self._told = False

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self._folder = Path(self.settings.path) / f"group-{quote(stack.group, safe='')}"
        self._file = f"member-{quote(stack.local.name, safe='')}{_SUFFIX}"

    def start(self) -> None:
        if self.transport.endpoint.host in WILDCARDS:
            raise UserError(
                f"FOLDER: others cannot reach {self.transport.endpoint}: set advertised_host of {self.transport.name}"
            )
        super().start()

    def stop(self) -> None:
        super().stop()
        if not self._busy:
            self._leave()

    def look(self) -> None:
        if self._busy:  # a slow folder: what it has to say comes later
            return
        self._busy = True
        self._number += 1
        note = Note(self.stack.local.incarnation, self._number, self.transport.endpoint)
        folder, file = self._folder, self._file
        self.runtime.offload(lambda: refresh(folder, file, note.to_text()), self._read)

    def _leave(self) -> None:
        folder, file = self._folder, self._file
        self.runtime.offload(lambda: (folder / file).unlink(missing_ok=True), lambda _: None)

    def _read(self, texts: dict[str, str] | Exception) -> None:
        self._busy = False
        if self._timer is None:  # stopped meanwhile
            self._leave()
            return
        if isinstance(texts, Exception):
            self.count("unreadable")
            if not self._told:
                self._told = True
                log.warning("folder cannot be used, trying again", folder=self._folder, why=texts)
            return
        self._told = False
        now = self.runtime.now()
        seen: dict[str, tuple[Note, float]] = {}
        for file, text in texts.items():
            if file == self._file:
                continue
            try:
                note = Note.from_text(text)
            except ValueError:
                self.count("malformed")
                continue
            before = self._seen.get(file)
            seen[file] = before if before is not None and before[0] == note else (note, now)
        self._seen = seen
        fresh = [note.endpoint for note, since in seen.values() if now - since <= self.settings.expiry]
        self.keep(fresh)
        self.find(fresh)


def refresh(folder: Path, file: str, text: str) -> dict[str, str]:
    """Write one's own note in one step, and read all of them, by file name. Runs away from the loop."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{file}.new"
    fresh.write_text(text)
    os.replace(fresh, folder / file)
    notes: dict[str, str] = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(_SUFFIX) and not name.startswith(".") and len(notes) < FOUND_MAX:
            try:
                with (folder / name).open("rb") as note:
                    notes[name] = note.read(_LARGEST).decode()
            except (OSError, UnicodeDecodeError):  # taken away a moment ago, or no note
                notes[name] = ""
    return notes
