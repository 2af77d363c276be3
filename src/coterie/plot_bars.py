"""Bar plots as SVG files that need nothing else: for each case a bar for everybody who was measured in it, with the
least and the most as a line across its end. Names and figures stand beside the bars: nothing hangs on colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape

from coterie.plot import plain

WIDTH, LEFT, RIGHT, TOP = 760, 150, 170, 62
BAR, GAP, HEAD = 16, 4, 30
"""Heights: of a bar, between two, and of a case's name with the room above it."""
STYLE = """\
  text { font: 13px system-ui, sans-serif; fill: #333 }
  .title { font-size: 16px; font-weight: 600 } .case { font-weight: 600 } .unit { fill: #666 }
  .spread { stroke: #222; fill: none } .axis { stroke: #666; fill: none }
"""
COLOURS = ("#0b4f6c", "#0b83b5", "#7cc0dc", "#e39a6f", "#c4511c", "#5b7f2b")


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure with its spread."""

    median: float
    least: float
    most: float


def bars(title: str, unit: str, cases: Mapping[str, Mapping[str, Bar]], text: Callable[[float], str] = plain) -> str:
    """The text of a file. By case, and by who was measured; whoever is in several cases has one colour in all."""
    names = list(dict.fromkeys(name for each in cases.values() for name in each))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    most = max(bar.most for each in cases.values() for bar in each.values())
    height = TOP + sum(HEAD + len(each) * (BAR + GAP) for each in cases.values()) + 16
    scale = (WIDTH - LEFT - RIGHT) / most if most else 0.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="16" y="26">{escape(title)}</text>',
        f'<text class="unit" x="16" y="46">{escape(unit)}</text>',
    ]
    at = TOP
    for case, measured in cases.items():
        parts.append(f'<text class="case" x="16" y="{at + HEAD - 8}">{escape(case)}</text>')
        at += HEAD
        first = at
        for name, bar in measured.items():
            middle, end = at + BAR / 2, LEFT + scale * bar.median
            low, high = LEFT + scale * bar.least, LEFT + scale * bar.most
            parts += [
                f'<text x="{LEFT - 8}" y="{middle + 5:g}" text-anchor="end">{escape(name)}</text>',
                f'<rect x="{LEFT}" y="{at}" width="{max(1.0, end - LEFT):.1f}" height="{BAR}" fill="{colours[name]}"/>',
                f'<path class="spread" d="M{low:.1f} {middle:g}H{high:.1f}M{low:.1f} {at + 4}v{BAR - 8}'
                f'M{high:.1f} {at + 4}v{BAR - 8}"/>',
                f'<text x="{max(end, high) + 8:.1f}" y="{middle + 5:g}">{escape(text(bar.median))}</text>',
            ]
            at += BAR + GAP
        parts.append(f'<path class="axis" d="M{LEFT} {first - 3}V{at - 1}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"
