"""Writes the tables of a clustered broker's states into docs/cluster.md, from the code (`make docs`)."""

from __future__ import annotations

import re
from pathlib import Path

from coterie.cluster import states
from coterie.cluster.states import TRANSITIONS, Cause, State

PAGE = Path(__file__).parents[1] / "docs" / "cluster.md"
BEGIN, END = "<!-- states: made by scripts/cluster_states.py -->\n", "<!-- end of states -->\n"


def meanings() -> dict[str, str]:
    """By the name of each state: what the module's docstring says of it."""
    assert states.__doc__ is not None
    return dict(re.findall(r"^  ([A-Z_]+) +(.+)$", states.__doc__, re.MULTILINE))


def render() -> str:
    said = meanings()
    lines = ["| state | shown as | |", "|---|---|---|"]
    lines += [f"| {state.title} | {state.shown} | {said[state.name]} |" for state in State]
    lines += ["", "| from | when | to |", "|---|---|---|"]
    for state, causes in TRANSITIONS.items():
        lines += [f"| {state.title} | {cause.value} | {to.title} |" for cause, to in causes.items()]
    lines += [f"| any | {Cause.LEFT.value} | {State.DRAINED.title} |"]
    lines += [f"| any | {Cause.CLOSED.value} | {State.CLOSED.title} |"]
    return "\n".join(lines) + "\n"


def renewed(page: str) -> str:
    """The page with the tables as the code has them."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + render() + END + after


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
