"""What one simulated run gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

CRASH = "crash"
"""The property that product code which raises violates."""


@dataclass(slots=True)
class Result:
    """What one run gives."""

    seed: int
    events: int = 0
    sim_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[str, str]] = field(default_factory=list)
    """Property and text."""

    @property
    def properties(self) -> list[str]:
        """The violated properties, each once, in the order of the violations."""
        return list(dict.fromkeys(name for name, _ in self.violations))
