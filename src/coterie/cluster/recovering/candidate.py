"""A candidate: one store, with what it says of its cluster and of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from coterie.broker.storage import Record, Recovered
from coterie.cluster.membership import Era, Progress
from coterie.errors import UserError

STATE: Final = ("cluster", "state")
"""Under which a broker keeps how far it has come, and with whom."""
QueueKey = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    folder: str
    name: str
    """Of the node whose store it is."""
    cluster: str
    voters: tuple[str, ...]
    progress: Progress
    era: Era
    chain: str
    time: float
    """By the log: of the last event that changed something here; 0: it is not known."""
    updating: bool
    """An update of it was cut off: it has nothing of its own."""
    damage: tuple[str, ...]
    """What cannot be read, in sentences."""
    queues: Mapping[QueueKey, int]
    """How many messages each has."""
    state: Record = field(repr=False)

    @property
    def place(self) -> str:
        return f"{self.progress.epoch}.{self.progress.index}"

    @property
    def usable(self) -> bool:
        return not self.updating

    @property
    def whole(self) -> bool:
        """It has all that it ever told anybody."""
        return not (self.updating or self.damage)


def candidate_of(folder: str, name: str, found: Recovered, unreadable: Mapping[QueueKey, int]) -> Candidate:
    """Raises UserError if the store is of no cluster."""
    state = found.records.get(STATE, {})
    epoch, index, voters = state.get("epoch"), state.get("index"), state.get("voters")
    if not (isinstance(epoch, int) and isinstance(index, int) and isinstance(voters, list) and state.get("cluster")):
        raise UserError(
            f"{folder}: this store was never part of a cluster: there is nothing to recover; start its node"
        )
    time = state.get("time")
    return Candidate(
        folder, name, str(state["cluster"]), tuple(map(str, voters)), Progress(epoch, index),
        Era.from_json(state.get("era")), str(state.get("chain", "")), time if isinstance(time, float) else 0.0,
        bool(state.get("updating")), _damage(found.damage, state, unreadable),
        {key: len(entries) for key, (_, entries) in sorted(found.queues.items())}, state,
    )  # fmt: skip


def _damage(told: Sequence[str], state: Record, unreadable: Mapping[QueueKey, int]) -> tuple[str, ...]:
    found = [*told]
    if state.get("damaged") and not (told or unreadable):
        found.append("the store was damaged when its node started last")
    found += [
        f"{count} messages of queue '{name}' in vhost '{vhost}' cannot be read"
        for (vhost, name, _), count in sorted(unreadable.items())
    ]
    return tuple(found)
