"""The rules that runs are to reach: every protocol's, with its sentence and the design document that it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.group.presets import REGISTRY
from coterie.group.protocols.nakack_streams import SYNCHRONOUS_RULES
from coterie.sim.runner import known_rules

DOCUMENTS = {"FLUSH": "000", "FLUSH2": "001", "GMS": "002", "MERGE": "002", "UNICAST3": "004"}
"""Protocol to the design document whose rules it has. The rules of other protocols are this project's own."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a protocol."""

    name: str
    protocol: str
    sentence: str
    wanted: bool
    """The profile has to reach it."""

    @property
    def document(self) -> str:
        """Number of the design document; empty if it has none."""
        return DOCUMENTS.get(self.protocol, "")


def rules_of(profile: str) -> list[Rule]:
    """All rules, those that the profile has to reach first, those with a design document before others."""
    wanted = set(known_rules(profile))
    sentences = {name: dict(protocol.rules) for name, protocol in REGISTRY.items()}
    sentences["NAKACK"].update(SYNCHRONOUS_RULES)
    rules = [
        Rule(rule, protocol, sentence, rule in wanted)
        for protocol, found in sentences.items()
        for rule, sentence in found.items()
    ]
    has_wanted = {rule.protocol for rule in rules if rule.wanted}
    return sorted(rules, key=lambda rule: (rule.protocol not in has_wanted, rule.document or "999", rule.protocol))
