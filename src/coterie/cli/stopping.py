"""Commands that run until they are told to stop: Ctrl-C and SIGTERM set an event, and they end in good order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Ended:
    """Whether, and by which signal, the command was told to stop."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.number: int | None = None


@contextmanager
def interrupts(ended: Ended) -> Iterator[None]:
    """In this block; the second Ctrl-C does what it always does."""

    def stop(number: int, _: object) -> None:
        ended.number = number
        ended.event.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
