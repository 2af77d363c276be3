"""Rpc: ask one member, all, or as many as it takes, and get their answers.

Promises: each member that the request is delivered to is asked once, and every call ends: with the answers, or when
its time is up. A member that leaves the view before it has answered is `MemberLost`, not waited for; what a handler
raises is a `RemoteError` at the caller. Answers that come too late are dropped. A handler may be a coroutine; one that
has too much to do already answers that it is busy.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from coterie.blocks.hub import Hub
from coterie.errors import CoterieError, UserError, WireError
from coterie.group.channel import BufferFull, ChannelClosed, Delivery, Receiver
from coterie.group.members import Address, View
from coterie.group.wire import Codec
from coterie.runtime.base import Future
from coterie.settings import load, setting

log = logging.getLogger("coterie.blocks")

Handler = Callable[[Address, bytes], bytes | Awaitable[bytes]]
"""Given who asks, and what; gives the answer."""


@dataclass(frozen=True, slots=True)
class RpcSettings:
    handlers_max: int = setting(
        1000, "Handlers that may be awaited at the same time; more requests are told that it is busy.", minimum=0
    )


class CallError(CoterieError):
    """A call that did not bring what was asked for."""


class MemberLost(CallError):
    """A member left the view before it answered. Whether it has done what it was asked to do is not known."""

    def __init__(self, member: Address) -> None:
        super().__init__(f"{member} was lost before it answered")
        self.member = member


class RemoteError(CallError):
    """A member's handler failed; the text is that of its exception."""

    def __init__(self, member: Address, text: str) -> None:
        super().__init__(f"{member}: {text}")
        self.member = member
        self.text = text


Answer = bytes | MemberLost | RemoteError


class CallTimeout(CallError):
    """Time is up."""

    def __init__(self, timeout: float, answers: dict[Address, Answer], missing: tuple[Address, ...]) -> None:
        names = ", ".join(map(str, missing)) or "anybody"
        super().__init__(f"no answer of {names} within {timeout:g} s")
        self.answers = answers
        """Of those who did answer, or were lost."""
        self.missing = missing


class TooFewAnswers(CallError):
    """So many have failed or were lost that there will never be as many answers as were asked for."""

    def __init__(self, wanted: int, answers: dict[Address, Answer]) -> None:
        good = sum(isinstance(answer, bytes) for answer in answers.values())
        super().__init__(f"{good} answers, where {wanted} were wanted")
        self.answers = answers


@dataclass(frozen=True, slots=True)
class Request:
    id: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    id: int
    ok: bool
    body: bytes
    """The text of the error, if it is none."""


CODEC = Codec({1: Request, 2: Reply})


@dataclass(slots=True)
class Call:
    """A call under way."""

    future: Future[None]
    targets: dict[Address, None]
    wanted: int | None
    """Answers that are enough; None: those of all targets."""
    delivered: bool
    """The targets are complete."""
    answers: dict[Address, Answer] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[Address, ...]:
        return tuple(member for member in self.targets if member not in self.answers)

    @property
    def good(self) -> dict[Address, bytes]:
        return {member: answer for member, answer in self.answers.items() if isinstance(answer, bytes)}

    def lost(self, view: View) -> None:
        for member in self.missing:
            if member not in view:
                self.answers[member] = MemberLost(member)
        self.look()

    def look(self) -> None:
        """Is it over?"""
        enough = self.wanted is not None and len(self.good) >= self.wanted
        if (enough or (self.delivered and not self.missing)) and not self.future.done():
            self.future.set_result(None)


