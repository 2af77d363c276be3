"""Stacks: a list of protocols with their settings, checked, linked and run as one.

A stack is data: `[("TCP", {...}), ("NAKACK", {}), ...]` bottom first, or the same in TOML as `[[stack]]` tables with
`protocol = "TCP"` and its settings. What cannot work is refused with a sentence that says what to change.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from coterie.errors import UserError
from coterie.group.events import Event
from coterie.group.members import Address, View, ViewId
from coterie.group.packet import Packet, group_tag
from coterie.group.protocol import Protocol
from coterie.runtime.base import Runtime
from coterie.settings import load, suggest

P = TypeVar("P", bound=Protocol)


@dataclass(frozen=True, slots=True)
class Layer:
    """One entry of a stack's description."""

    protocol: str
    settings: Mapping[str, object]


def parse_toml(text: str, where: str = "stack file") -> list[Layer]:
    """A stack from its TOML form."""
    try:
        entries = tomllib.loads(text).get("stack")
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where}: not TOML: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{where}: no [[stack]] tables: each names one protocol, the transport first")
    layers = []
    for entry in entries:
        name = entry.pop("protocol", None) if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise UserError(f'{where}: a [[stack]] table without protocol = "NAME"')
        layers.append(Layer(name, entry))
    return layers


def build(layers: Iterable[Layer], registry: Mapping[str, type[Protocol]]) -> list[Protocol]:
    """Protocols with checked settings, in an order that can work. Raises UserError otherwise."""
    protocols: list[Protocol] = []
    for layer in layers:
        kind = registry.get(layer.protocol)
        if kind is None:
            raise UserError(f"stack: there is no protocol '{layer.protocol}'{suggest(layer.protocol, registry)}")
        protocols.append(kind(load(kind.Settings, layer.settings, layer.protocol)))
    check_order(protocols)
    return protocols


def check_order(protocols: Sequence[Protocol]) -> None:
    """Each role is filled once, and below whoever needs it."""
    if not protocols or protocols[0].role != "transport":
        raise UserError("stack: the first (lowest) layer must be a transport: TCP or UDP")
    filled: dict[str, str] = {}
    everywhere = {p.role for p in protocols}
    for protocol in protocols:
        for need in protocol.needs_below:
            if need not in filled:
                hint = "it stands above it: move it down" if need in everywhere else "no layer provides it: add one"
                raise UserError(f"stack: {protocol.name} needs {need} below it, but {hint}")
        if protocol.role:
            if protocol.role in filled:
                other = filled[protocol.role]
                raise UserError(f"stack: {other} and {protocol.name} are both {protocol.role}: leave one out")
            filled[protocol.role] = protocol.name


class Stack:
    """Protocols linked to each other, with what they share: runtime, own address, view, rule counters."""

    def __init__(
        self, runtime: Runtime, group: str, local: Address, protocols: Sequence[Protocol], top: Protocol
    ) -> None:
        self.runtime = runtime
        self.trace = runtime.trace
        self.group = group
        self.group_tag = group_tag(group)
        self.local = local
        self.rules: dict[str, int] = {}
        self.view = View(ViewId(0, local), (local,))
        """The view in force; membership sets it."""
        self.running = False
        self._layers: list[Protocol] = [*protocols, top]
        self._index = {layer: i for i, layer in enumerate(self._layers)}
        self.top = top
        """The application's end."""
        for i, layer in enumerate(self._layers):
            layer.pass_down = self._first_down(i - 1)
            layer.pass_up = self._first_up(i + 1)
            layer.listener = self._first_to_hear(i + 1)
        for layer in self._layers:
            layer.attach(self)

    def only_own_from_now(self, layer: Protocol) -> None:
        """The layer has taken all packets until now."""
        layer.only_own = True
        for i in reversed(range(self._index[layer])):
            below = self._layers[i]
            below.pass_up = self._first_up(i + 1)
            if type(below).up is not Protocol.up and not below.only_own:
                break

    def _first_down(self, index: int) -> Any:
        for layer in reversed(self._layers[: index + 1]):
            if type(layer).down is not Protocol.down:
                return layer.down
        return _nowhere

    def _first_up(self, index: int) -> Any:
        passed: list[Protocol] = []
        for layer in self._layers[index:]:
            if type(layer).up is Protocol.up:
                continue
            if not layer.only_own:
                return _Past(passed, layer.up).up if passed else layer.up
            passed.append(layer)
        return _Past(passed, _nowhere).up if passed else _nowhere

    def _first_to_hear(self, index: int) -> Protocol:
        for layer in self._layers[index:]:
            if type(layer).up_event is not Protocol.up_event:
                return layer
        return _END

    def start(self) -> None:
        self.running = True
        if self.trace.on:
            self.trace.emit("start", sender=self.local, stack=[layer.name for layer in self._layers])
        for layer in self._layers:
            layer.start()

    def stop(self) -> None:
        """Stop every layer. A second call does nothing."""
        if self.running:
            self.running = False
            for layer in reversed(self._layers):
                layer.stop()
            if self.trace.on:
                self.trace.emit("stop", sender=self.local)
                self.trace.flush()

    def below(self, layer: Protocol) -> Protocol:
        index = self._index[layer]
        return self._layers[index - 1] if index else _END

    def above(self, layer: Protocol) -> Protocol:
        index = self._index[layer] + 1
        return self._layers[index] if index < len(self._layers) else _END

    def find(self, kind: type[P]) -> P:
        """The layer of that class: for questions that layers ask each other directly."""
        for layer in self._layers:
            if isinstance(layer, kind):
                return layer
        raise LookupError(f"no {kind.__name__} in this stack")

    def by_role(self, role: str) -> Protocol | None:
        """The layer that fills a role, if there is one: for those who need not know which it is."""
        return next((layer for layer in self._layers if layer.role == role), None)

    def has(self, kind: type[Protocol]) -> bool:
        return any(isinstance(layer, kind) for layer in self._layers)

    def held(self) -> dict[str, int]:
        """What is kept back anywhere in the stack, as `LAYER.kind`."""
        return {f"{layer.name}.{kind}": amount for layer in self._layers for kind, amount in layer.held().items()}

    def stats(self) -> dict[str, dict[str, int]]:
        """Every layer's counters, by its name."""
        return {layer.name: dict(layer.stats) for layer in self._layers if layer.stats}


class _Past:
    """The way past layers that take nothing but their own messages: of most batches they are not told."""

    __slots__ = ("_ids", "_next", "_through")

    def __init__(self, passed: Sequence[Protocol], next_up: Callable[[list[Packet]], None]) -> None:
        self._ids = frozenset(layer.id for layer in passed)
        self._through = passed[0].up
        self._next = next_up

    def up(self, batch: list[Packet]) -> None:
        ids = self._ids
        for packet in batch:
            if packet.proto in ids:
                self._through(batch)
                return
        self._next(batch)


class _End(Protocol):
    """Beyond both ends of a stack, where events stop."""

    name = "END"
    id = 255

    def up_event(self, event: Event) -> None:
        pass

    def down_event(self, event: Event) -> None:
        pass


_END = _End()


def _nowhere(_: Packet | list[Packet]) -> None:
    """A packet that no layer wanted."""
