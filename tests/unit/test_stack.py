"""Stacks as data: what can work is built, what cannot is refused with a sentence that says what to change."""

from __future__ import annotations

import pytest

from coterie.errors import UserError
from coterie.group.presets import PRESETS, REGISTRY, preset
from coterie.group.protocol import Protocol
from coterie.group.stack import Layer, build, parse_toml
from coterie.settings import describe, load

RELIABLE = preset("reliable")


def index_of(name: str) -> int:
    return next(i for i, layer in enumerate(RELIABLE) if layer.protocol == name)


def without(name: str) -> list[Layer]:
    return [layer for layer in RELIABLE if layer.protocol != name]


def refusal(layers: list[Layer]) -> str:
    with pytest.raises(UserError) as caught:
        build(layers, REGISTRY)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_can_be_built(name: str) -> None:
    protocols = build(preset(name), REGISTRY)
    assert tuple(protocol.name for protocol in protocols) == PRESETS[name]


def test_a_preset_takes_settings_for_some_of_its_layers() -> None:
    layers = preset("reliable", NAKACK={"window": 99})
    assert layers[index_of("NAKACK")] == Layer("NAKACK", {"window": 99})


def test_an_unknown_preset_or_layer_of_a_preset_is_refused() -> None:
    with pytest.raises(UserError, match=r"no stack 'relaible' \(did you mean 'reliable'\?\)"):
        preset("relaible")
    with pytest.raises(UserError, match="stack 'reliable' has no layer NACKACK"):
        preset("reliable", NACKACK={})


def test_settings_reach_the_protocol_that_they_are_for() -> None:
    layers = list(RELIABLE)
    layers[index_of("NAKACK")] = Layer("NAKACK", {"window": 99})
    (nakack,) = [protocol for protocol in build(layers, REGISTRY) if protocol.name == "NAKACK"]
    assert nakack.settings.window == 99


def test_an_unknown_protocol_is_refused_with_the_one_that_was_probably_meant() -> None:
    assert refusal([Layer("NACKACK", {})]) == "stack: there is no protocol 'NACKACK' (did you mean 'NAKACK'?)"


def test_an_unknown_setting_is_refused_with_the_one_that_was_probably_meant() -> None:
    layers = list(RELIABLE)
    layers[index_of("NAKACK")] = Layer("NAKACK", {"windw": 99})
    assert refusal(layers) == "NAKACK: there is no setting 'windw' (did you mean 'window'?)"


def test_a_setting_of_the_wrong_type_is_refused() -> None:
    layers = list(RELIABLE)
    layers[index_of("NAKACK")] = Layer("NAKACK", {"window": "wide"})
    assert refusal(layers) == "NAKACK: window must be a whole number, not 'wide'"


@pytest.mark.parametrize("layers", [[], RELIABLE[1:]], ids=["nothing", "no transport"])
def test_a_stack_begins_with_a_transport(layers: list[Layer]) -> None:
    assert refusal(layers) == "stack: the first (lowest) layer must be a transport: TCP or UDP"


def test_a_layer_that_another_one_needs_must_be_there() -> None:
    assert "needs reliable multicast below it, but no layer provides it: add one" in refusal(without("NAKACK"))


def test_a_layer_that_another_one_needs_must_be_further_down() -> None:
    layers = [*without("NAKACK"), Layer("NAKACK", {})]
    assert "needs reliable multicast below it, but it stands above it: move it down" in refusal(layers)


def test_a_role_is_filled_once() -> None:
    at = index_of("NAKACK")
    layers = [*RELIABLE[: at + 1], Layer("NAKACK", {}), *RELIABLE[at + 1 :]]
    assert refusal(layers) == "stack: NAKACK and NAKACK are both reliable multicast: leave one out"


def test_two_transports_are_refused_by_name() -> None:
    assert refusal([RELIABLE[0], Layer("UDP", {}), *RELIABLE[1:]]).endswith("are both transport: leave one out")


@pytest.mark.parametrize("fault", ["DROP", "DELAY", "DUPLICATE", "SHUFFLE"])
def test_a_fault_layer_may_stand_anywhere_and_more_than_once(fault: str) -> None:
    for at in range(1, len(RELIABLE) + 1):
        build([*RELIABLE[:at], Layer(fault, {}), Layer(fault, {}), *RELIABLE[at:]], REGISTRY)


def test_a_stack_is_read_from_toml() -> None:
    text = '[[stack]]\nprotocol = "TCP"\nport = 7\n\n[[stack]]\nprotocol = "NAKACK"\n'
    assert parse_toml(text) == [Layer("TCP", {"port": 7}), Layer("NAKACK", {})]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[stack", "mine.toml: not TOML"),
        ("", r"mine.toml: no \[\[stack\]\] tables"),
        ("stack = []", r"mine.toml: no \[\[stack\]\] tables"),
        ("[stack]\nprotocol = 'TCP'", r"mine.toml: no \[\[stack\]\] tables"),
        ("[[stack]]\nport = 7", r"mine.toml: a \[\[stack\]\] table without protocol"),
        ("[[stack]]\nprotocol = 7", r"mine.toml: a \[\[stack\]\] table without protocol"),
        ("stack = [7]", r"mine.toml: a \[\[stack\]\] table without protocol"),
    ],
)
def test_what_is_no_stack_in_toml_is_refused_with_the_name_of_the_file(text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        parse_toml(text, "mine.toml")


def test_the_registry_knows_each_protocol_by_the_name_it_gives_itself() -> None:
    assert {name: kind.name for name, kind in REGISTRY.items()} == {name: name for name in REGISTRY}


def test_every_protocol_has_a_number_of_its_own_on_the_wire() -> None:
    ids = [kind.id for kind in REGISTRY.values()]
    assert len(set(ids)) == len(ids)
    assert all(0 < number < 255 for number in ids)


@pytest.mark.parametrize("kind", list(REGISTRY.values()), ids=list(REGISTRY))
def test_every_protocol_tells_a_user_what_it_does(kind: type[Protocol]) -> None:
    assert kind.__doc__
    assert all(kind.rules.values())
    assert all(item.help for item in describe(kind.Settings))


@pytest.mark.parametrize("kind", list(REGISTRY.values()), ids=list(REGISTRY))
def test_every_default_of_a_setting_passes_its_own_check(kind: type[Protocol]) -> None:
    defaults = {item.name: item.default for item in describe(kind.Settings)}
    assert load(kind.Settings, defaults, kind.name) == kind.Settings()
