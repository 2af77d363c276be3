"""The protocols that there are, and the stacks that have a name."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.errors import UserError
from coterie.group.protocol import Protocol
from coterie.group.protocols.cut import Cut
from coterie.group.protocols.discovery import Dns, Folder, Multicast, Static
from coterie.group.protocols.failure import Failure
from coterie.group.protocols.faults import Delay, Drop, Duplicate, Shuffle
from coterie.group.protocols.fixed import Fixed
from coterie.group.protocols.flow import Flow
from coterie.group.protocols.flush import Flush
from coterie.group.protocols.flush2 import Flush2
from coterie.group.protocols.fragment import Fragment
from coterie.group.protocols.gms.gms import Gms
from coterie.group.protocols.merge import Merge
from coterie.group.protocols.nakack import Nakack
from coterie.group.protocols.stable import Stable
from coterie.group.protocols.state import State
from coterie.group.protocols.tcp import Tcp
from coterie.group.protocols.total import Total
from coterie.group.protocols.udp import Udp
from coterie.group.protocols.unicast3 import Unicast3
from coterie.group.stack import Layer
from coterie.settings import suggest

REGISTRY: Mapping[str, type[Protocol]] = {
    kind.name: kind
    for kind in (
        Tcp, Udp, Static, Multicast, Folder, Dns, Merge, Failure, Nakack, Unicast3, Stable, Fixed, Gms,
        Flush2, Flush, Flow, Fragment, Total,
        State,
        Drop, Delay, Duplicate, Shuffle, Cut,
    )
}  # fmt: skip

_RELIABLE = ("FAILURE", "NAKACK", "UNICAST3", "STABLE")
_AGREED = ("MERGE", *_RELIABLE, "GMS")
_TOP = ("FLOW", "FRAG")

PRESETS: Mapping[str, tuple[str, ...]] = {
    "reliable": ("TCP", "STATIC", *_RELIABLE, "FIXED", *_TOP),
    "reliable-udp": ("UDP", "STATIC", *_RELIABLE, "FIXED", *_TOP),
    "virtual-synchrony": ("TCP", "STATIC", *_AGREED, "STATE", "FLUSH2", *_TOP),
    "total-order": ("TCP", "STATIC", *_AGREED, "TOTAL", "STATE", "FLUSH2", *_TOP),
}

_SHORT_QUEUES: Mapping[str, object] = {"window": 1 << 20}
"""A flush waits for what is under way: with a smaller window it is over sooner, and senders are held up less."""
_PRESET_SETTINGS: Mapping[tuple[str, str], Mapping[str, object]] = {
    ("virtual-synchrony", "FLOW"): _SHORT_QUEUES,
    ("total-order", "FLOW"): _SHORT_QUEUES,
}


def preset(name: str, **settings: Mapping[str, object]) -> list[Layer]:
    """A named stack, with settings for some of its layers: `preset("reliable", TCP={"port": 7800})`."""
    if name not in PRESETS:
        raise UserError(f"there is no stack '{name}'{suggest(name, PRESETS)}")
    layers = [
        Layer(protocol, {**_PRESET_SETTINGS.get((name, protocol), {}), **settings.pop(protocol, {})})
        for protocol in PRESETS[name]
    ]
    if settings:
        raise UserError(f"stack '{name}' has no layer {', '.join(sorted(settings))}")
    return layers
