"""Regular expressions that come from outside: of operators, of clients, of stores and definitions.

Promises: a search takes time linear in the text, whatever the pattern (RE2); a pattern costs bounded memory and time
to compile; what RE2 does not know is refused with words that say so. Everything that is not written in this program is
compiled here and nowhere else. See docs/decisions/0018.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol, cast

import re2  # type: ignore[import-untyped]

from coterie.errors import UserError

LENGTH_MAX: Final = 1024
"""Bytes of a pattern that is kept: of a policy, a permission."""
ASKED_MAX: Final = 256
"""Bytes of one that comes with a request."""
MEMORY_MAX: Final = 256 << 10
"""Bytes that RE2 may use for one pattern, its cache of states included."""
PROGRAM_MAX: Final = 600
"""Instructions of a compiled pattern beyond two for each of its bytes: what counted repetitions may add. A search takes
at most as many steps for each byte of a text."""
KEPT: Final = 4096
"""Compiled patterns that are kept."""
_UNKNOWN: Final = (
    ("invalid perl operator: (?=", "look-ahead"),
    ("invalid perl operator: (?!", "look-ahead"),
    ("invalid perl operator: (?<", "look-behind"),
    ("invalid perl operator: (?>", "atomic groups"),
    ("invalid perl operator: (?#", "comments"),
    ("bad repetition operator: ", "possessive or repeated repetition"),
)
"""What people know of other engines, by the beginning of what RE2 says of it."""


class Pattern(Protocol):
    """A compiled one."""

    def search(self, text: bytes) -> object | None: ...

    @property
    def programsize(self) -> int: ...


def check(pattern: str, longest: int = LENGTH_MAX) -> None:
    """Raises UserError that says what is wrong with it."""
    size = len(_bytes(pattern))
    if size > longest:
        raise UserError(f"a pattern may have {longest} bytes, and this has {size}")
    found = _compiled(pattern)
    if isinstance(found, str):
        raise UserError(f"{pattern!r} is no regular expression that can be used here: {found}")


def problem(pattern: str) -> str:
    """Why a pattern, as an older version or another program has let it in, fits nothing; nothing if it is fine."""
    found = _compiled(pattern)
    return found if isinstance(found, str) else ""


def fits(pattern: str, text: str) -> bool:
    """Whether it is found anywhere in a text. One that is no pattern fits nothing: it grants nothing, and changes
    nothing."""
    found = _compiled(pattern)
    return not isinstance(found, str) and found.search(_bytes(text)) is not None


def compile_anew(pattern: str) -> Callable[[str], bool]:
    """As `fits`, without what RE2 remembers of the searches before: for who measures."""
    found = _compiled.__wrapped__(pattern)
    return lambda text: not isinstance(found, str) and found.search(_bytes(text)) is not None


def fits_whole(pattern: str, text: str) -> bool:
    """Whether the whole text is as it says. For patterns that were checked."""
    return fits(rf"\A(?:{pattern})\z", text)


def escape(text: str) -> str:
    """A pattern that fits this text only."""
    return cast(bytes, re2.escape(_bytes(text))).decode()


def _bytes(text: str) -> bytes:
    """RE2 reads UTF-8. Names of clients may have bytes that are none (`tables.read_short`): each counts as U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= each <= "\udfff" else each for each in text).encode()


@lru_cache(KEPT)
def _compiled(pattern: str) -> Pattern | str:
    """Or what is wrong with it."""
    data = _python_end(_bytes(pattern))
    options = re2.Options()
    options.max_mem = MEMORY_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        # Not re2.compile: that keeps 128 of them by itself, and would make ours twice.
        found = cast(Pattern, re2._Regexp(data, options))
    except re2.error as error:
        return _words(error.args[0] if error.args else b"")
    if found.programsize > PROGRAM_MAX + 2 * len(data):
        return "it is too large, with what its counted repetitions stand for"
    return found


def _python_end(pattern: bytes) -> bytes:
    r"""Python calls the end of a text \Z, and patterns were Python's once; RE2 calls it \z."""
    parts = pattern.split(b"\\\\")
    return b"\\\\".join(part.replace(rb"\Z", rb"\z") for part in parts)


def _words(said: object) -> str:
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    if text.startswith("invalid escape sequence: \\") and text[-1:].isdigit():
        return "it refers back to a group, which RE2 does not know"
    for start, name in _UNKNOWN:
        if text.startswith(start):
            return f"it has {name}, which RE2 does not know ({text})"
    if text.startswith("pattern too large"):
        return "it is too large, with what its counted repetitions stand for"
    return text
