"""Operations: the only ways in which a state changes. Each assigns, has an exact inverse, and an exact encoding.

`do` gives what `undo` needs besides the arguments. Both cannot fail: who calls `do` knows that it fits the state, as a
step's policy does; whoever does not know, as `replay`, asks `check` before. The tables of operations are `messages`,
`marks`, `holding` and `sharing`; docs/queue-state.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from coterie.broker.state.effect_codec import Field, MalformedEffects

OPERATIONS: Final[dict[int, Operation]] = {}
"""By code."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    code: int
    """In effects; never given to another operation."""
    name: str
    fields: tuple[Field, ...]
    do: Callable[..., Any]
    """Of the broker's state, the queue's, and the arguments."""
    undo: Callable[..., object]
    """Of both states, what `do` gave, and the arguments."""
    check: Callable[..., object]
    """Of both states and the arguments: raises MalformedEffects if they do not fit."""
    of_queue: bool = True
    """False: it concerns the broker's state alone."""
    leaves: bool = False
    """Messages leave: the last argument says which, so that runs and lengths are trimmed."""

    numbers: Callable[..., Sequence[int] | None] | None = None
    """Of arguments: the same as the fields write, as numbers, if they are such; for what is done in every event."""
    writes: tuple[Callable[[bytearray, Any], None], ...] = ()
    """Of the fields."""

    def __post_init__(self) -> None:
        assert self.code not in OPERATIONS
        OPERATIONS[self.code] = self
        object.__setattr__(self, "writes", tuple([each.write for each in self.fields]))


def require(condition: object, why: str) -> None:
    if not condition:
        raise MalformedEffects(why)
