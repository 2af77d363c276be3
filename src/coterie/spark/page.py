"""The frame of a report: one HTML page without anything from outside, and the pieces that go into it.

    page("Audit", "title", verdict(True, "No violations"), facts, [Section("runs", "Runs", table([...], [...]))])

Whatever is not `Html` is text, and is escaped: names of runs and what stands in traces come from others. Tables are
real tables, plots have their words and their numbers beside them, nothing is told by colour alone; the page follows the
reader's light or dark theme and runs no script but its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

from coterie import plot
from coterie.plot import Axis, Point

NAME_SHORT = 32

Cell = object
"""Of a table: Html as it is, numbers at the right, anything else as text."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


class Number(str):
    """Text that stands at the right, as numbers do."""

    __slots__ = ()


class Alarm(Number):
    """A number that should not be there."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Section:
    """One heading of the page and what is below it."""

    anchor: str
    title: str
    body: Html


def text(value: object) -> Html:
    """Anything, so that a page can hold it."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def join(*parts: object) -> Html:
    return Html("".join(map(text, parts)))


def page(kind: str, title: str, verdict: Html, facts: Mapping[str, object], sections: Sequence[Section]) -> str:
    """The whole page: what kind of report it is, of what, how it went, some figures, and the rest."""
    script = _resource("page.js")
    return _PAGE.format(
        csp=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        kind=escape(kind),
        title=escape(title),
        css=_resource("page.css"),
        js=script,
        verdict=verdict,
        facts="".join(f"<div><dt>{text(name)}</dt><dd>{_show(value)}</dd></div>" for name, value in facts.items()),
        nav="".join(f'<a href="#{escape(section.anchor)}">{text(section.title)}</a>' for section in sections),
        sections="\n".join(
            f'<section id="{escape(section.anchor)}"><h2>{text(section.title)}</h2>\n{section.body}</section>'
            for section in sections
        ),
    )


# Pieces.


def verdict(good: bool, headline: str, more: object = "") -> Html:
    """What a reader wants to know first."""
    name, sign = ("good", "✓") if good else ("bad", "✗")
    return Html(
        f'<div class="verdict {name}" role="status"><span class="sign" aria-hidden="true">{sign}</span>'
        f"<div><strong>{text(headline)}</strong><p>{text(more)}</p></div></div>"
    )


def paragraph(*parts: object) -> Html:
    return Html(f"<p>{join(*parts)}</p>\n")


def note(*parts: object) -> Html:
    """Something that the reader should mind."""
    return Html(f'<p class="note"><span class="sign" aria-hidden="true">!</span><span>{join(*parts)}</span></p>\n')


def heading(*parts: object) -> Html:
    return Html(f"<h3>{join(*parts)}</h3>\n")


def code(words: object) -> Html:
    return Html(f"<code>{text(words)}</code>")


def command(words: str) -> Html:
    """A line for a terminal; a click marks all of it."""
    return Html(f'<pre class="command"><code>{text(words)}</code></pre>\n')


def link(target: str, words: object) -> Html:
    return Html(f'<a href="{escape(target)}">{text(words)}</a>')


def details(summary: object, body: Html, opened: bool = False) -> Html:
    return Html(f"<details{' open' if opened else ''}><summary>{text(summary)}</summary>\n{body}</details>\n")


def table(headers: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "") -> Html:
    """Rows under headers; the first cell of a row is its name."""
    right = [bool(rows) and all(_is_number(row[i]) or row[i] is None for row in rows) for i in range(len(headers))]
    head = "".join(
        f'<th scope="col"{_class(at_right)}>{text(name)}</th>' for name, at_right in zip(headers, right, strict=True)
    )
    lines = []
    for row in rows:
        first, *others = zip(row, right, strict=True)
        cells = [f'<th scope="row"{_class(first[1], first[0])}>{_show(first[0])}</th>']
        cells += [f"<td{_class(at_right)}>{_show(cell)}</td>" for cell, at_right in others]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    body = "\n".join(lines)
    return Html(
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption or "table")}"><table>{title}'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
    )


def bars(caption: str, headers: tuple[str, str], values: Mapping[str, float]) -> Html:
    """A table whose numbers are also bars."""
    most = max(values.values(), default=0.0) or 1.0
    rows = [(name, value, bar(value / most)) for name, value in values.items()]
    return table((*headers, ""), rows, caption)


