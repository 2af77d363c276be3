"""Lines over logarithmic axes as one SVG file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

Point = tuple[float, float]

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 76, 190, 48, 56
COLOURS = ("#0b6e99", "#c4511c", "#5b7f2b", "#7d4c9e")
STYLE = """\
  text { font: 13px system-ui, sans-serif; fill: #333 }
  .title { font-size: 16px; font-weight: 600 }
  .grid { stroke: #ddd } .axis { stroke: #666 }
  .line { fill: none; stroke-width: 2 } .dashed { stroke-dasharray: 5 4 }
"""


def lines(
    title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[Point]], dashed: Sequence[str] = ()
) -> str:
    """The file's text. All values are positive. A line called `A, ...` has the colour of the line `A`."""
    points = [point for line in series.values() for point in line]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    across = _Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    up = _Axis(10 ** floor(log10(min(ys))), 10 ** ceil(log10(max(ys))), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text class="title" x="{LEFT}" y="26">{escape(title)}</text>',
        *_grid(across, up, sorted(set(xs))),
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>",
        *(
            text
            for name, line in series.items()
            for text in _line(name, line, _colour(name, [*series]), name in dashed, across, up)
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _colour(name: str, names: Sequence[str]) -> str:
    first = next(number for number, other in enumerate(names) if name == other or name.startswith(f"{other},"))
    return COLOURS[first % len(COLOURS)]


class _Axis:
    def __init__(self, least: float, most: float, start: float, end: float) -> None:
        self.least, self.most = least, max(most, least * 1.001)
        self._start, self._scale = start, (end - start) / (log10(self.most) - log10(self.least))

    def place(self, value: float) -> float:
        return round(self._start + (log10(value) - log10(self.least)) * self._scale, 1)


def _grid(across: _Axis, up: _Axis, xs: Sequence[float]) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for x in xs:
        at = across.place(x)
        yield f'<path class="grid" d="M{at:g} {TOP}V{bottom}"/>'
        yield f'<text x="{at:g}" y="{bottom + 18}" text-anchor="middle">{x:g}</text>'
    for power in range(round(log10(up.least)), round(log10(up.most)) + 1):
        at = up.place(10**power)
        yield f'<path class="grid" d="M{LEFT} {at:g}H{right}"/>'
        yield f'<text x="{LEFT - 8}" y="{at + 4:g}" text-anchor="end">{10**power:,}</text>'
    yield f'<path class="axis" fill="none" d="M{LEFT} {TOP}V{bottom}H{right}"/>'


def _line(name: str, line: Sequence[Point], colour: str, dashed: bool, across: _Axis, up: _Axis) -> Iterator[str]:
    places = [(across.place(x), up.place(y)) for x, y in line]
    path = "L".join(f"{x:g} {y:g}" for x, y in places)
    yield f'<path class="line{" dashed" if dashed else ""}" stroke="{colour}" d="M{path}"/>'
    for (x, y), (size, value) in zip(places, line, strict=True):
        if not dashed:
            yield f'<circle cx="{x:g}" cy="{y:g}" r="3.5" fill="{colour}"><title>{size:g}: {value:,g}</title></circle>'
    x, y = places[-1]
    yield f'<text x="{x + 10:g}" y="{y + 4:g}" style="fill: {colour}">{escape(name)}: {line[-1][1]:,g}</text>'
