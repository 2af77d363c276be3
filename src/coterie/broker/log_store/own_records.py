"""The kinds of records that the store keeps for itself."""

from __future__ import annotations

from typing import Final

PART: Final = "store.part"
"""Whose a part is."""
LINE: Final = "store.marks"
"""How far a queue may have gone."""
STARTED: Final = "store.started"
"""Which start of the node wrote last."""
CLOSED: Final = "store.closed"
"""Which start was closed as it should be."""
OWN: Final = frozenset({PART, LINE, STARTED, CLOSED})
