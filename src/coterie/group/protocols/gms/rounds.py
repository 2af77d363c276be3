"""Rounds: members are told something, again and again until each has answered, is gone, or time is up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from coterie.group.members import Address
from coterie.runtime.base import Future, Timer

if TYPE_CHECKING:
    from coterie.runtime.base import Runtime

Send = Callable[[object, Address], None]


class Round:
    def __init__(self, messages: Mapping[Address, object], done: Future[None]) -> None:
        self.waiting = dict(messages)
        self.answers: dict[Address, Any] = {}
        self.working: dict[Address, None] = {}
        """Who said that its answer takes time."""
        self.done = done

    def settle(self) -> None:
        if not self.waiting and not self.done.done():
            self.done.set_result(None)


class Rounds:
    """All rounds of one member that are under way."""

    def __init__(self, runtime: Runtime, send: Send, resend: float) -> None:
        self._runtime, self._send, self._resend = runtime, send, resend
        self._rounds: dict[int, Round] = {}
        self._number = 0
        self._timer: Timer | None = None
        self._stopped = False

    def number(self) -> int:
        """The number of the next round: its messages carry it, and the answers to them."""
        self._number += 1
        return self._number

    async def run(
        self, number: int, messages: Mapping[Address, object], timeout: float, more: float = 0.0
    ) -> dict[Address, Any]:
        """Tell each member its message. Returns the answers; who gave none is not among them.

        Those who say that they are at it (`wait_for`) get more time.
        """
        if not messages or self._stopped:
            return {}
        one = self._rounds[number] = Round(messages, self._runtime.future())
        for member, message in messages.items():
            self._send(message, member)
        if self._timer is None:
            self._timer = self._runtime.call_later(self._resend, self._again)
        first = self._runtime.call_later(timeout, self._expire, one, True)
        last = self._runtime.call_later(timeout + more, self._expire, one)
        await one.done
        first.cancel()
        last.cancel()
        del self._rounds[number]
        return one.answers

    def answered(self, number: int, member: Address, answer: object) -> bool:
        one = self._rounds.get(number)
        if one is None or one.waiting.pop(member, None) is None:
            return False
        one.answers[member] = answer
        one.settle()
        return True

    def gone(self, member: Address) -> None:
        """Nothing more is expected of it."""
        for one in list(self._rounds.values()):
            one.waiting.pop(member, None)
            one.settle()

    def wait_for(self, number: int, member: Address) -> None:
        """It needs more time, and nothing need be said again."""
        one = self._rounds.get(number)
        if one is not None and member in one.waiting:
            one.working[member] = None

    def _expire(self, one: Round, spare_workers: bool = False) -> None:
        one.waiting = {m: told for m, told in one.waiting.items() if spare_workers and m in one.working}
        one.settle()

    def _again(self) -> None:
        self._timer = None
        for one in list(self._rounds.values()):
            for member, message in one.waiting.items():
                self._send(message, member)
        if self._rounds:
            self._timer = self._runtime.call_later(self._resend, self._again)

    def stop(self) -> None:
        self._stopped = True
        for one in list(self._rounds.values()):
            self._expire(one)
        if self._timer is not None:
            self._timer.cancel()
