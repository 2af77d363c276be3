"""One hierarchy of errors, by whose mistake it is: that decides who is told, and how."""

from __future__ import annotations


class CoterieError(Exception):
    """Everything that Coterie raises on purpose."""


class UserError(CoterieError):
    """A wrong flag, setting, file or call: the text says what to do. The command line exits with 2."""


class PeerError(CoterieError):
    """A peer sent something that makes no sense. It is counted and survived, never raised to a user."""


class WireError(PeerError):
    """Bytes that are truncated, malformed, oversized or foreign."""


class ForeignError(WireError):
    """A sound packet, but of another group: somebody's configuration, not somebody's fault."""


class StrayError(WireError):
    """A sound packet of this group, but for another member, or for an earlier incarnation of this one."""


class UnprovenError(WireError):
    """Somebody has not proven that it belongs to the cluster: it has no secret, or another one."""


class DiskError(CoterieError):
    """The disk refused: it is full, it is broken, or what it returned is not what was written."""


class NoSuchFile(DiskError):
    """There is no file by that name."""


class ProtocolError(CoterieError):
    """A client broke a protocol with numbered replies; `reply_code` is the number to answer with."""

    def __init__(self, reply_code: int, text: str) -> None:
        super().__init__(text)
        self.reply_code = reply_code
