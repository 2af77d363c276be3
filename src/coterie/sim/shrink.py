"""Shrinking: the smallest plan, as far as patience goes, that still violates the same property.

Faults, bursts and actions are dropped in halves, then quarters and so on down to single ones; members one by one; then
what is left is made shorter and simpler. Each try is a whole run, so the result is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from coterie.sim.plan import Action, Burst, Fault, Plan
from coterie.sim.stream import Limits

T = TypeVar("T")


@dataclass(slots=True)
class Shrunk:
    """A smaller plan, and what it took to find it."""

    plan: Plan
    property: str
    tries: int


class Shrinker:
    """Looks for a smaller plan that violates the same property."""

    def __init__(self, run: Callable[[Plan], list[str]], tries_max: int = 400) -> None:
        self._run = run
        """Gives the properties that a plan violates."""
        self._tries_max = tries_max
        self._tries = 0
        self._property = ""

    def shrink(self, plan: Plan, progress: Callable[[int, Plan], None] = lambda tries, plan: None) -> Shrunk | None:
        """None if the plan violates nothing."""
        violated = self._run(plan)
        if not violated:
            return None
        self._property = violated[0]
        before = -1
        while before != plan.size and self._tries < self._tries_max:
            before = plan.size
            steps = self._drop_faults, self._drop_bursts, self._drop_members, self._drop_actions
            for step in (*steps, self._shorten, self._simplify):
                plan = step(plan)
                progress(self._tries, plan)
        return Shrunk(plan, self._property, self._tries)

    def _fails(self, plan: Plan) -> bool:
        if self._tries >= self._tries_max:
            return False
        self._tries += 1
        return self._property in self._run(plan)

    def _drop_faults(self, plan: Plan) -> Plan:
        def with_faults(faults: list[Fault]) -> Plan:
            return replace(plan, faults=faults)

        return with_faults(self._fewer(plan.faults, with_faults))

    def _drop_bursts(self, plan: Plan) -> Plan:
        def with_bursts(bursts: list[Burst]) -> Plan:
            return replace(plan, bursts=bursts)

        return with_bursts(self._fewer(plan.bursts, with_bursts))

    def _drop_actions(self, plan: Plan) -> Plan:
        def with_actions(actions: list[Action]) -> Plan:
            return replace(plan, actions=actions)

        return with_actions(self._fewer(plan.actions, with_actions))

    def _fewer(self, items: list[T], make: Callable[[list[T]], Plan]) -> list[T]:
        """Drop as many items as possible, in ever smaller pieces."""
        if items and self._fails(make([])):
            return []
        piece = max(1, len(items) // 2)
        while items:
            at = 0
            while at < len(items):
                fewer = items[:at] + items[at + piece :]
                if fewer != items and self._fails(make(fewer)):
                    items = fewer
                else:
                    at += piece
            if piece == 1:
                break
            piece = max(1, piece // 2)
        return items

    def _drop_members(self, plan: Plan) -> Plan:
        for name in reversed(plan.members):
            if len(plan.members) > 2:
                smaller = replace(
                    plan,
                    members=[member for member in plan.members if member != name],
                    bursts=[burst for burst in plan.bursts if name not in (burst.node, burst.to)],
                    faults=[fault for fault in plan.faults if name not in fault.nodes],
                )
                if self._fails(smaller):
                    plan = smaller
        return plan

    def _shorten(self, plan: Plan) -> Plan:
        """Fewer bundles and messages in each burst."""
        for number in range(len(plan.bursts)):
            for shorten in _SHORTER:
                bursts = list(plan.bursts)
                bursts[number] = shorten(bursts[number])
                if bursts != plan.bursts and self._fails(smaller := replace(plan, bursts=bursts)):
                    plan = smaller
        return plan

    def _simplify(self, plan: Plan) -> Plan:
        """A plainer network, plainer clocks, and an earlier end of the faults."""
        for simpler in _SIMPLER:
            changed = simpler(plan)
            if changed != plan and self._fails(changed):
                plan = changed
        return plan


_SHORTER: tuple[Callable[[Burst], Burst], ...] = (
    lambda burst: replace(burst, bundles=1),
    lambda burst: replace(burst, messages=1),
)


def _end_earlier(plan: Plan) -> Plan:
    ends = [fault.at + fault.duration for fault in plan.faults] + [burst.at for burst in plan.bursts]
    return replace(plan, quiet_at=min(plan.quiet_at, max(ends, default=0.5) + 0.2))


_SIMPLER: tuple[Callable[[Plan], Plan], ...] = (
    lambda plan: replace(plan, skews={}),
    lambda plan: replace(plan, starts={}),
    lambda plan: replace(plan, network=replace(plan.network, loss=0.0)),
    lambda plan: replace(plan, network=replace(plan.network, chop=0.0)),
    lambda plan: replace(plan, network=replace(plan.network, bandwidth=0.0)),
    lambda plan: replace(plan, limits=Limits()),
    _end_earlier,
)
