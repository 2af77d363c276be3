"""The states of a broker in its cluster, and what leads from one to another.

A broker is *in step* if its state is what the ordered log says. While brokers that are in step are a majority of the
voters, they serve. Whoever is not in step tells its status, and is updated by one that is, or begins with others when
enough of them have come together. These are the rules; replica.py follows them, and docs/cluster.md shows the table.

  JOINING       it has what its store has kept, waits for an update, or for enough others to begin with
  CUT_OFF       an update of it was cut off: it has nothing of its own, and votes for whoever has come as far
  GOING_BACK    it goes back to the store that it had before an update which nobody can bring to its end
  UPDATING      the state of another broker is on its way; what the log brings is kept for later
  FOLLOWING     it has that state, and applies events; the log has not said yet that it serves
  CATCHING_UP   it serves while it gets the bodies of its messages: its events are valid, but it is in no quorum
  COMPLETE      it has them all, on disk; the log has not said yet that it is in step
  IN_STEP       it has what the log says, and there is a majority
  STRANDED      the same without a majority: publishers are blocked, nothing is confirmed, accepted or delivered
  STEPPED_BACK  its disk did not take what the log brought: it said so on the log, and waits for its disk
  ASTRAY        it has made another state of the log than the others: it waits for theirs, and has no store of its own
  DRAINED       it has handed over what it held, given up its vote, and left
  CLOSED        it is no member of the group any more, and will not be one in this life
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """Where a broker stands."""

    JOINING = ("joining", "joining")
    CUT_OFF = ("cut off", "joining")
    GOING_BACK = ("going back", "joining")
    UPDATING = ("updating", "joining")
    FOLLOWING = ("following", "joining")
    CATCHING_UP = ("catching up", "serving")
    COMPLETE = ("complete", "serving")
    IN_STEP = ("in step", "serving")
    STRANDED = ("stranded", "stranded")
    STEPPED_BACK = ("stepped back", "stranded")
    ASTRAY = ("astray", "astray")
    DRAINED = ("drained", "drained")
    CLOSED = ("closed", "joining")

    def __init__(self, title: str, shown: str) -> None:
        self.title = title
        self.shown = shown
        """As traces and operators know it."""
        self.serves = shown == "serving"
        """With a majority, in step or catching up."""
        self.live = shown == "stranded"
        """It does not serve, and has its state in memory, not only what its disk has kept."""
        self.updating = title in ("cut off", "going back", "updating", "following", "catching up", "complete", "astray")
        """What it had is not right, and what it is to have is not known to be complete."""
        self.follows = self.serves or title == "following"
        """Events are applied here."""
        self.ended = title in ("drained", "closed")
        """For good, in this life."""


class Cause(Enum):
    """What leads from one state to another."""

    INTERRUPTED = "its store says that an update was cut off"
    VIEW = "another view, while it does not serve"
    NO_MAJORITY = "a view without a majority"
    BEGIN = "enough have met, and it has what is right"
    OFFER = "another broker brings its state"
    GIVE_UP = "the update cannot be carried out, or takes too much memory"
    INSTALLED = "it has that state, without bodies"
    READY = "the log says that it serves"
    FILLED = "all bodies are on disk"
    WHOLE = "the log says that it is in step"
    BACK = "the log says that it steps back"
    ASTRAY = "the log says that others have made another state of it, and are right"
    GO_BACK = "nobody can bring the update to its end"
    WENT_BACK = "it has what it had before"
    LOST_WAY = "what it had before cannot be read any more"
    LEFT = "it was drained, and has left"
    CLOSED = "it cannot follow the log, or another process has its name"


TRANSITIONS: Final[dict[State, dict[Cause, State]]] = {
    State.JOINING: {
        Cause.INTERRUPTED: State.CUT_OFF,
        Cause.VIEW: State.JOINING,
        Cause.BEGIN: State.IN_STEP,
        Cause.OFFER: State.UPDATING,
        Cause.GIVE_UP: State.JOINING,
    },
    State.CUT_OFF: {
        Cause.VIEW: State.CUT_OFF,
        Cause.OFFER: State.UPDATING,
        Cause.GIVE_UP: State.CUT_OFF,
        Cause.GO_BACK: State.GOING_BACK,
    },
    State.GOING_BACK: {
        Cause.VIEW: State.GOING_BACK,
        Cause.GIVE_UP: State.GOING_BACK,
        Cause.WENT_BACK: State.JOINING,
        Cause.INTERRUPTED: State.CUT_OFF,
        Cause.LOST_WAY: State.CUT_OFF,
    },
    State.UPDATING: {
        Cause.VIEW: State.CUT_OFF,
        Cause.OFFER: State.UPDATING,
        Cause.GIVE_UP: State.CUT_OFF,
        Cause.INSTALLED: State.FOLLOWING,
        Cause.GO_BACK: State.GOING_BACK,
    },
    State.FOLLOWING: {
        Cause.VIEW: State.CUT_OFF,
        Cause.OFFER: State.UPDATING,
        Cause.GIVE_UP: State.CUT_OFF,
        Cause.READY: State.CATCHING_UP,
        Cause.GO_BACK: State.GOING_BACK,
    },
    State.CATCHING_UP: {
        Cause.NO_MAJORITY: State.CUT_OFF,
        Cause.READY: State.CATCHING_UP,
        Cause.FILLED: State.COMPLETE,
        Cause.BACK: State.CUT_OFF,
        Cause.ASTRAY: State.CUT_OFF,
    },
    State.COMPLETE: {
        Cause.NO_MAJORITY: State.STRANDED,
        Cause.READY: State.COMPLETE,
        Cause.WHOLE: State.IN_STEP,
        Cause.BACK: State.STEPPED_BACK,
        Cause.ASTRAY: State.ASTRAY,
    },
    State.IN_STEP: {
        Cause.NO_MAJORITY: State.STRANDED,
        Cause.BACK: State.STEPPED_BACK,
        Cause.ASTRAY: State.ASTRAY,
    },
    State.STRANDED: {
        Cause.VIEW: State.STRANDED,
        Cause.BEGIN: State.IN_STEP,
        Cause.OFFER: State.UPDATING,
        Cause.GIVE_UP: State.STRANDED,
    },
    State.STEPPED_BACK: {
        Cause.VIEW: State.STEPPED_BACK,
        Cause.BEGIN: State.IN_STEP,
        Cause.OFFER: State.UPDATING,
        Cause.GIVE_UP: State.STEPPED_BACK,
    },
    State.ASTRAY: {
        Cause.VIEW: State.ASTRAY,
        Cause.OFFER: State.UPDATING,
        Cause.GIVE_UP: State.ASTRAY,
    },
    State.DRAINED: {},
    State.CLOSED: {},
}
"""Besides these, LEFT leads from everywhere to DRAINED, and CLOSED to CLOSED. Whatever else still comes to a broker
that is drained or closed changes nothing."""
_FROM_EVERYWHERE: Final = {Cause.LEFT: State.DRAINED, Cause.CLOSED: State.CLOSED}


class Impossible(Exception):
    """A cause that has no place in the table: this broker's own mistake."""


def after(state: State, cause: Cause) -> State:
    """Raises Impossible."""
    rows = TRANSITIONS[state]
    found = _FROM_EVERYWHERE.get(cause) or (rows.get(cause) if rows else state)
    if found is None:
        raise Impossible(f"{cause.name} while {state.name}")
    return found
