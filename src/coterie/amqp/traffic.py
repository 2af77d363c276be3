"""What went through a channel: numbers that only grow, for metrics and the console."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Traffic:
    """Messages, seen from the broker."""

    published: int = 0
    to_confirm: int = 0
    """Of those, on a channel that confirms."""
    confirmed: int = 0
    """With basic.ack or basic.nack."""
    refused: int = 0
    """Of those, with basic.nack."""
    returned: int = 0
    dropped: int = 0
    """That reached no queue, and did not have to."""
    delivered: int = 0
    """To consumers that acknowledge."""
    delivered_no_ack: int = 0
    got: int = 0
    """By basic.get, to be acknowledged."""
    got_no_ack: int = 0
    redelivered: int = 0
    """Of all those, messages that somebody may have seen before."""
    get_empty: int = 0
    acked: int = 0
    rejected: int = 0
    """Also those that go back to their queue."""

    def add(self, other: Traffic) -> None:
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _NAMES}


_NAMES = tuple(field.name for field in fields(Traffic))
