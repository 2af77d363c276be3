"""The protocols that there are, and the stacks that have a name."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.errors import UserError
from coterie.group.protocol import Protocol
from coterie.group.protocols.discovery import Dns, Folder, Multicast, Static
from coterie.group.protocols.failure import Failure
from coterie.group.protocols.faults import Delay, Drop, Duplicate, Shuffle
from coterie.group.protocols.fixed import Fixed
from coterie.group.protocols.flow import Flow
from coterie.group.protocols.fragment import Fragment
from coterie.group.protocols.nakack import Nakack
from coterie.group.protocols.stable import Stable
from coterie.group.protocols.tcp import Tcp
from coterie.group.protocols.udp import Udp
from coterie.group.protocols.unicast3 import Unicast3
from coterie.group.stack import Layer
from coterie.settings import suggest

REGISTRY: Mapping[str, type[Protocol]] = {
    kind.name: kind
    for kind in (
        Tcp, Udp, Static, Multicast, Folder, Dns, Failure, Nakack, Unicast3, Stable, Fixed, Flow, Fragment,
        Drop, Delay, Duplicate, Shuffle,
    )
}  # fmt: skip

_ABOVE_DISCOVERY = ("FAILURE", "NAKACK", "UNICAST3", "STABLE", "FIXED", "FLOW", "FRAG")

PRESETS: Mapping[str, tuple[str, ...]] = {
    "reliable": ("TCP", "STATIC", *_ABOVE_DISCOVERY),
    "reliable-udp": ("UDP", "STATIC", *_ABOVE_DISCOVERY),
}


def preset(name: str, **settings: Mapping[str, object]) -> list[Layer]:
    """A named stack, with settings for some of its layers: `preset("reliable", TCP={"port": 7800})`."""
    if name not in PRESETS:
        raise UserError(f"there is no stack '{name}'{suggest(name, PRESETS)}")
    layers = [Layer(protocol, settings.pop(protocol, {})) for protocol in PRESETS[name]]
    if settings:
        raise UserError(f"stack '{name}' has no layer {', '.join(sorted(settings))}")
    return layers
