"""What a mutation is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """One line that is removed or inverted."""

    name: str
    profile: str
    property: str
    """The property that catches it."""
    what: str
    module: str
    old: str
    new: str
    seed: int = 0
