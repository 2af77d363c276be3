"""Generations of a log: one that is to be replaced is kept until the new one is whole and synced.

The first is the folder itself, the n-th after it `folder.n`. A later one counts once it has the file `whole`, which
comes by one rename when everything else of it is on disk. The last that counts is the log; a crash at any time leaves
either the old one or the new one, and whatever is left of the other is removed at the next start.
"""

from __future__ import annotations

import re
from typing import Final

from coterie.errors import DiskError
from coterie.log.folder import TEMPORARY, Folder, parse_segment_name, parse_snapshot_name
from coterie.logs import Log
from coterie.runtime.base import Runtime

WHOLE: Final = "whole"
_NUMBER = re.compile(r"[1-9]\d{0,8}")
log = Log(__name__)


class Generations:
    """Of one log, by their numbers, from 0. Everything raises DiskError."""

    def __init__(self, runtime: Runtime, path: str) -> None:
        self._runtime = runtime
        self._path = path
        self._newest = 0

    def path(self, number: int) -> str:
        return f"{self._path}.{number}" if number else self._path

    def new(self) -> int:
        """The number of one that never was."""
        self._newest += 1
        return self._newest

    async def find(self) -> int:
        """The one that counts. What is left of others is removed."""
        found: dict[int, list[str]] = {0: []}
        for path in await Folder(self._runtime, self._path).list_all():
            folder, _, name = path.rpartition("/")
            number = _number(folder, self._path)
            if number is not None:
                found.setdefault(number, []).append(name)
        current = max(number for number, names in found.items() if number == 0 or WHOLE in names)
        self._newest = max(self._newest, *found)
        for number, names in found.items():
            if number != current and any(map(_is_ours, names)):
                log.info("removing an unfinished or replaced log", folder=self.path(number))
                await self._remove(number, names)
        return current

    async def complete(self, number: int) -> None:
        """Everything of it is on disk: from here on it counts."""
        folder = Folder(self._runtime, self.path(number))
        await folder.remove(WHOLE + TEMPORARY)
        await folder.append(WHOLE + TEMPORARY, [b"\n"])
        await folder.sync(WHOLE + TEMPORARY)
        await folder.replace(WHOLE + TEMPORARY, WHOLE)

    async def remove(self, number: int) -> None:
        await self._remove(number, [*await Folder(self._runtime, self.path(number)).list()])

    async def _remove(self, number: int, names: list[str]) -> None:
        """Only what a log makes: what else somebody has put there, or was kept for a look, stays."""
        folder = Folder(self._runtime, self.path(number))
        # First it counts no more: a crash on the way must not leave one that counts and lacks something.
        for name in sorted(filter(_is_ours, names), key=lambda name: name != WHOLE):
            try:
                await folder.remove(name)
            except DiskError as error:
                log.warning("cannot remove a file of another log", file=folder.path(name), error=error)
                return


def _number(folder: str, own: str) -> int | None:
    if folder == own:
        return 0
    start, _, text = folder.rpartition(".")
    return int(text) if start == own and _NUMBER.fullmatch(text) else None


def _is_ours(name: str) -> bool:
    known = parse_segment_name(name) is not None or parse_snapshot_name(name) is not None
    return name == WHOLE or name.endswith(TEMPORARY) or known
