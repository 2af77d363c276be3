"""Prometheus' text format: families of samples with labels, escaped as it wants them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from coterie.durations import BOUNDS, Durations

Kind = Literal["counter", "gauge", "histogram"]
Labels = Mapping[str, str]
Number = int | float


def escaped(value: str) -> str:
    """A label's value, without its quotes."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def labelled(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


class Exposition:
    """Grows family by family; a family's samples come together, as the format demands."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: Kind, help: str, samples: Iterable[tuple[Labels | str, Number | None]]) -> None:
        """A value that is not known (None) is left out, and a family without samples too. Labels that are needed more
        than once may be `labelled` already."""
        lines = [
            f"{name}{labels if isinstance(labels, str) else labelled(labels)} {_number(value)}"
            for labels, value in samples
            if value is not None
        ]
        if lines:
            self._begin(name, kind, help)
            self._lines += lines

    def one(self, name: str, kind: Kind, help: str, value: Number | None) -> None:
        self.family(name, kind, help, [({}, value)])

    def durations(self, name: str, help: str, durations: Durations) -> None:
        """A histogram, whose classes hold all that is in the smaller ones too."""
        self._begin(name, "histogram", help)
        count = 0
        for bound, more in zip((*BOUNDS, float("inf")), durations.counts, strict=True):
            count += more
            self._lines.append(f'{name}_bucket{{le="{_number(bound)}"}} {count}')
        self._lines += [f"{name}_sum {_number(durations.total)}", f"{name}_count {count}"]

    def _begin(self, name: str, kind: Kind, help: str) -> None:
        text = help.replace("\\", "\\\\").replace("\n", "\\n")
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _number(value: Number) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(value) if isinstance(value, int) else format(value, ".9g")
