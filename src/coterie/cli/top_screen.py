"""What `coterie top` shows, as lines of text: made of what the node answered, and of nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, cast

from coterie.cli.output import duration
from coterie.cli.remote import Shape, cell
from coterie.cli.status import size
from coterie.trace import Json
from coterie.visible import visible_shape

SORTS: Final = {
    "ready": "messages_ready", "held": "messages_unacknowledged", "publish": "message_stats.publish_details.rate",
    "deliver": "message_stats.deliver_get_details.rate", "consumers": "consumers", "size": "message_bytes",
    "name": "name",
}  # fmt: skip
"""Column to what the node sorts by."""
GREEN, RED, YELLOW, BOLD, FAINT, BACK, PLAIN = "32", "31", "33", "1", "2", "7", "0"
_PARTS: Final = re.compile(r"\x1b\[[0-9;]*m|[^\x1b]+")
STATES: Final = {"in step": GREEN, "serving": GREEN, "lost": RED, "stranded": RED}


@dataclass(slots=True)
class Look:
    """What somebody wants to see."""

    sort: str = "ready"
    reverse: bool = False
    """The least first."""
    name: str = ""
    page: int = 1
    path: tuple[str, ...] = ("queues",)


class Pen:
    """Colours, or none."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[{PLAIN}m" if self._colour and text else text


def draw(live: Shape, page: Shape, look: Look, width: int, height: int, colour: bool = False) -> list[str]:
    """At most so many lines, none wider than that."""
    pen = Pen(colour)
    live, page = _printable(live), _printable(page)
    lines = [*_head(live, pen), "", *_members(live, pen), *_numbers(live, pen), ""]
    lines += _queues(page, look, pen, width, max(3, height - len(lines)))
    return [clip(line, width) for line in lines[:height]]


def _printable(shape: Shape) -> Shape:
    """Names that clients chose are not to be obeyed by the terminal."""
    return cast(Shape, visible_shape(shape))


def clip(line: str, width: int) -> str:
    """No wider than that; colours take no room."""
    found, room = [], width
    for part in _PARTS.findall(line):
        if part.startswith("\x1b["):
            found.append(part)
        else:
            found.append(part[:room])
            room -= len(found[-1])
    return "".join(found)


