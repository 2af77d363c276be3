"""Policies: limits for all queues and exchanges whose names match, changeable while they live.

Of the policies that match, the one with the highest priority applies (among equals, the first by name), whole:
nothing is merged from a second one. An operator's policy stands beside it and can only tighten numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from coterie import patterns
from coterie.broker import arguments
from coterie.broker.limits import NUMBERS, WORDS
from coterie.broker.validation import Check, Whole, flag, short_text, table, text
from coterie.errors import UserError

APPLY_TO: Final = ("all", "queues", "classic_queues", "quorum_queues", "exchanges")
_IGNORED: Final = frozenset(
    {"ha-mode", "ha-params", "ha-sync-mode", "ha-promote-on-shutdown", "ha-promote-on-failure", "ha-sync-batch-size",
     "queue-mode", "queue-version", "queue-master-locator"}
)  # fmt: skip
"""Keys of RabbitMQ that definitions may carry and that have no meaning here."""

REPLICATE: Final = "replicate"
"""Whether the links of this broker take a queue along."""
CHECKS: Final[Mapping[str, Check]] = {
    **{key: arguments.QUEUE_CHECKS[f"x-{key}"] for key in (*NUMBERS, *WORDS)},
    arguments.ALTERNATE: arguments.EXCHANGE_CHECKS[arguments.ALTERNATE],
    REPLICATE: flag,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """`check` raises UserError for what cannot be one."""

    name: str
    pattern: str
    definition: Mapping[str, object]
    apply_to: str = "all"
    priority: int = 0

    def check(self, operator: bool = False, kept: bool = False) -> None:
        """`kept`: it exists already, and has a pattern that fits nothing rather than none."""
        if not self.name:
            raise UserError("a policy needs a name")
        wrong = short_text(self.name)
        if wrong:
            raise UserError(f"the name of a policy: {wrong}")
        if self.apply_to not in APPLY_TO or (operator and self.apply_to == "exchanges"):
            raise UserError(
                f"policy '{self.name}': apply-to must be one of {', '.join(APPLY_TO)}, not {self.apply_to!r}"
            )
        wrong = Whole()(self.priority)
        if wrong:
            raise UserError(f"policy '{self.name}': the priority: {wrong}")
        wrong = text(self.pattern)
        if wrong:
            raise UserError(f"policy '{self.name}': the pattern: {wrong}")
        if not kept:
            try:
                patterns.check(self.pattern)
            except UserError as error:
                raise UserError(f"policy '{self.name}': {error}") from None
        if not self.definition:
            raise UserError(f"policy '{self.name}': the definition is empty")
        wrong = table(self.definition)
        if wrong:
            raise UserError(f"policy '{self.name}': the definition: {wrong}")
        for key, value in self.definition.items():
            wrong = _wrong(key, value, operator)
            if wrong:
                raise UserError(f"policy '{self.name}': {wrong}")

    def sound(self, operator: bool = False) -> tuple[Policy | None, list[str]]:
        """Of one that exists already, as an older version has let it in: what of it can be meant, if anything, and
        what is wrong with the rest."""
        keys = {key: _wrong(key, value, operator) or table({key: value}) for key, value in self.definition.items()}
        problems = [wrong for wrong in keys.values() if wrong]
        left = replace(self, definition={key: self.definition[key] for key, wrong in keys.items() if not wrong})
        problems += [f"the pattern fits nothing: {wrong}" for wrong in (patterns.problem(self.pattern),) if wrong]
        try:
            left.check(operator, kept=True)
        except UserError as error:
            return None, [*problems, str(error)]
        return (left, problems) if problems else (self, problems)

    def matches(self, name: str, kind: str) -> bool:
        """`kind`: what `apply_to` may say of the thing."""
        if self.apply_to not in ("all", kind) and not (self.apply_to == "queues" and kind.endswith("_queues")):
            return False
        return patterns.fits(self.pattern, name)


def _wrong(key: str, value: object, operator: bool) -> str:
    """With one key of a definition."""
    if key in _IGNORED and not operator:
        return ""
    known = NUMBERS if operator else CHECKS
    if key not in known:
        return f"there is no key '{key}' (there are: {', '.join(sorted(known))})"
    wrong = CHECKS[key](value)
    if not wrong and value == arguments.RING:
        wrong = "a ring is a kind of queue: declare it so"
    return f"{key}: {wrong}" if wrong else ""


def by_precedence(policies: Iterable[Policy]) -> list[Policy]:
    """Of several that match, the first applies."""
    return sorted(policies, key=lambda policy: (-policy.priority, policy.name))


def choose(ordered: Iterable[Policy], name: str, kind: str) -> Policy | None:
    """The one that applies, of policies by their precedence."""
    return next((policy for policy in ordered if policy.matches(name, kind)), None)
