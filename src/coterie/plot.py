"""Line plots as SVG that needs nothing else: a file of its own (`lines`), or a figure in a page (`figure`).

Axes are logarithmic unless told otherwise; ticks stand at round numbers. Which line is which never hangs on colour
alone: a file has each line's name at its end, a page gives every line a dash pattern of its own. The colours of a
figure are the page's: it styles the classes s0 to s7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import ceil, floor, log10

Point = tuple[float, float]

SERIES_MAX = 8
"""Lines that can be told apart."""
TICKS_MAX = 12
"""Values of the data that may all have a tick."""
STYLE = """\
  text { font: 13px system-ui, sans-serif; fill: #333 }
  .title { font-size: 16px; font-weight: 600 }
  .grid { stroke: #ddd } .axis { stroke: #666; fill: none }
  .line { fill: none; stroke-width: 2 } .dashed { stroke-dasharray: 5 4 }
"""
COLOURS = ("#0b6e99", "#c4511c", "#5b7f2b", "#7d4c9e")


def plain(value: float) -> str:
    return f"{value:,.10g}"


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a plot."""

    label: str
    log: bool = True
    """All values are positive then."""
    text: Callable[[float], str] = plain
    """How a tick is written."""
    at: Sequence[float] = ()
    """Where ticks are, if not at round numbers."""
    least: float | None = None
    most: float | None = None
    """Where it begins and ends, if not with the data."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Sizes, in units of the picture."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int


FILE = Frame(720, 440, left=76, right=190, top=48, bottom=56)
FIGURE = Frame(640, 310, left=76, right=24, top=34, bottom=54)


def lines(
    title: str, x: Axis | str, y: Axis | str, series: Mapping[str, Sequence[Point]], dashed: Sequence[str] = ()
) -> str:
    """The text of a file. A line called `A, ...` has the colour of the line `A`."""
    x, y, xs = _axis(x), _axis(y), sorted({at for line in series.values() for at, _ in line})
    if x.log and not x.at and len(xs) <= TICKS_MAX:
        x = replace(x, at=xs)
    across, up = _scales(x, y, series, FILE)
    middle = (FILE.left + FILE.width - FILE.right) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {FILE.width} {FILE.height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE}</style>",
        f'<rect width="{FILE.width}" height="{FILE.height}" fill="#fff"/>',
        f'<text class="title" x="{FILE.left}" y="26">{escape(title)}</text>',
        *_grid(across, up, FILE),
        f'<text x="{middle:g}" y="{FILE.height - 14}" text-anchor="middle">{escape(across.axis.label)}</text>',
        f'<text transform="translate(18 {(FILE.top + FILE.height - FILE.bottom) / 2:g}) rotate(-90)" '
        f'text-anchor="middle">{escape(up.axis.label)}</text>',
        *(
            text
            for name, line in series.items()
            for text in _named(name, line, _colour(name, [*series]), name in dashed, across, up)
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def figure(label: str, x: Axis, y: Axis, series: Mapping[str, Sequence[Point]]) -> str:
    """An element for a page, which says with `label` what is to be seen. Line number i is of the class s<i>."""
    across, up = _scales(x, y, series, FIGURE)
    middle = (FIGURE.left + FIGURE.width - FIGURE.right) / 2
    parts = [
        f'<svg viewBox="0 0 {FIGURE.width} {FIGURE.height}" role="img" aria-label="{escape(label)}">',
        *_grid(across, up, FIGURE),
        f'<text x="{middle:g}" y="{FIGURE.height - 8}" text-anchor="middle">{escape(x.label)}</text>',
        f'<text x="8" y="16">{escape(y.label)}</text>',
    ]
    for number, (name, line) in enumerate(series.items()):
        parts.append(f'<g class="s{number % SERIES_MAX}"><title>{escape(name)}</title>')
        parts.append(f'<path class="line" d="{_path(line, across, up)}"/></g>')
    return "".join([*parts, "</svg>"])


class _Scale:
    """From values to places."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float, round_up: bool) -> None:
        self.axis = axis
        least = min(values) if axis.least is None else axis.least
        most = max(values) if axis.most is None else axis.most
        if axis.log and round_up:
            least, most = 10.0 ** floor(log10(least)), 10.0 ** ceil(log10(most))
        if axis.log:
            most = max(most, least * (10 if round_up else 1.001))
        elif most <= least:
            most = least + 1
        self.ticks = list(axis.at) or (_powers(least, most) if axis.log else _steps(least, most))
        if not axis.log and round_up:
            most = max(most, self.ticks[-1])
        self.least = least
        self._start, self._scale = start, (end - start) / (self._on(most) - self._on(least))

    def _on(self, value: float) -> float:
        return log10(value) if self.axis.log else value

    def place(self, value: float) -> float:
        return round(self._start + (self._on(value) - self._on(self.least)) * self._scale, 1)


def _axis(axis: Axis | str) -> Axis:
    return Axis(axis) if isinstance(axis, str) else axis


def _scales(x: Axis, y: Axis, series: Mapping[str, Sequence[Point]], frame: Frame) -> tuple[_Scale, _Scale]:
    points = [point for line in series.values() for point in line]
    across = _Scale(x, [x for x, _ in points], frame.left, frame.width - frame.right, round_up=False)
    return across, _Scale(y, [y for _, y in points], frame.height - frame.bottom, frame.top, round_up=y.most is None)


def _powers(least: float, most: float) -> list[float]:
    """Powers of ten, as many as can be read; where there is hardly one, steps between them."""
    first, last = floor(log10(least) + 1e-9), ceil(log10(most) - 1e-9)
    step = 1 + (last - first) // TICKS_MAX
    digits = (1,) if last - first > 2 else (1, 2, 5)
    every = [digit * 10.0**power for power in range(first, last + 1, step) for digit in digits]
    return [tick for tick in every if least * 0.999 <= tick <= most * 1.001] or [least, most]


def _steps(least: float, most: float) -> list[float]:
    """Up to eight round numbers, the last of them not below the most."""
    rough = (most - least) / 6
    power = 10.0 ** floor(log10(rough))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough * 0.999)
    return [number * step for number in range(floor(least / step + 1e-9), ceil(most / step - 1e-9) + 1)]


def _grid(across: _Scale, up: _Scale, frame: Frame) -> Iterator[str]:
    bottom, right = frame.height - frame.bottom, frame.width - frame.right
    for tick in across.ticks:
        at = across.place(tick)
        if at <= right + 1:
            yield f'<path class="grid" d="M{at:g} {frame.top}V{bottom}"/>'
            yield f'<text x="{at:g}" y="{bottom + 19}" text-anchor="middle">{escape(across.axis.text(tick))}</text>'
    for tick in up.ticks:
        at = up.place(tick)
        yield f'<path class="grid" d="M{frame.left} {at:g}H{right}"/>'
        yield f'<text x="{frame.left - 8}" y="{at + 4:g}" text-anchor="end">{escape(up.axis.text(tick))}</text>'
    yield f'<path class="axis" d="M{frame.left} {frame.top}V{bottom}H{right}"/>'


def _path(line: Sequence[Point], across: _Scale, up: _Scale) -> str:
    return "M" + "L".join(f"{across.place(x):g} {up.place(y):g}" for x, y in line)


def _colour(name: str, names: Sequence[str]) -> str:
    first = next(number for number, other in enumerate(names) if name == other or name.startswith(f"{other},"))
    return COLOURS[first % len(COLOURS)]


def _named(name: str, line: Sequence[Point], colour: str, dashed: bool, across: _Scale, up: _Scale) -> Iterator[str]:
    yield (
        f'<path class="line{" dashed" if dashed else ""}" style="stroke: {colour}" d="{_path(line, across, up)}"/>'
    )  # fmt: skip
    for x, y in () if dashed else line:
        place = f'cx="{across.place(x):g}" cy="{up.place(y):g}"'
        yield f'<circle {place} r="3.5" fill="{colour}"><title>{x:g}: {y:,g}</title></circle>'
    x, y = line[-1]
    place = f'x="{across.place(x) + 10:g}" y="{up.place(y) + 4:g}"'
    yield f'<text {place} style="fill: {colour}">{escape(name)}: {y:,g}</text>'