class Rpc(Receiver):
    """Requests and answers between the members of a hub."""

    def __init__(self, hub: Hub, name: str, handler: Handler | None = None, **settings: object) -> None:
        self._settings = load(RpcSettings, settings, f"rpc '{name}'")
        self._hub = hub
        self._runtime = hub.runtime
        self._port = hub.port(name, self)
        self._handler = handler
        self._handling = 0
        """Handlers that are being awaited."""
        self._calls: dict[int, Call] = {}
        self._ids = 0
        self.late = 0
        """Answers that nobody waited for any more."""
        self.malformed = 0
        hub.when_closed.append(self._close)

    # Calling.

    async def call(self, member: Address, request: bytes, timeout: float) -> bytes:
        """Ask one member. Raises MemberLost, RemoteError, CallTimeout."""
        if member not in self._view():
            raise MemberLost(member)
        call = await self._call(request, Call(self._runtime.future(), {member: None}, None, True), member, timeout)
        answer = call.answers[member]
        if isinstance(answer, bytes):
            return answer
        raise answer

    async def call_all(self, request: bytes, timeout: float) -> dict[Address, Answer]:
        """Ask all members, ourselves included: those of the view now, and of that in which it is delivered.

        Gives each one's answer, or its error. Raises CallTimeout, which has the answers so far.
        """
        call = Call(self._runtime.future(), dict.fromkeys(self._view().members), None, False)
        return (await self._call(request, call, None, timeout)).answers

    async def call_first(self, request: bytes, count: int, timeout: float) -> dict[Address, bytes]:
        """Ask all members, and be content with the first answers. Raises TooFewAnswers, CallTimeout."""
        if count < 1:
            raise UserError(f"call_first: at least one answer, not {count}")
        call = Call(self._runtime.future(), dict.fromkeys(self._view().members), count, False)
        await self._call(request, call, None, timeout)
        if len(call.good) < count:
            raise TooFewAnswers(count, call.answers)
        return call.good

    def _view(self) -> View:
        if self._hub.view is None:
            raise ChannelClosed("not connected: await connect() first")
        return self._hub.view

    async def _call(self, request: bytes, call: Call, dest: Address | None, timeout: float) -> Call:
        self._ids += 1
        number = self._ids
        self._calls[number] = call
        timer = self._runtime.call_later(timeout, self._time_is_up, call, timeout)
        try:
            self._send(CODEC.encode(Request(number, request)), dest, call)
            await call.future
        finally:
            timer.cancel()
            del self._calls[number]
        return call

    @staticmethod
    def _time_is_up(call: Call, timeout: float) -> None:
        if not call.future.done():
            call.future.set_exception(CallTimeout(timeout, dict(call.answers), call.missing))

    def _send(self, message: bytes, dest: Address | None, call: Call | None) -> None:
        """At once, or when there is credit; the caller's time runs meanwhile."""
        try:
            self._port.send_nowait(message, dest)
        except BufferFull:
            self._runtime.spawn(self._send_later(message, dest, call))

    async def _send_later(self, message: bytes, dest: Address | None, call: Call | None) -> None:
        try:
            await self._port.send(message, dest)
        except CoterieError as error:
            if call is not None and not call.future.done():
                call.future.set_exception(error)

    # What arrives.

    def receive(self, batch: list[Delivery]) -> None:
        for sender, messages, multicast, _ in batch:
            for message in messages:
                try:
                    decoded = CODEC.decode(message)
                except WireError:
                    self.malformed += 1
                    continue
                if isinstance(decoded, Reply):
                    self._answered(sender, decoded)
                else:
                    if multicast and sender == self._hub.local:
                        self._delivered(decoded.id)
                    self._asked(sender, decoded)

    def _delivered(self, number: int) -> None:
        """Our own request, to all: it reaches those who are in the view now."""
        call = self._calls.get(number)
        if call is not None:
            view = self._view()
            call.targets |= dict.fromkeys(view.members)
            call.delivered = True
            call.lost(view)

    def _answered(self, sender: Address, reply: Reply) -> None:
        call = self._calls.get(reply.id)
        if call is None or sender in call.answers:
            self.late += 1
            return
        call.answers[sender] = reply.body if reply.ok else RemoteError(sender, reply.body.decode(errors="replace"))
        call.look()

    def view_accepted(self, view: View) -> None:
        for call in list(self._calls.values()):
            call.lost(view)

    # Answering.

    def _asked(self, caller: Address, request: Request) -> None:
        if self._handler is None:
            self._reply(caller, request.id, False, b"nobody answers here")
        elif self._handling >= self._settings.handlers_max:
            self._reply(caller, request.id, False, b"busy")
        else:
            try:
                answer = self._handler(caller, request.body)
            except Exception as error:
                self._failed(caller, request.id, error)
            else:
                if isinstance(answer, bytes):
                    self._reply(caller, request.id, True, answer)
                else:
                    self._handling += 1
                    self._runtime.spawn(self._await(caller, request.id, answer))

    async def _await(self, caller: Address, number: int, answer: Awaitable[bytes]) -> None:
        try:
            self._reply(caller, number, True, await answer)
        except Exception as error:
            self._failed(caller, number, error)
        finally:
            self._handling -= 1

    def _failed(self, caller: Address, number: int, error: Exception) -> None:
        self._reply(caller, number, False, f"{type(error).__name__}: {error}".encode())

    def _reply(self, caller: Address, number: int, ok: bool, body: bytes) -> None:
        if self._hub.view is None or caller not in self._hub.view:
            return  # nobody waits for it
        try:
            self._send(CODEC.encode(Reply(number, ok, body)), caller, None)
        except ChannelClosed:
            log.debug("%s was closed before it answered %s", self._hub.local, caller)

    def _close(self) -> None:
        for call in self._calls.values():
            if not call.future.done():
                call.future.set_exception(ChannelClosed("the channel was closed"))