def bar(share: float) -> Html:
    """A bar in a cell, beside the number that it stands for."""
    return Html(
        f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{max(0.0, min(1.0, share)) * 100:.1f}" height="10"/></svg>'
    )


def strip(shares: Sequence[float]) -> Html:
    """Four percentiles on a scale from 0 to 1: a dot at the first, a thick line to the second, a thin one beyond."""
    half, most, tail, end = (2 + 156 * share for share in shares)
    return Html(
        f'<svg class="strip" viewBox="0 0 160 14" aria-hidden="true"><path class="whole" d="M2 7H158"/>'
        f'<path class="tail" d="M{most:.1f} 7H{end:.1f}M{tail:.1f} 4V10M{end:.1f} 2V12"/>'
        f'<path class="most" d="M{half:.1f} 7H{most:.1f}"/><circle class="half" cx="{half:.1f}" cy="7" r="4"/></svg>'
    )


def lines(caption: str, says: str, x: Axis, y: Axis, series: Mapping[str, Sequence[Point]]) -> Html:
    """Lines over two axes, what they say in words, a key, and the numbers to open. Eight lines at most."""
    if not any(series.values()):
        return paragraph(caption, ": nothing was measured.")
    shown = {name: line for name, line in list(series.items())[: plot.SERIES_MAX] if line}
    key = "".join(
        f'<li class="s{number}"><svg viewBox="0 0 34 8" aria-hidden="true"><path class="line" d="M1 4H33"/></svg>'
        f"{text(name)}</li>"
        for number, name in enumerate(shown)
    )
    numbers = [(name, x.text(at), y.text(value)) for name, line in shown.items() for at, value in line]
    return Html(
        f"<figure><figcaption>{text(caption)}</figcaption>{plot.figure(f'{caption}. {says}', x, y, shown)}"
        f'<ul class="key">{key}</ul><p class="says">{text(says)}</p>'
        f"{details('The numbers', table(('line', x.label, y.label), numbers, caption))}</figure>\n"
    )


def many(number: int, one: str, more: str = "") -> str:
    """So many of them: the plural is `more`, or has an s."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def seconds(value: float | None) -> Number:
    """A time that a person reads at a glance."""
    if value is None:
        return Number("–")
    size = abs(value)
    if size < 0.0000005:
        return Number("0")
    if size < 0.001:
        return Number(f"{value * 1e6:.3g} µs" if size < 0.0009995 else "1 ms")
    if size < 1:
        return Number(f"{value * 1e3:.3g} ms" if size < 0.9995 else "1 s")
    if size < 120:
        return Number(f"{value:.3g} s")
    return Number(f"{value / 60:,.1f} min" if size < 1e7 else f"{value:.3g} s")


def _show(value: Cell) -> Html:
    if value is None:
        return Html("–")
    if isinstance(value, Alarm):
        return Html(f'<strong class="alarm">{text(value)}</strong>')
    if isinstance(value, bool) or not isinstance(value, int | float):
        return text(value)
    return Html(f"{value:,}" if isinstance(value, int) else f"{value:,.2f}")


def _is_number(value: Cell) -> bool:
    return isinstance(value, int | float | Number) and not isinstance(value, bool)


def _class(at_right: bool, name: Cell = None) -> str:
    """Numbers stand at the right; short names are not broken into lines."""
    if at_right:
        return ' class="n"'
    return ' class="name"' if isinstance(name, str) and len(name) <= NAME_SHORT else ""


def _resource(name: str) -> str:
    return resources.files("coterie.spark").joinpath(name).read_text(encoding="utf-8")


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{csp}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · {kind}</title>
<style>
{css}</style>
</head>
<body>
<a class="skip" href="#main">To the content</a>
<header>
<p class="kind">{kind} <button type="button" id="theme" hidden>other theme</button></p>
<h1>{title}</h1>
{verdict}
<dl class="facts">{facts}</dl>
<nav aria-label="Sections">{nav}</nav>
</header>
<main id="main">
{sections}
</main>
<script>{js}</script>
</body>
</html>
"""  # noqa: E501
