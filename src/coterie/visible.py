"""Text that others chose, made fit for a terminal or a line of a log.

Names of queues, exchanges, users and connections come from clients. On an operator's terminal a control character in
them would be obeyed: it could clear the screen, hide a line, or type. So whatever does not print is spelled: the
controls (C0, DEL and C1, of which one begins an escape sequence by itself), what turns the direction of writing around,
what has no width, half characters. Everything else stays as it is.
"""

from __future__ import annotations

import json
from typing import Final

LINES: Final = "\n\t"
"""For `keep`: what a text of several lines may have."""


def visible(text: str, keep: str = "") -> str:
    """`\\x1b`, `\\u202e`, `\\U000e0001`: as Python would write it. `keep`: characters that stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _spelled(each) for each in text)


def visible_shape(value: object) -> object:
    """All texts in what JSON can hold, keys too."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [visible_shape(item) for item in value]
    if isinstance(value, dict):
        return {visible(str(key)): visible_shape(item) for key, item in value.items()}
    return value


def json_text(value: object, indent: int | None = None) -> str:
    """JSON that reads back as the same value, and in which nothing stands that does not print."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    if text.isprintable():
        return text
    # What does not print stands within texts, but for the ends of lines, and JSON can spell all of it.
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def _spelled(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
