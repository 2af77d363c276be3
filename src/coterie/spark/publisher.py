"""A publisher in a Spark task: messages in bulk, a window of them unconfirmed, and another broker if one is lost.

What is not confirmed when a connection ends is sent again on the next one, in its order and under the same ids: a queue
that deduplicates has it once, any other at least once. What a full queue refuses is sent again after a pause. Nothing
is given up silently: either everything is confirmed, or `flush` raises.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final

from coterie.spark.link import Link, Lost, Refused

if TYPE_CHECKING:
    from coterie.spark.options import Login, Server

PAUSE_FIRST: Final = 0.1
PAUSE_MOST: Final = 2.0
"""Seconds between two attempts, at first and at most."""
WINDOW_BYTES: Final = 64 << 20
"""Unconfirmed messages have together at most, whatever the window says."""
SENT_MOST: Final = 256 << 10
"""Bytes that go out together."""


@dataclass
class Bulk:
    """Messages as they go over the wire, one after the other."""

    data: bytes
    ends: Sequence[int]
    """Where each ends."""
    first: int = 0
    """The number of the first on the present connection."""
    confirmed: int = 0
    """How many are, from the first on."""
    others: set[int] = field(default_factory=set)
    """Which others are, by index."""

    def left(self) -> list[bytes]:
        """Those that are not confirmed."""
        starts = (0, *self.ends[:-1])
        return [
            self.data[start:end]
            for index, (start, end) in enumerate(zip(starts, self.ends, strict=True))
            if index >= self.confirmed and index not in self.others
        ]


@dataclass(frozen=True)
class Brokers:
    """Whom to publish to, and with what patience."""

    servers: tuple[Server, ...]
    login: Login
    vhost: str = "/"
    window: int = 10_000
    """Messages that may be unconfirmed."""
    connect_timeout: float = 30.0
    """Seconds for finding a broker that lets us in."""
    confirm_timeout: float = 120.0
    """Seconds without any confirm after which a broker counts as lost."""


class Publisher:
    """`first`: which of the servers is tried first, so that tasks spread over them."""

    def __init__(self, brokers: Brokers, first: int = 0) -> None:
        self._brokers = brokers
        self._next = first
        self._sent: deque[Bulk] = deque()
        """Not confirmed yet, at least in part."""
        self._refused: list[bytes] = []
        """By full queues: to be sent again."""
        self._number = 0
        """Of the last message on this connection."""
        self._unconfirmed = 0
        self._progress = time.monotonic()
        """When the broker said something about any of them, or there was nothing to say."""
        self._taken = self._progress
        """When it took any, or there was none."""
        self._stuck = 0
        """How often in a row nothing was confirmed in time."""
        self.connections = 0
        self._link: Link = self._connect()
        self.frame_max = self._link.frame_max

    def send(self, bulk: Bulk) -> None:
        """Returns when it is on its way, and as few are unconfirmed as the window wants."""
        if not self._unconfirmed and not self._refused:
            self._taken = time.monotonic()
        self._take(bulk)
        self._send(bulk.data)
        while self._full(1):
            self._await(lambda: not self._full(2))

    def _full(self, part: int) -> bool:
        """Whether that part of the window is in use."""
        few = self._unconfirmed * part < self._brokers.window
        return not (few and sum(len(bulk.data) for bulk in self._sent) * part < WINDOW_BYTES)

    def flush(self) -> None:
        """Returns when everything is confirmed."""
        pause = PAUSE_FIRST
        while self._sent or self._refused:
            if self._sent:
                self._await(lambda: not self._sent)
            if self._refused:
                if time.monotonic() - self._taken > self._brokers.confirm_timeout:
                    raise Refused(
                        f"a queue refuses messages, and took none for {self._brokers.confirm_timeout:g} s: it is full"
                    )
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_MOST)
                refused, self._refused = self._refused, []
                self._again(refused)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._sent or self._refused:
            self._link.abandon()  # something has failed
        else:
            self._link.close()

    # The window.

    def _take(self, bulk: Bulk) -> None:
        if not self._unconfirmed:
            self._progress = time.monotonic()
        bulk.first = self._number + 1
        self._number += len(bulk.ends)
        self._unconfirmed += len(bulk.ends)
        self._sent.append(bulk)

    def _confirm(self, number: int, multiple: bool, taken: bool) -> None:
        """What the broker says about them."""
        self._progress = time.monotonic()
        if taken:
            self._taken = self._progress
            self._stuck = 0
        if multiple:
            while self._sent and self._sent[0].first <= number:
                bulk = self._sent[0]
                self._settle(bulk, range(bulk.confirmed, min(number - bulk.first + 1, len(bulk.ends))), taken)
                if bulk.first + len(bulk.ends) > number + 1:
                    return
        else:
            for bulk in self._sent:
                if bulk.first <= number < bulk.first + len(bulk.ends):
                    self._settle(bulk, (number - bulk.first,), taken)
                    return

    def _settle(self, bulk: Bulk, indexes: Sequence[int], taken: bool) -> None:
        for index in indexes:
            if index in bulk.others or index < bulk.confirmed:
                continue
            self._unconfirmed -= 1
            if not taken:
                start = bulk.ends[index - 1] if index else 0
                self._refused.append(bulk.data[start : bulk.ends[index]])
            if index == bulk.confirmed:
                bulk.confirmed += 1
                while bulk.confirmed in bulk.others:
                    bulk.others.remove(bulk.confirmed)
                    bulk.confirmed += 1
            else:
                bulk.others.add(index)
        while self._sent and self._sent[0].confirmed == len(self._sent[0].ends):
            self._sent.popleft()

    # Connections.

    def _send(self, data: bytes) -> None:
        """If the connection is lost on the way, all that is not confirmed has been sent on another one."""
        try:
            for at in range(0, len(data), SENT_MOST):
                self._link.exchange(data[at : at + SENT_MOST], lambda: True, self._deadline)
        except Lost as error:
            self._recover(error)

    def _await(self, enough: object) -> None:
        assert callable(enough)
        try:
            self._link.exchange(b"", enough, self._deadline)
        except Lost as error:
            self._recover(error)

    @property
    def _deadline(self) -> float:
        return self._progress + self._brokers.confirm_timeout

    def _recover(self, error: Lost) -> None:
        """The connection is over: another one, and everything again that is not confirmed."""
        self._link.abandon()
        if time.monotonic() >= self._deadline:
            self._stuck += 1
            if self._stuck > 1:
                raise Refused(f"nothing was confirmed for twice {self._brokers.confirm_timeout:g} s; last: {error}")
        while True:
            left = [message for bulk in self._sent for message in bulk.left()]
            self._link = self._connect(error)
            self._sent.clear()
            self._number = self._unconfirmed = 0
            self._progress = time.monotonic()
            try:
                if left:
                    self._again(left, retry=False)
                return
            except Lost as again:
                self._link.abandon()
                error = again

    def _again(self, messages: list[bytes], retry: bool = True) -> None:
        ends: list[int] = []
        at = 0
        for message in messages:
            at += len(message)
            ends.append(at)
        bulk = Bulk(b"".join(messages), ends)
        self._take(bulk)
        if retry:
            self._send(bulk.data)
        else:
            self._link.exchange(bulk.data, lambda: True, self._deadline)

    def _connect(self, why: Lost | None = None) -> Link:
        """To the next server that lets us in. Raises Refused, with what each of them says."""
        brokers = self._brokers
        until = time.monotonic() + brokers.connect_timeout
        said: dict[Server, str] = {}
        pause = PAUSE_FIRST
        while True:
            for _ in brokers.servers:
                server = brokers.servers[self._next % len(brokers.servers)]
                self._next += 1
                rest = until - time.monotonic()
                if rest <= 0 and said:
                    lost = f" after the connection was lost ({why})" if why is not None else ""
                    raise Refused(
                        f"no broker can be reached{lost}: {'; '.join(said.values())}: check the option servers"
                    )
                try:
                    link = Link(server, brokers.login, brokers.vhost, max(rest, 0.1), self._confirm)
                except Lost as error:
                    said[server] = str(error)
                    continue
                self.connections += 1
                if why is not None and link.frame_max < self.frame_max:
                    link.abandon()
                    raise Refused(f"{server}: its frame_max is smaller than that of the broker before it")
                return link
            time.sleep(max(0.0, min(pause, until - time.monotonic())))
            pause = min(2 * pause, PAUSE_MOST)
