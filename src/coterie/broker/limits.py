"""What limits a queue now: its arguments, the policy that matches it, and the operator's policy over both.

Of two numbers the smaller one counts; of two words the argument's. Limits are computed anew whenever a policy
changes, and apply to queues that exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coterie.broker import arguments
from coterie.broker.arguments import Arguments

NUMBERS: Final = {
    "message-ttl": "ttl", "expires": "expires", "max-length": "max_length", "max-length-bytes": "max_bytes",
    "delivery-limit": "delivery_limit", "deduplicate-length": "deduplicate_length",
    "deduplicate-ttl": "deduplicate_ttl",
}  # fmt: skip
"""Keys of a policy, with a number each, and the field that each limits; a queue's argument has `x-` in front."""
WORDS: Final = {
    "overflow": "overflow",
    "dead-letter-exchange": "dead_exchange",
    "dead-letter-routing-key": "dead_key",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """None: there is no such limit."""

    ttl: int | None = None
    """Milliseconds that a message may stay."""
    expires: int | None = None
    """Milliseconds for which the queue may be unused."""
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = arguments.DROP_HEAD
    dead_exchange: str | None = None
    dead_key: str | None = None
    delivery_limit: int | None = None
    """How often a message may be given back before it is dead."""
    deduplicate_length: int | None = None
    """How many message ids the queue remembers."""
    deduplicate_ttl: int | None = None
    """And for how many milliseconds."""

    @property
    def bounded(self) -> bool:
        return self.max_length is not None or self.max_bytes is not None

    @property
    def deduplicates(self) -> bool:
        return self.deduplicate_length is not None or self.deduplicate_ttl is not None

    @property
    def refuses(self) -> bool:
        """A full queue takes nothing more, instead of letting its oldest go."""
        return self.bounded and self.overflow in (arguments.REJECT, arguments.REJECT_DEAD)


FOLLOWING: Final = Limits(max_length=0, overflow=arguments.REJECT)
"""Of a queue that follows one of another broker: full for every publisher, and nothing leaves it by a rule of its own.
What comes from there is not asked about."""


def effective(given: Arguments, policy: Mapping[str, object], operator: Mapping[str, object]) -> Limits:
    """The limits of a queue with these arguments under these policies (their definitions; empty: none)."""
    found: dict[str, object] = {}
    for key, name in NUMBERS.items():
        values = [given.get(f"x-{key}"), policy.get(key), operator.get(key)]
        numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
        if numbers:
            found[name] = min(numbers)
    for key, name in WORDS.items():
        word = given.get(f"x-{key}", policy.get(key, operator.get(key)))
        if isinstance(word, str):
            found[name] = word
    if found.get("overflow") == arguments.RING and given.get(arguments.OVERFLOW) != arguments.RING:
        del found["overflow"]  # a ring is a kind of queue: no policy makes one of another kind
    return Limits(**found)  # type: ignore[arg-type]
