"""Generations of a store: one that is to be replaced is kept until the new one is whole and synced.

The first is the folder `store`, the n-th after it `store.n`. A later one counts once it has the file `whole`, which
comes by one rename when everything else of it is on disk. The last that counts is the store; there is at most one more,
which is being made, or was being made when the node died, or was replaced and is about to be removed. So a crash at any
time leaves either the old store or the new one, and whatever is left of the other is removed at the next start.
"""

from __future__ import annotations

import re
from typing import Final

from coterie.broker.store.files import Files, parse_name
from coterie.errors import DiskError
from coterie.logs import Log
from coterie.runtime.base import Runtime

WHOLE: Final = "whole"
RESERVE: Final = "reserve"
"""Of all generations: it is in the folder of the first."""
_NUMBER = re.compile(r"[1-9]\d{0,8}")
log = Log(__name__)


class Generations:
    """Of one store, by their numbers, from 0. Everything raises DiskError."""

    def __init__(self, runtime: Runtime, folder: str) -> None:
        self._runtime = runtime
        self._folder = folder
        self._newest = 0
        """That ever was, as far as this process knows."""
        self.reserve = 0
        """Bytes of the reserve, as it was found."""

    @property
    def reserve_path(self) -> str:
        return f"{self._folder}/{RESERVE}"

    def folder(self, number: int) -> str:
        return f"{self._folder}.{number}" if number else self._folder

    def files(self, number: int) -> Files:
        return Files(self._runtime, self.folder(number))

    def new(self) -> int:
        self._newest += 1
        return self._newest

    async def find(self) -> int:
        """The one that counts. What is left of others is removed."""
        files = await Files(self._runtime, "").list_all()
        self.reserve = files.get(self.reserve_path, 0)
        found: dict[int, list[str]] = {0: []}
        for path in files:
            folder, _, name = path.rpartition("/")
            number = self._number(folder)
            if number is not None:
                found.setdefault(number, []).append(name)
        current = max(number for number, names in found.items() if number == 0 or WHOLE in names)
        self._newest = max(self._newest, *found)
        for number, names in found.items():
            if number != current and any(map(_is_ours, names)):
                log.info("removing what is left of another store", folder=self.folder(number))
                await self._remove(number, names)
        return current

    def _number(self, folder: str) -> int | None:
        if folder == self._folder:
            return 0
        start, _, text = folder.rpartition(".")
        return int(text) if start == self._folder and _NUMBER.fullmatch(text) else None

    async def complete(self, number: int) -> None:
        """Everything of it is on disk: from here on it counts."""
        files = self.files(number)
        await files.append(f"{WHOLE}.tmp", [b"\n"])
        await files.sync(f"{WHOLE}.tmp")
        await files.replace(f"{WHOLE}.tmp", WHOLE)

    async def remove(self, number: int) -> None:
        await self._remove(number, [*await self.files(number).list()])

    async def _remove(self, number: int, names: list[str]) -> None:
        """Only what a store makes: what else somebody has put there, or was kept for a look, stays."""
        files = self.files(number)
        # First it counts no more: a crash on the way must not leave one that counts and lacks something.
        for name in sorted(filter(_is_ours, names), key=lambda name: name != WHOLE):
            try:
                await files.remove(name)
            except DiskError as error:
                log.warning("a file of another store could not be removed", file=files.path(name), error=error)


def _is_ours(name: str) -> bool:
    return name == WHOLE or name.endswith(".tmp") or parse_name(name) is not None
