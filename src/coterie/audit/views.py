"""What folds read from `view` events, whatever the trace holds there."""

from __future__ import annotations

from coterie.trace import Event

Who = tuple[str, int]
"""An incarnation, as its events name it: node and incarnation."""
Rank = tuple[int, str, int]


def name(who: Who) -> str:
    """Its address, as `name#incarnation`."""
    return f"{who[0]}#{who[1]}"


def members(view: Event | None) -> tuple[str, ...]:
    """In the order of the view; empty if it says nothing."""
    listed = None if view is None else view.data.get("members")
    return tuple(map(str, listed)) if isinstance(listed, list) else ()


def agreed(view: Event) -> bool:
    """The view is the same at all of its members, and so has an id that means something to others."""
    return view.data.get("agreed") is True and view.view is not None


def before(view: Event) -> str | None:
    """The id of the view that this member comes from."""
    found = view.data.get("before")
    return found if isinstance(found, str) else None


def numbers(view: Event, key: str) -> dict[str, int]:
    """A mapping from addresses to sequence numbers: data.start, data.welcomed."""
    found = view.data.get(key)
    if not isinstance(found, dict):
        return {}
    return {who: number for who, number in found.items() if isinstance(number, int)}


def subgroups(view: Event) -> list[tuple[str, tuple[str, ...]]] | None:
    """The views that a merge was made of, each with those of its members that came; None if it is no merge."""
    found = view.data.get("subgroups")
    if not isinstance(found, list):
        return None
    return [
        (str(entry[0]), tuple(map(str, entry[1])))
        for entry in found
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list)
    ]


def rank(view_id: str | None) -> Rank | None:
    """By what ids are compared: counter, then creator. None if it is not an id."""
    counter, at, creator = (view_id or "").partition("@")
    node, sign, incarnation = creator.rpartition("#")
    if not (at and sign and counter.isdecimal() and incarnation.isdecimal()):
        return None
    return int(counter), node, int(incarnation)
