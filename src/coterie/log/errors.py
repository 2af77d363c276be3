"""What can be wrong with a log on disk. A caller can tell these apart; their texts are for people."""

from __future__ import annotations

from coterie.errors import DiskError


class Damaged(DiskError):
    """Bytes that are not what was written."""


class Foreign(DiskError):
    """Not a file of this log: another kind of file, or one of another log. It is left alone."""


class UnknownVersion(DiskError):
    """Written by a later version of this program: nothing in the folder may be touched."""


class TailGone(DiskError):
    """The log does not go back that far any more."""


class LogHalted(DiskError):
    """There is damage below the synced mark: the log takes no records until `truncate` has given up what follows it."""
