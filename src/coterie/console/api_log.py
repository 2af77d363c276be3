"""The node's log, as far as it is kept."""

from __future__ import annotations

from aiohttp import web

from coterie.broker.users import MONITORING
from coterie.console.ask import Ask, Route, answer, bad
from coterie.logs import LEVELS

LINES = 200


async def show(ask: Ask) -> web.Response:
    """The last lines of a level, or of a graver one, the oldest first."""
    ask.require(MONITORING)
    level = ask.request.query.get("level", LEVELS[0])
    if level not in LEVELS:
        raise bad(f"'level' must be one of {', '.join(LEVELS)}")
    wanted = LEVELS[LEVELS.index(level) :]
    after, limit = _number(ask, "after", 0), _number(ask, "limit", LINES)
    word = ask.request.query.get("name", "").casefold()
    lines = [
        {"number": each.number, "time": each.time, "level": each.level, "logger": each.logger, "event": each.event,
         "facts": each.facts}
        for each in ask.context.logbook.after(after)
        if each.level in wanted or each.level == "critical"
    ]  # fmt: skip
    if word:
        lines = [line for line in lines if word in f"{line['logger']} {line['event']} {line['facts']}".casefold()]
    return answer({"items": lines[-limit:] if limit else [], "last": ask.context.logbook.last})


def _number(ask: Ask, name: str, default: int) -> int:
    text = ask.request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise bad(f"'{name}' must be a whole number")
    return int(text)


ROUTES: list[Route] = [("GET", "/api/log", show)]
