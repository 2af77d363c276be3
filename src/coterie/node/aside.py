"""The data of a node is kept aside, so that it begins empty: it stays in the data folder, and nothing is deleted.

What counts is moved last, by one rename: a crash before that leaves the node as it was, and after it the node is empty.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from coterie.errors import CoterieError
from coterie.log.generation import WHOLE
from coterie.node.offline import STORE, hold

KEPT: Final = "kept"
"""In the data folder."""
_PART: Final = re.compile(rf"({STORE}|store)(\.[1-9]\d*|\.reserve)?")


def set_aside(folder: Path, now: datetime | None = None) -> Path:
    """Gives the folder that has it now. Raises UserError if the node runs or has nothing, and CoterieError."""
    held = hold(folder)
    try:
        parts = [each for each in folder.iterdir() if _PART.fullmatch(each.name)]
        parts.sort(key=_order)
        to = folder / KEPT / (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%S.%fZ")
        to.mkdir(mode=0o700, parents=True)
        _sync(folder, folder / KEPT)
        for part in parts:
            part.rename(to / part.name)
            _sync(to, folder)
        return to
    except OSError as error:
        raise CoterieError(f"{folder}: cannot be kept aside: {error.strerror}: nothing is lost, try again") from None
    finally:
        os.close(held)


def _order(part: Path) -> tuple[bool, int]:
    """What counts is last: of the generations of the log the highest that is whole, or else the first."""
    number = part.name.removeprefix(STORE).removeprefix(".")
    if not part.is_dir() or not part.name.startswith(STORE) or not (number.isdigit() or not number):
        return False, 0
    return not number or (part / WHOLE).exists(), int(number or 0)


def _sync(*folders: Path) -> None:
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
