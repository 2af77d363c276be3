"""Settings: checked values, from files and from text, with errors that say what to correct and where."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from coterie.errors import UserError
from coterie.settings import describe, load, setting, suggest


@dataclass(frozen=True, slots=True)
class Sample:
    rounds: int = setting(3, "how often", minimum=1)
    timeout: float = setting(0.5, "how long", unit="seconds", minimum=0)
    quick: bool = setting(False, "whether at once")
    mode: str = setting("slow", "which way", choices=("slow", "fast"))
    peers: tuple[str, ...] = setting((), "who else")
    ports: tuple[int, ...] = setting((1, 2), "where", minimum=1)
    limit: int | None = setting(None, "at most", unit="bytes")


def test_without_values_there_are_the_defaults() -> None:
    assert load(Sample, {}, "here") == Sample(3, 0.5, False, "slow", (), (1, 2), None)


def test_values_as_toml_gives_them_are_taken() -> None:
    values = {"rounds": 7, "timeout": 2, "quick": True, "mode": "fast", "peers": ["a", "b"], "ports": [3], "limit": 9}
    assert load(Sample, values, "here") == Sample(7, 2.0, True, "fast", ("a", "b"), (3,), 9)


def test_values_as_flags_and_the_environment_give_them_are_taken() -> None:
    values = {"rounds": "7", "timeout": "2", "quick": "yes", "peers": "a, b,", "ports": "3,4", "limit": "9"}
    assert load(Sample, values, "here") == Sample(7, 2.0, True, "slow", ("a", "b"), (3, 4), 9)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rounds", 1.5, "here: rounds must be a whole number, not 1.5"),
        ("rounds", True, "here: rounds must be a whole number, not True"),
        ("rounds", "many", "here: rounds must be a whole number, not 'many'"),
        ("rounds", 0, "here: rounds must be at least 1, not 0"),
        ("timeout", "soon", "here: timeout must be a number, not 'soon'"),
        ("timeout", -1, "here: timeout must be at least 0, not -1.0"),
        ("timeout", "nan", "here: timeout must be at least 0, not nan"),
        ("timeout", False, "here: timeout must be a number, not False"),
        ("quick", 1, "here: quick must be true or false, not 1"),
        ("quick", "maybe", "here: quick must be true or false, not 'maybe'"),
        ("mode", "medium", "here: mode must be one of slow, fast, not 'medium'"),
        ("mode", 3, "here: mode must be a text, not 3"),
        ("peers", 3, "here: peers must be a list, not 3"),
        ("peers", ["a", 3], "here: peers must be a text, not 3"),
        ("ports", "1,x", "here: ports must be a whole number, not 'x'"),
        ("ports", [0], "here: ports must be at least 1, not 0"),
        ("limit", "all", "here: limit must be a whole number, not 'all'"),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence_that_says_what_it_must_be(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        load(Sample, {name: value}, "here")
    assert str(caught.value) == message


def test_an_unknown_setting_is_refused_with_the_one_that_was_probably_meant() -> None:
    with pytest.raises(UserError, match=r"here: there is no setting 'timout' \(did you mean 'timeout'\?\)"):
        load(Sample, {"timout": 1}, "here")


def test_without_a_close_match_an_error_says_what_there_is() -> None:
    assert suggest("xyz", {"b", "a"}) == " (there are: a, b)"
    assert suggest("xyz", ()) == " (there are: none)"


def test_a_description_has_all_that_documentation_shows() -> None:
    timeout = next(item for item in describe(Sample) if item.name == "timeout")
    assert (timeout.default, timeout.unit, timeout.help) == (0.5, "seconds", "how long")
