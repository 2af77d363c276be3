"""Settings that all brokers of a cluster must share: those that decide something while an event is applied.

Every broker applies the same events, and must come to the same state by them. A setting that only decides what a broker
sends, or lets in, may differ; one that decides inside the event must not. Such settings are declared with
`shared=True`. A broker tells its own when it joins, and one that has others is refused.

A broker of another version may not know all of them. What it does not tell is unknown, and keeps nobody out: otherwise
a version that shares one setting more could never take over from the one before it, broker by broker. When nobody
serves, all brokers must decide alike, by the same statuses: so only what everyone tells is compared then. What matters
only when a cluster begins is told by those that were in none yet.

The default of such a setting is part of the protocol: a version with another one is refused by the version before it,
unless the value is set on every broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Final

Value = str | int | float
Shared = Mapping[str, Value]
"""By the name of each, as `broker.queues_max`."""
Kind = tuple[tuple[str, Value], ...]
"""The same of brokers that are alike, by name."""

DISPATCH: Final = "cluster.dispatch"
"""The only one that the first versions told."""
_COUNT_MAX, _LENGTH_MAX, _NUMBER_MAX = 100, 100, 2**64
"""Of what a peer says: settings, characters, and how large a number may be."""
_REMEDY: Final = "change it there, or on every broker while all are stopped"


def read_shared(raw: Mapping[str, object]) -> Shared:
    """Of the status of a broker. Raises AssertionError for what no broker says."""
    told = raw.get("shared", {})
    assert isinstance(told, dict) and len(told) <= _COUNT_MAX  # noqa: PT018
    assert all(isinstance(name, str) and len(name) <= _LENGTH_MAX and _sound(value) for name, value in told.items())
    return {DISPATCH: str(raw.get("dispatch"))[:_LENGTH_MAX], **told}


def _sound(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LENGTH_MAX
    return isinstance(value, int | float) and isfinite(value) and abs(value) < _NUMBER_MAX


def told_by_all(told: Iterable[Shared]) -> list[str]:
    """The names of those that each of them tells."""
    each = [set(shared) for shared in told]
    return sorted(set.intersection(*each)) if each else []


def kind_of(shared: Shared, names: Iterable[str]) -> Kind:
    return tuple((name, shared[name]) for name in names)


def why_different(theirs: Shared, ours: Shared) -> str:
    """For a broker that is to be part of a cluster; nothing: it may be."""
    found = [
        f"its {name} is {_shown(theirs[name])}, and that of the cluster is {_shown(ours[name])}"
        for name in sorted(ours)
        if name in theirs and theirs[name] != ours[name]
    ]
    return f"{'; '.join(found)}: {_REMEDY}" if found else ""


def what_differs(kinds: Sequence[Kind]) -> str:
    """For brokers of which nobody knows whose settings are right."""
    found = []
    for name in dict(kinds[0]):
        values = {dict(kind)[name] for kind in kinds}
        if len(values) > 1:
            found.append(f"{name} is not the same everywhere: {', '.join(sorted(map(_shown, values)))}")
    return "; ".join(found)


def _shown(value: Value) -> str:
    """As it is written in a file of settings."""
    return str(value).lower() if isinstance(value, bool) else str(value)
