"""`coterie top`: a node and its queues at a glance, in a terminal, again and again; or once."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from coterie.cli.output import print_json
from coterie.cli.remote import Commands, Remote, Shape, as_json, scope
from coterie.cli.top_screen import SORTS, Look, draw
from coterie.errors import CoterieError, UserError
from coterie.visible import visible

EXAMPLES = """\
  coterie top                                     the node on this host, its longest queues first; q ends it
  coterie top --sort publish --name orders        those with orders in their names, the busiest first
  coterie top --once                              what it shows, once: for a log, or for a mail
  coterie top --once --json | jq .queues[0].name  for scripts
"""
DESCRIPTION = """\
Shows how a node is: the cluster it belongs to, rates, latencies, alarms, and its queues, anew every few seconds.
Without a terminal it shows that once. Exit code 1 while an alarm is on or the node does not serve, as far as it was
shown once.
"""
KEYS = "q quit · s sort by the next column · r reverse · arrows, space and b: pages · p pause"
HIDE, SHOW, OTHER, BACK, CLEAR = "\x1b[?25l", "\x1b[?25h", "\x1b[?1049h", "\x1b[?1049l", "\x1b[H"
JSON_ROWS: Final = 100


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    commands = Commands(subparsers, "top", "a node at a glance, again and again", DESCRIPTION, EXAMPLES, run)
    parser = commands.parser
    parser.add_argument("--interval", type=float, help="seconds between two looks (default: as the node samples)")
    parser.add_argument("--once", action="store_true", help="show it once, and end")
    parser.add_argument("--sort", choices=tuple(SORTS), default="ready", help="the column to begin with")
    parser.add_argument("--reverse", action="store_true", help="the least first")
    parser.add_argument("--name", default="", help="only queues with this in their names")
    parser.add_argument("--count", type=int, metavar="N", help="end after N looks")


def run(remote: Remote, options: argparse.Namespace) -> int:
    if options.interval is not None and not options.interval >= 0.1:
        raise UserError(f"--interval {options.interval:g}: a tenth of a second is the least")
    if options.count is not None and options.count < 1:
        raise UserError(f"--count {options.count}: look once, at least")
    look = Look(sort=options.sort, reverse=options.reverse, name=options.name, path=("queues", *scope(options)))
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if as_json(options) or options.once or not terminal:
        live, page = ask(remote, look, JSON_ROWS)
        if as_json(options):
            print_json({"live": live, "queues": page.get("items"), "total": page.get("total_count")})
        else:
            print("\n".join(draw(live, page, look, shutil.get_terminal_size((100, 40)).columns, 30)))
        return 1 if live.get("alarms") or live.get("closed") else 0
    return Top(remote, look, options.interval, options.count).run()


def ask(remote: Remote, look: Look, rows: int) -> tuple[Shape, Shape]:
    """How the node is, and the queues that are shown. Raises CoterieError."""
    query = {
        "page": str(look.page), "page_size": str(rows), "sort": SORTS[look.sort], "name": look.name,
        "sort_reverse": "true" if look.reverse == (look.sort == "name") else "false",
    }  # fmt: skip
    found = remote.get("live", *look.path, **query)
    live, page = (found.get("live"), found.get("shown")) if isinstance(found, dict) else (None, None)
    if not isinstance(live, dict) or not isinstance(page, dict):
        raise CoterieError(f"{remote.where} answers, but not as a Coterie node would")
    return live, page


class Stopped(Exception):
    """By a signal: the terminal is to be as it was."""


class Top:
    """On a terminal, until q."""

    def __init__(self, remote: Remote, look: Look, interval: float | None, count: int | None) -> None:
        self._remote = remote
        self._look = look
        self._interval = interval
        self._left = count
        self._live: Shape = {}
        self._page: Shape = {}
        self._trouble = ""
        self._paused = False

    def run(self) -> int:
        try:
            with restored() as resized:
                self._loop(resized)
        except Stopped:
            pass
        return 0

    def _loop(self, resized: int) -> None:
        due = 0.0
        while True:
            if time.monotonic() >= due and not self._paused:
                self._ask()
                due = time.monotonic() + self._pause()
                if self._left is not None:
                    self._left -= 1
                    if self._left == 0:
                        return
            self._draw()
            wait = None if self._paused else max(0.0, due - time.monotonic())
            ready, _, _ = select.select([sys.stdin, resized], [], [], wait)
            if resized in ready:
                os.read(resized, 64)
            if sys.stdin in ready:
                keys = os.read(sys.stdin.fileno(), 64).decode("ascii", "replace")
                if not keys or "q" in keys or "\x03" in keys:
                    return
                if self._pressed(keys):
                    due = 0.0

    def _pause(self) -> float:
        told = self._live.get("interval")
        return self._interval or (max(0.5, told) if isinstance(told, int | float) else 5.0)

    def _ask(self) -> None:
        try:
            self._live, self._page = ask(self._remote, self._look, self._rows())
            self._trouble = ""
        except UserError as error:
            if self._look.page == 1:
                raise
            self._look.page = 1  # there are fewer queues than there were
            self._trouble = visible(str(error))
        except CoterieError as error:
            self._trouble = visible(str(error))

    def _rows(self) -> int:
        return max(1, min(500, shutil.get_terminal_size().lines - 14))

    def _pressed(self, keys: str) -> bool:
        """Whether it is to be asked again."""
        look, names = self._look, list(SORTS)
        pages = self._page.get("page_count")
        if "p" in keys:
            self._paused = not self._paused
        elif "s" in keys:
            look.sort, look.page = names[(names.index(look.sort) + 1) % len(names)], 1
        elif "r" in keys:
            look.reverse, look.page = not look.reverse, 1
        elif keys in (" ", "\x1b[B", "\x1b[C", "\x1b[6~"):
            look.page = min(look.page + 1, pages if isinstance(pages, int) else 1)
        elif keys in ("b", "\x1b[A", "\x1b[D", "\x1b[5~"):
            look.page = max(1, look.page - 1)
        else:
            return False
        return True

    def _draw(self) -> None:
        size = shutil.get_terminal_size()
        lines = (
            draw(self._live, self._page, self._look, size.columns, size.lines - 2, colour=True) if self._live else []
        )
        foot = (
            f"\x1b[31m{self._trouble[: size.columns - 1]}\x1b[0m"
            if self._trouble
            else f"\x1b[2m{KEYS[: size.columns - 1]}"
        )
        if self._paused:
            foot = "\x1b[33mpaused: p goes on\x1b[0m"
        text = "".join(f"{line}\x1b[K\r\n" for line in [*lines[: size.lines - 1], f"{foot}\x1b[0m"])
        sys.stdout.write(f"{CLEAR}{text.removesuffix(chr(13) + chr(10))}\x1b[J")
        sys.stdout.flush()


@contextmanager
def restored() -> Iterator[int]:
    """The terminal gives each key as it is pressed; in the end it is as it was, whatever ended it. Gives a descriptor
    that can be read when the window has got another size."""

    def told(number: int, frame: FrameType | None) -> None:
        raise Stopped

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    signals = {number: signal.signal(number, told) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    resized, note = os.pipe()

    def wider(number: int, frame: FrameType | None) -> None:
        os.write(note, b"!")

    signals[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, wider)
    try:
        tty.setcbreak(keyboard)
        sys.stdout.write(OTHER + HIDE)
        yield resized
    finally:
        for number, handler in signals.items():
            signal.signal(number, handler)
        sys.stdout.write(SHOW + BACK)
        sys.stdout.flush()
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        os.close(resized)
        os.close(note)