def plain(text: object, width: int) -> str:
    """One line of printable characters, whatever somebody called it, cut to the width."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return shown if len(shown) <= width else f"{shown[: max(0, width - 1)]}…"


def _head(live: Shape, pen: Pen) -> list[str]:
    up = live.get("uptime")
    since = f", up {duration(up / 1000)}" if isinstance(up, int | float) else ""
    state = str(cell(live, "cluster.state") or "")
    shown = pen(state, STATES.get(state, YELLOW))
    lines = [f"{pen(plain(live.get('node'), 60), BOLD)} (Coterie {live.get('version')}{since})  {shown}"]
    alarms, closed = live.get("alarms"), live.get("closed")
    if closed:
        lines.append(pen(f"does not serve: {plain(closed, 200)}", RED))
    elif isinstance(alarms, list) and alarms:
        lines.append(pen(f"alarm: {', '.join(map(str, alarms))}: publishers are blocked", RED))
    return lines


def _members(live: Shape, pen: Pen) -> list[str]:
    found = live.get("cluster")
    rows = found.get("members") if isinstance(found, dict) and found.get("clustered") else None
    if not isinstance(rows, list):
        return []
    lines = []
    for row in rows:
        if isinstance(row, dict):
            state = str(row.get("state"))
            roles = [
                word
                for word, is_so in (
                    ("voter", row.get("voter")), ("coordinator", row.get("name") == cell(live, "cluster.coordinator")),
                    ("this node", row.get("this")),
                )
                if is_so
            ]  # fmt: skip
            name = plain(row.get("name"), 30)
            lines.append(f"  {name:<14} {pen(f'{state:<12}', STATES.get(state, YELLOW))} {', '.join(roles)}")
    return [*lines, ""]


def _numbers(live: Shape, pen: Pen) -> list[str]:
    last = _last(live)

    def number(key: str) -> str:
        value = cell(live, f"totals.{key}")
        return pen(f"{value:,}" if isinstance(value, int) else "-", BOLD)

    lines = [
        f"messages   {number('ready')} ready, {number('unacked')} held in {number('queues')} queues",
        f"clients    {number('connections')} connections, {number('channels')} channels, "
        f"{number('consumers')} consumers",
    ]
    if last:
        rates = ((name, last.get(key)) for name, key in RATES)
        lines.append("a second   " + ", ".join(f"{name} {pen(_rate(value), BOLD)}" for name, value in rates))
        times = ((name, last.get(f"{key}_mean"), last.get(f"{key}_worst")) for name, key in TIMES)
        shown = (f"{name} {pen(_time(mean), BOLD)} (worst {_time(worst)})" for name, mean, worst in times)
        lines.append("took       " + ", ".join(shown))
    memory, disk = cell(live, "process.memory"), cell(live, "process.disk_free")
    if isinstance(memory, int):
        free = f", {size(disk)} of disk free" if isinstance(disk, int) else ""
        lines.append(f"process    {size(memory)} of memory{free}")
    return lines


RATES: Final = (("published", "publish"), ("confirmed", "confirm"), ("delivered", "deliver"), ("acknowledged", "ack"))
TIMES: Final = (("confirm", "confirm"), ("disk sync", "sync"), ("loop lag", "lag"))


def _last(live: Shape) -> dict[str, Json]:
    """The last moment of the history."""
    columns, rows = cell_of(live, "columns"), cell_of(live, "rows")
    if not isinstance(columns, list) or not isinstance(rows, list) or not rows or not isinstance(rows[-1], list):
        return {}
    return dict(zip(map(str, columns), rows[-1], strict=False))


def cell_of(live: Shape, key: str) -> Json:
    history = live.get("history")
    return history.get(key) if isinstance(history, dict) else None


def _rate(value: Json) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _time(value: Json) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.1f} ms"


COLUMNS: Final = (
    ("ready", "messages_ready", 10), ("held", "messages_unacknowledged", 8), ("publish", "publish", 9),
    ("deliver", "deliver_get", 9), ("consumers", "consumers", 9), ("size", "message_bytes", 10),
)  # fmt: skip
"""Name, key, width."""


def _queues(page: Shape, look: Look, pen: Pen, width: int, height: int) -> list[str]:
    shown = [column for column in COLUMNS if width >= 70 or column[0] not in ("deliver", "size", "consumers")]
    names = max(12, width - sum(each[2] + 1 for each in shown) - 1)
    mark = "▲" if look.reverse else "▼"

    def title(name: str) -> str:
        return f"{name}{mark}" if name == look.sort else name

    head = f"{title('name'):<{names}}" + "".join(f" {title(name):>{room}}" for name, _, room in shown)
    rows = page.get("items")
    lines = [pen(head[:width], BACK)]
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    for row in found[: height - 2]:
        vhost = row.get("vhost")
        name = str(row.get("name")) if vhost == "/" else f"{vhost}: {row.get('name')}"
        lines.append(
            f"{plain(name, names):<{names}}" + "".join(f" {_value(row, key):>{room}}" for _, key, room in shown)
        )
    if not found:
        lines.append("no queues" + (f" with '{plain(look.name, 40)}' in their names" if look.name else ""))
    elif (total := page.get("filtered_count")) != len(found[: height - 2]):
        lines.append(pen(f"page {page.get('page')} of {page.get('page_count')}; {total} queues", FAINT))
    return lines


def _value(row: Shape, key: str) -> str:
    if key in ("publish", "deliver_get"):
        value = cell(row, f"message_stats.{key}_details.rate")
        return f"{_rate(value if isinstance(value, int | float) else None)}/s"
    found = row.get(key)
    if key == "message_bytes":
        return size(found) if isinstance(found, int) else "-"
    return f"{found:,}" if isinstance(found, int) else "-"
