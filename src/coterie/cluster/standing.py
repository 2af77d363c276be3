"""Where a broker stands: how far it has come in the log, with whom, in which state, and what its store keeps of that.

It answers questions, and is changed by the replica alone (replica.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from coterie.cluster import chain
from coterie.cluster.commit import START, Commit, name_of
from coterie.cluster.divergence import Divergence
from coterie.cluster.membership import NOTHING, Content, Era, Progress, Status, why_not_forget
from coterie.cluster.quorum import needed
from coterie.cluster.shared_settings import Shared
from coterie.cluster.states import Cause, State, after
from coterie.cluster.versions import Versions
from coterie.group.members import Address, View, ViewId


class Disk(NamedTuple):
    """How this broker's store is just now."""

    written: int = 0
    """A number that grows with whatever the store is told."""
    unsynced: int = 0
    """Bytes that wait for the disk."""
    low: bool = False
    """It takes nothing."""
    keeps_old: bool = False
    """What the broker had before its update is still there."""


class Standing:
    """Of one broker."""

    def __init__(self, us: Address, size: int = 0, unsynced_max: int = 0) -> None:
        self.us = us
        self._size = size
        self._unsynced_max = unsynced_max
        self.shared: Shared = {}
        """The settings that all brokers must share, once there is a broker that has some."""
        self.beginning: Shared = {}
        """Those that brokers must share with which a cluster begins: later they decide nothing."""
        self.replaces: Callable[[], tuple[str, ...]] = tuple
        """Clusters that were given up, and go on as this one."""
        self.state = State.JOINING
        self.why = "not connected yet"
        """Why it does not serve."""
        self.progress = Progress()
        self.chain = chain.UNKNOWN
        """Of all that the log has brought so far, and what was made of it."""
        self.aside = b""
        """What was made of it since, at places that are no events: it goes into the chain with the next one."""
        self.divergence = Divergence()
        self.astray = False
        """It has made another state of the log than the others: what its store has is to be kept for a look."""
        self.place = START
        """Of the event that is being applied, or was the last."""
        self.era = Era()
        self.cluster = ""
        self.versions = Versions()
        self.commit = Commit()
        # Members.
        self.view = View(ViewId(0, us), (us,))
        self.members: tuple[Address, ...] = ()
        """Of the view, as of the place of the log that was applied last."""
        self.voters: tuple[str, ...] = ()
        self.in_step: list[Address] = []
        """Who is, in the order of the view."""
        self.catching_up: dict[Address, Progress] = {}
        """Who is, and where the state was cut that it gets."""
        self.lives: dict[Address, Progress] = {}
        """Of those who serve: where in the log the present life of each one's store began."""
        self.resigned: set[Address] = set()
        """They gave up their vote, and are about to leave."""
        self._statuses: dict[Address, Status] = {}
        self._said = False
        """In this view: that we serve."""
        self._refused = False
        """In this view we were: that says more than what we wait for."""
        # The store.
        self.content = NOTHING
        """Of the store, as it was found."""
        self.damaged = False
        """It is not whole: this broker has no vote until it is updated."""
        self.crashed = False
        """It may have known of more than its store has kept: it crashed, and has not been in step since."""
        self.way_back = False
        """While it is updated: what it had was of use, as it could vote."""
        self._goal = Progress()
        """While it is updated: of the state that it is to have."""
        self._kept = self.progress, self.chain
        """As they were at the last event of which the store keeps something. It is the same everywhere."""
        self._kept_at = 0
        self._interrupted = False
        """An update of it was cut off, as the store says."""
        self._behind = False
        """Too much waited for the disk when it was looked at last."""

    # What others ask.

    @property
    def here(self) -> chain.Link:
        """How far it has come, and the chain there."""
        return chain.Link(self.progress, self.chain)

    @property
    def serves(self) -> bool:
        return self.state.serves

    @property
    def follows(self) -> bool:
        """Events are applied here."""
        return self.state.follows

    @property
    def updating(self) -> bool:
        return self.state.updating

    @property
    def servants(self) -> list[Address]:
        """Those in step, and those that catch up."""
        return [*self.in_step, *self.catching_up]

    def serves_with(self, member: Address) -> bool:
        return member in self.in_step or member in self.catching_up

    def keeps_time(self) -> bool:
        """The oldest one in step decides what has expired."""
        return self.state.serves and bool(self.in_step) and self.in_step[0] == self.us

    def life(self, member: Address | None = None) -> int:
        """The present one, of this broker or another, as reports name it; 0: it is not known where that began."""
        began = self.lives.get(member or self.us)
        return 0 if began is None else name_of(began)

    @property
    def voters_in_step(self) -> list[Address]:
        return [member for member in self.in_step if member.name in self.voters]

    def syncs_first(self, origin: Address) -> bool:
        """Whether our disk is one of a majority for that broker's events: its own, and the voters that follow it."""
        voters = self.voters_in_step
        at = voters.index(origin) if origin in voters else 0
        return self.us in (voters[at:] + voters[:at])[: needed(self.voters)]

    def candidate(self) -> str:
        """Who is in step and has no vote: the oldest one proposes it. Nothing: nobody, or that is not our business."""
        if not self.keeps_time():
            return ""
        known = (member.name for member in self.in_step if member not in self.resigned)
        return next((name for name in known if name not in self.voters), "")

    def why_not_forget(self, asker: Address, name: str) -> str:
        """Why that name cannot be forgotten now; nothing: it can."""
        return why_not_forget(self.voters, self.in_step, self.members, asker, name)

    def status(self, disk: Disk, empty: bool, time: float) -> Status:
        """What the others are told. `time`: what it is to this broker; `empty`: it has nothing of its own."""
        live = self.state.live
        shared = self.shared if self.progress.epoch else {**self.shared, **self.beginning}
        return Status(
            self.progress, self.cluster, self.voters, self._size, live, self.damaged, self.updating,
            empty, self.versions.newest, self.versions.spoken, shared, self.era,
            self.chain.hex(), *(NOTHING if live or self.updating else self.content), time,
            self.is_unwell(disk), self.serves, self.crashed and not live, self.replaces(),
        )  # fmt: skip

    def is_unwell(self, disk: Disk) -> bool:
        """Its disk takes nothing, or too little: it is not to be updated."""
        return disk.low or 2 * disk.unsynced > self._unsynced_max

    def becomes(self, cause: Cause) -> None:
        """By the table. Raises Impossible."""
        self.state = after(self.state, cause)

    # What the store keeps.

    def recovered(self, record: Mapping[str, object] | None) -> None:
        """What the store has kept of the cluster; `loaded` when all that it has is in memory."""
        self._interrupted = self.crashed = False
        if record is None:
            return
        epoch, index, voters = record.get("epoch"), record.get("index"), record.get("voters")
        self._interrupted, self.damaged = bool(record.get("updating")), bool(record.get("damaged"))
        self.crashed = bool(record.get("crashed"))
        self.astray = bool(record.get("astray"))
        if isinstance(epoch, int) and isinstance(index, int) and isinstance(voters, list):
            self.progress = self._goal = Progress(epoch, index)
            self.chain = bytes.fromhex(str(record.get("chain", "")))
            self._kept = self.progress, self.chain
            self.era = Era.from_json(record.get("era"))
            self.cluster = str(record.get("cluster"))
            self.voters = tuple(str(name) for name in voters)
            self.versions.spoken = int(str(record.get("version", 1)))

    def ended_well(self, clean: bool) -> None:
        """Whether its life before did, as the store says. Of an update that was cut off nobody needs to know."""
        self.crashed = (self.crashed or not clean) and not self._interrupted and bool(self.progress.epoch)

    def loaded(self, content: Content) -> None:
        """At the start, or when it has gone back to what it had before its update."""
        self.content = content
        if self._interrupted:
            self.becomes(Cause.INTERRUPTED)
        elif self.state is State.GOING_BACK:
            self.becomes(Cause.WENT_BACK)
        self.way_back = False

    def note(self, written: int) -> None:
        """If the store was told something, it keeps that since the last event, and all that was before."""
        if written != self._kept_at:
            self._kept, self._kept_at = (self.progress, self.chain), written

    def kept(self, written: int) -> int:
        """The last event of which the store keeps something."""
        self.note(written)
        return self._kept[0].index

    def keep(self, written: int) -> None:
        """Something about the members has changed, at this place of the log: the store keeps that."""
        self._kept, self._kept_at = (self.progress, self.chain), written

    def record(self, written: int, time: float | None, goal: bool = False) -> dict[str, object]:
        """For the store; `saved` when it is there. `goal`: see `Save`."""
        self.note(written)
        progress, link = (self._goal, chain.UNKNOWN) if goal else self._kept
        return {
            "epoch": progress.epoch, "index": progress.index, "cluster": self.cluster,
            "voters": list(self.voters), "version": self.versions.spoken, "updating": goal,
            "era": self.era.to_json(), "chain": link.hex(), "damaged": self.damaged, "time": time,
            "crashed": self.crashed,
            "astray": self.astray,
        }  # fmt: skip

    def saved(self, written: int) -> None:
        self._kept_at = written
