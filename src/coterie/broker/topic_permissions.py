"""With which routing keys a user may publish to a topic exchange, and bind to it: RabbitMQ's topic permissions.

They come on top of the permissions for the exchange itself, and only for exchanges that have any: elsewhere every key
is allowed. `{username}` and `{vhost}` in a pattern stand for the user's own, as plain text.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie import patterns
from coterie.errors import UserError


@dataclass(frozen=True, slots=True)
class TopicPermissions:
    """Two patterns, searched for in routing keys; an empty one fits the empty key only."""

    write: str = ""
    """To publish."""
    read: str = ""
    """To bind a queue or another exchange."""

    def check(self) -> None:
        """Raises UserError. What is kept already is not checked: a pattern that is none allows nothing."""
        for pattern in (self.write, self.read):
            patterns.check(_expanded(pattern, "x", "x"))

    def allows(self, what: str, key: str, user: str, vhost: str) -> bool:
        """`what`: write or read."""
        pattern = self.write if what == "write" else self.read
        return patterns.fits(_expanded(pattern, user, vhost), key) if pattern else not key


Topics = dict[str, dict[str, TopicPermissions]]
"""By vhost and exchange."""


def _expanded(pattern: str, user: str, vhost: str) -> str:
    return pattern.replace("{username}", patterns.escape(user)).replace("{vhost}", patterns.escape(vhost))


def topics_to_record(topics: Topics) -> dict[str, dict[str, list[str]]]:
    return {vhost: {name: [t.write, t.read] for name, t in found.items()} for vhost, found in topics.items()}


def topics_from_record(record: object) -> Topics:
    """Raises UserError if it makes no sense."""
    if record is None:
        return {}
    try:
        return {
            str(vhost): {str(name): TopicPermissions(str(write), str(read)) for name, (write, read) in found.items()}
            for vhost, found in record.items()  # type: ignore[attr-defined]
        }
    except (AttributeError, TypeError, ValueError):
        raise UserError("topic permissions that make no sense") from None
