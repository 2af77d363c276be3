"""requirements/: everything is pinned with hashes, and a node runs with the versions that the tests ran with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Package to version and hashes."""
    text = (ROOT / "requirements" / name).read_text()
    found = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        first = re.match(r"([\w.-]+)==([^\s;]+)", entry)
        assert first, f"{name}: {entry[:80]} is not pinned"
        found[first[1]] = first[2], frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
    return found


def test_every_package_has_hashes_and_no_lock_names_an_index() -> None:
    for path in sorted((ROOT / "requirements").glob("*.lock")):
        assert all(hashes for _, hashes in pins(path.name).values()), path.name
        assert "://" not in path.read_text(), path.name


def test_the_runtime_is_what_the_tests_ran_with() -> None:
    tested = pins("dev.lock")
    assert {name: pin for name, pin in pins("runtime.lock").items() if tested.get(name) != pin} == {}


def test_the_runtime_has_what_the_package_and_its_extras_ask_for_and_no_tool_of_ours() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def names(wanted: list[str]) -> set[str]:
        return {re.split(r"[\s\[<>=;]", each)[0] for each in wanted}

    assert names([*project["dependencies"], *extras["console"], *extras["secure"]]) <= pins("runtime.lock").keys()
    assert not names(extras["dev"]) & pins("runtime.lock").keys()
    assert (
        set(tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"])
        <= pins("build.lock").keys()
    )
