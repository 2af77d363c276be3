"""Generations of a log: one that is to be replaced is kept until the new one is whole and synced.

The first is the folder itself, the n-th after it `folder.n`. A later one counts once it has the file `whole`, which
comes by one rename when everything else of it is on disk. The last that counts is the log; a crash at any time leaves
either the old one or the new one, and whatever is left of the other is removed at the next start.

One that was not right is not removed but put aside for a look, as `folder.aside.n`; the oldest of those go.
"""

from __future__ import annotations

import re
from typing import Final

from coterie.errors import DiskError
from coterie.log.folder import TEMPORARY, Folder, parse_segment_name, parse_snapshot_name
from coterie.logs import Log
from coterie.runtime.base import Runtime

WHOLE: Final = "whole"
ASIDE: Final = "aside"
"""A file in one that is to be put aside once it is replaced."""
_NUMBER = re.compile(r"[1-9]\d{0,8}")
log = Log(__name__)


class Generations:
    """Of one log, by their numbers, from 0. Everything raises DiskError."""

    def __init__(self, runtime: Runtime, path: str, aside_max: int = 0) -> None:
        self._runtime = runtime
        self._path = path
        self._newest = 0
        self._aside_max = aside_max
        self._aside: list[int] = []
        """Those that were put aside, the oldest first."""

    def path(self, number: int) -> str:
        return f"{self._path}.{number}" if number else self._path

    def new(self) -> int:
        """The number of one that never was."""
        self._newest += 1
        return self._newest

    async def find(self) -> int:
        """The one that counts. What is left of others is removed."""
        found: dict[int, list[str]] = {0: []}
        aside: set[int] = set()
        for path in await Folder(self._runtime, self._path).list_all():
            folder, _, name = path.rpartition("/")
            number = _number(folder, self._path)
            if number is not None:
                found.setdefault(number, []).append(name)
            elif number := _number(folder, f"{self._path}.{ASIDE}"):
                aside.add(number)
        current = max(number for number, names in found.items() if number == 0 or WHOLE in names)
        self._aside = sorted(aside)
        self._newest = max(self._newest, *found, *aside)
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
        if ASIDE in names and self._aside_max:
            await self._put_aside(number, names)
            return
        folder = Folder(self._runtime, self.path(number))
        # First it counts no more: a crash on the way must not leave one that counts and lacks something.
        for name in sorted(filter(_is_ours, names), key=lambda name: name != WHOLE):
            try:
                await folder.remove(name)
            except DiskError as error:
                log.warning("cannot remove a file of another log", file=folder.path(name), error=error)
                return

    # For a look.

    @property
    def aside(self) -> list[str]:
        """Where those are that were put aside, the oldest first."""
        return [self._aside_path(number) for number in self._aside]

    def _aside_path(self, number: int) -> str:
        """`number`: one more than that of the generation."""
        return f"{self._path}.{ASIDE}.{number}"

    async def keep_aside(self, number: int) -> None:
        """When it is removed, it is put aside."""
        folder = Folder(self._runtime, self.path(number))
        if self._aside_max and ASIDE not in await folder.list():
            await folder.append(ASIDE, [b"\n"])
            await folder.sync(ASIDE)

    async def _put_aside(self, number: int, names: list[str]) -> None:
        """The mark goes last, so that a crash on the way leaves the rest of it to the next start."""
        folder, aside = Folder(self._runtime, self.path(number)), self._aside_path(number + 1)
        for name in sorted(filter(_is_ours, names), key=lambda name: (name == ASIDE, name != WHOLE)):
            try:
                await folder.move(folder.path(name), f"{aside}/{name}")
            except DiskError as error:
                log.warning("cannot put a file aside", file=folder.path(name), error=error)
                return
        log.error("a store that was not right is kept for a look: remove it when you are done", folder=aside)
        self._aside = sorted({*self._aside, number + 1})
        while len(self._aside) > self._aside_max:
            await self._forget_aside(self._aside.pop(0))

    async def _forget_aside(self, number: int) -> None:
        folder = Folder(self._runtime, self._aside_path(number))
        log.info("removing the oldest store that was kept for a look", folder=self._aside_path(number))
        for name in await folder.list():
            await folder.remove(name)


def _number(folder: str, own: str) -> int | None:
    if folder == own:
        return 0
    start, _, text = folder.rpartition(".")
    return int(text) if start == own and _NUMBER.fullmatch(text) else None


def _is_ours(name: str) -> bool:
    known = parse_segment_name(name) is not None or parse_snapshot_name(name) is not None
    return name in (WHOLE, ASIDE) or name.endswith(TEMPORARY) or known
