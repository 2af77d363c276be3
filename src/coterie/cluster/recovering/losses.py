"""What a recovery may cost, in sentences for whoever has to decide."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from coterie.cluster.quorum import needed
from coterie.cluster.recovering.choosing import Choice

_QUEUES_TOLD: Final = 20


def what_may_be_missing(choice: Choice) -> list[str]:
    best, voters = choice.best, choice.voters
    found: list[str] = []
    if choice.certain:
        found.append(
            f"Nothing that was confirmed is missing: each confirm was on {needed(voters)} of {len(voters)} disks, and "
            f"that many of them include one whose store is here ({', '.join(choice.here)})."
        )
    else:
        found.append(
            f"Messages that were confirmed after event {best.place} of the log{_at(best.time)} may be missing, in any "
            f"queue: they may have been on the disks of {_named(choice.lost)} alone. None of these queues can be "
            f"excluded: {_queues(choice)}; queues that were declared since are gone, with what was in them."
        )
        found.append("Users, permissions, policies and bindings are as they were then.")
    found.append(
        "Messages that were acknowledged after that come again, so whatever is ready is flagged as redelivered."
    )
    found += [f"Not readable in {best.folder}: {each}: that is lost, too." for each in best.damage]
    return found


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "others"


def _queues(choice: Choice) -> str:
    names = [
        f"'{name}' ({count} messages) in vhost '{vhost}'" for (vhost, name, _), count in choice.best.queues.items()
    ]
    rest = len(names) - _QUEUES_TOLD
    told = ", ".join(names[:_QUEUES_TOLD]) or "there are none"
    return f"{told} and {rest} more" if rest > 0 else told


def _at(time: float) -> str:
    """The last moment that the store knows of."""
    if not time:
        return ""
    return f" ({datetime.fromtimestamp(time, UTC).strftime('%Y-%m-%d %H:%M:%S')} UTC)"
