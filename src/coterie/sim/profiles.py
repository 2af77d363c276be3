"""Profiles: families of runs, each made from a seed."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.errors import UserError
from coterie.settings import suggest
from coterie.sim.profile_broker import BROKER_PROFILE, broker_plan
from coterie.sim.profile_channel import CHANNEL_PROFILE, STANDARD_SEEDS, Profile, channel_plan
from coterie.sim.profile_cluster import CLUSTER_PROFILE, cluster_plan
from coterie.sim.profile_vs import TOTAL_PROFILE, VS_PROFILE, total_plan, vs_plan

__all__ = [
    "PROFILES", "STANDARD_SEEDS", "Profile", "broker_plan", "channel_plan", "cluster_plan", "profile", "total_plan",
    "vs_plan",
]  # fmt: skip

PROFILES: Mapping[str, Profile] = {
    found.name: found for found in (CHANNEL_PROFILE, VS_PROFILE, TOTAL_PROFILE, BROKER_PROFILE, CLUSTER_PROFILE)
}


def profile(name: str) -> Profile:
    if name not in PROFILES:
        raise UserError(f"there is no profile '{name}'{suggest(name, PROFILES)}")
    return PROFILES[name]
