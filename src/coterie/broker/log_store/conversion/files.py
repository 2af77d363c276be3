"""The names of an old store's files: `0000000007-0000000009.2.log` is the second rewriting of the segments 7 to 9."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

WHOLE: Final = "whole"
RESERVE: Final = "reserve"
_SEGMENT = re.compile(r"(\d{10,19})-(\d{10,19})\.(\d{1,9})\.log")
_NUMBER = re.compile(r"[1-9]\d{0,8}")


class SegmentName(NamedTuple):
    id: int
    last: int
    generation: int

    def __str__(self) -> str:
        return f"{self.id:010d}-{self.last:010d}.{self.generation}.log"


def parse_name(name: str) -> SegmentName | None:
    found = _SEGMENT.fullmatch(name)
    return None if found is None else SegmentName(*map(int, found.groups()))


def generation_of(folder: str, own: str) -> int | None:
    """`store` is the first, `store.n` the n-th after it; a later one counts if it has the file `whole`."""
    if folder == own:
        return 0
    start, _, text = folder.rpartition(".")
    return int(text) if start == own and _NUMBER.fullmatch(text) else None


def is_of_store(name: str) -> bool:
    """Only what a store makes goes: what else somebody has put there, or was kept for a look, stays."""
    return name in (WHOLE, RESERVE) or name.endswith(".tmp") or parse_name(name) is not None
