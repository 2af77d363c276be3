"""Profiles: families of runs, each made from a seed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping

from coterie.errors import UserError
from coterie.settings import suggest
from coterie.sim.plan import Plan
from coterie.sim.profile_broker import BROKER_PROFILE, broker_plan
from coterie.sim.profile_channel import CHANNEL_PROFILE, STANDARD_SEEDS, Profile, channel_plan
from coterie.sim.profile_cluster import CLUSTER_PROFILE, cluster_plan
from coterie.sim.profile_vs import TOTAL_PROFILE, VS_PROFILE, total_plan, vs_plan

__all__ = [
    "PROFILES", "STANDARD_SEEDS", "Profile", "broker_plan", "channel_plan", "cluster_plan", "need_for_plan",
    "need_for_runs", "profile", "total_plan", "vs_plan",
]  # fmt: skip

PROFILES: Mapping[str, Profile] = {
    found.name: found for found in (CHANNEL_PROFILE, VS_PROFILE, TOTAL_PROFILE, BROKER_PROFILE, CLUSTER_PROFILE)
}
SEALED = frozenset({"UDP", "MULTICAST"})
"""Layers that encrypt what they send, if the group has a secret."""


def profile(name: str) -> Profile:
    if name not in PROFILES:
        raise UserError(f"there is no profile '{name}'{suggest(name, PROFILES)}")
    return PROFILES[name]


def need_for_runs(family: Profile, seeds: Iterable[int]) -> None:
    """Raise UserError if one of these runs needs what is not installed. (No protocol is imported to find out.)"""
    if family.protocols and not _has_cipher():
        for seed in seeds:
            need_for_plan(family.make(seed))


def need_for_plan(plan: Plan) -> None:
    """Raise UserError if this one does."""
    secret = any("secret" in settings for _, settings in plan.stack)
    if secret and not SEALED.isdisjoint(name for name, _ in plan.stack) and not _has_cipher():
        raise UserError(
            f"{plan.profile}, seed {plan.seed}: the members encrypt their datagrams, which needs the package "
            "'cryptography': pip install 'coterie[secure]'"
        )


def _has_cipher() -> bool:
    return importlib.util.find_spec("cryptography") is not None
