"""One state that this member wants, from whomever has it.

Promises: it ends with a whole state that fits the cut, or with an error that says who failed and why. A flush that
fails is tried again after a pause that grows; a provider that refuses, dies or falls silent is replaced by another,
with a new cut. The group stands still only between the flush and the cut, never while bytes are on their way.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from coterie.errors import CoterieError
from coterie.group.events import StateComes, StateOver
from coterie.group.members import Address, View
from coterie.group.protocols.flush_base import FlushProtocol, Kind, Outcome
from coterie.group.protocols.state_messages import Cancel, Chunk, Cut, End, Failed, Request
from coterie.group.protocols.state_stream import Incoming
from coterie.logs import Log
from coterie.runtime.base import Future, Timer

if TYPE_CHECKING:
    from coterie.group.protocols.state import State

log = Log(__name__)


class StateFailed(CoterieError):
    """No member gave its state, or the application could not set it: the text says who failed and why."""


EMPTY_ROUNDS = 3
"""So many times in a row everybody must say that it has no state: somebody may be getting one just now."""


class Phase(Enum):
    PAUSE = auto()
    """Between two attempts."""
    FLUSH = auto()
    """The group is being flushed."""
    ASK = auto()
    """The flush holds; a provider was asked to cut."""
    STREAM = auto()
    """The cut is made; the state comes."""
    OVER = auto()


class Fetch:
    """The attempts to get one state."""

    def __init__(self, layer: State, future: Future[None] | None, prefer: Address | None, joins: bool) -> None:
        self._layer = layer
        self._runtime = layer.runtime
        self._future = future
        """Of whoever waits for the state."""
        self._prefer = prefer
        self._joins = joins
        self.phase = Phase.PAUSE
        self.incoming: Incoming | None = None
        self.cut_made = False
        """What is delivered waits for the state."""
        self._attempts = 0
        self._failures: dict[Address, str] = {}
        """By member that was asked: why it did not give its state."""
        self._spared: dict[Address, None] = {}
        """Those who failed lately."""
        self._lacking: dict[Address, None] = {}
        """Those who said that they have none themselves."""
        self._empty_rounds = 0
        self._reason = ""
        self._provider: Address | None = None
        self._id = 0
        self._flush: FlushProtocol | None = None
        self._number = 0
        self._timer: Timer | None = None
        self._asked_at = 0.0

    # Attempts.

    def attempt(self) -> None:
        """Flush the group, to have a cut of one's own."""
        self._cancel_timer()
        flush = self._layer.flush
        if self._choose() is None:
            self._give_up("there is no other member")
            return
        if self._nobody_has_it():
            self._give_up("nobody in the view has one")
            return
        if self._attempts >= self._layer.settings.attempts:
            self._give_up(f"{self._attempts} attempts failed")
            return
        if flush is None:
            self._give_up("the stack has no FLUSH2 above STATE to make another cut with")
            return
        self._attempts += 1
        self.phase = Phase.FLUSH
        self._flush = flush
        attempt = self._attempts
        number = flush.suspend(
            Kind.SHARED, self._layer.stack.view.members, lambda outcome: self._flushed(attempt, outcome)
        )
        if self.phase is Phase.FLUSH:
            self._number = number

    def _nobody_has_it(self) -> bool:
        stack = self._layer.stack
        if all(member in self._lacking for member in stack.view.members if member != stack.local):
            self._empty_rounds += 1
            self._lacking.clear()
        return self._empty_rounds >= EMPTY_ROUNDS

    def _flushed(self, attempt: int, outcome: Outcome) -> None:
        if self.phase is not Phase.FLUSH or attempt != self._attempts:
            return  # given up meanwhile, and resumed then
        if not outcome.ok:
            self._flush = None
            self._layer.rule("state.flush_failed")
            self._try_again(f"the flush failed: {outcome.reason}")
            return
        self._number = outcome.number
        self.phase = Phase.ASK
        self._ask()

    def _ask(self) -> None:
        provider = self._choose()
        if provider is None:
            self._give_up("there is no other member")
            return
        self._provider = provider
        self._id = self._layer.next_id()
        self._asked_at = self._runtime.now()
        self._request()

    def _request(self) -> None:
        """Said again until it is answered; the group stands still meanwhile, so not for long."""
        if self._runtime.now() - self._asked_at >= self._layer.settings.cut_timeout:
            self._fail("it did not answer, or has not delivered what we have delivered")
            return
        self._layer.send(Request(self._id, self._layer.point()), self._provider)
        self._timer = self._runtime.call_later(self._layer.settings.resend_interval, self._request)

    def _choose(self) -> Address | None:
        """The member that was asked for; else the oldest that has not failed lately."""
        stack = self._layer.stack
        others = [m for m in stack.view.members if m != stack.local and m not in self._layer.suspects]
        if not others:
            others = [m for m in stack.view.members if m != stack.local]
        fresh = [m for m in others if m not in self._spared]
        if not fresh:
            self._spared.clear()
            fresh = others
        return self._prefer if self._prefer in fresh else next(iter(fresh), None)

    def _fail(self, why: str) -> None:
        """This provider does not give it: take another one, and another cut."""
        provider = self._provider
        assert provider is not None
        self._failures[provider] = why
        self._spared[provider] = None
        if self._prefer == provider:
            self._prefer = None
        if self.phase is Phase.STREAM:
            self._layer.trace_failed(self._layer.stack.local, self._id, why)
        self._layer.send(Cancel(self._id), provider)
        self._release()
        if self.incoming is not None:
            self.incoming.interrupt(f"{provider}: {why}")
        self._try_again(f"{provider}: {why}")

    def _try_again(self, why: str) -> None:
        self._reason = why
        self.phase = Phase.PAUSE
        settings = self._layer.settings
        pause = min(settings.retry_delay * 2 ** min(self._attempts, 16), settings.retry_max_delay)
        self._cancel_timer()
        self._timer = self._runtime.call_later(pause * self._runtime.rng.uniform(0.5, 1.0), self.attempt)

    # The cut.

    def join(self, provider: Address, id: int) -> None:
        """The view that we join in is the cut."""
        if self._provider is not None and self._depends:  # we were lost, and join a second time
            self._layer.send(Cancel(self._id), self._provider)
        self._cancel_timer()
        self._release()
        if self.incoming is not None:
            self.incoming.interrupt("joined again")
        self._provider, self._id = provider, id
        self._attempts = max(1, self._attempts)
        self._layer.rule("state.join_cut")
        self._made_cut()

    def cut(self, sender: Address, message: Cut) -> None:
        if self.phase is not Phase.ASK or (sender, message.id) != (self._provider, self._id):
            return
        if message.at != self._layer.point():
            self._layer.count("cut_differs")
            self._fail("it has not delivered what we have delivered")
            return
        self._layer.rule("state.member_cut")
        self._cancel_timer()
        self._made_cut()
        self._release()

    def _made_cut(self) -> None:
        assert self._provider is not None
        self.phase = Phase.STREAM
        self._layer.trace_cut("requester", self._layer.stack.local, self._id)
        incoming = self.incoming = Incoming(self._layer, self._provider, self._id, self._layer.pace, self._completed)
        self.cut_made = True
        most = self._layer.settings.buffer_max
        self._layer.tell_above(StateComes(incoming, most, lambda error: self._set_ended(incoming, error)))
        incoming.ack()
        self._timer = self._runtime.call_later(self._layer.settings.resend_interval, self._look)

    def _release(self) -> None:
        flush, self._flush = self._flush, None
        if flush is not None:
            flush.resume(self._number)

    # The stream.

    def arrived(self, sender: Address, message: Chunk | End) -> bool:
        """False if it is of a transfer that we know nothing of."""
        if self.phase is not Phase.STREAM or (sender, message.id) != (self._provider, self._id):
            return False
        assert self.incoming is not None
        self.incoming.arrived(message)
        if self.incoming.error is not None:
            self._fail(str(self.incoming.error))
        return True

    @property
    def _depends(self) -> bool:
        """We need something of the provider."""
        complete = self.incoming is not None and self.incoming.complete
        return self.phase is Phase.ASK or (self.phase is Phase.STREAM and not complete)

    def failed(self, sender: Address, message: Failed) -> None:
        if self._depends and (sender, message.id) == (self._provider, self._id):
            self._layer.rule("state.provider_failed")
            if message.lacks:
                self._lacking[sender] = None
            self._fail(message.reason)

    def _look(self) -> None:
        """From time to time: say again how far we are; notice that nothing comes."""
        assert self.incoming is not None
        settings = self._layer.settings
        if self.incoming.waits and self._runtime.now() - self.incoming.moved_at >= settings.stall_timeout:
            self._fail(f"nothing came for {settings.stall_timeout:g} s")
            return
        if not self.incoming.complete:
            self.incoming.ack()
        self._timer = self._runtime.call_later(settings.resend_interval, self._look)

    def _set_ended(self, incoming: Incoming, error: Exception | None) -> None:
        """The application's `set_state` has returned."""
        if incoming is not self.incoming or self.phase is not Phase.STREAM:
            return  # it was interrupted, and knows
        if incoming.error is not None:
            self._fail(str(incoming.error))
        elif error is not None:
            self._layer.trace_failed(self._layer.stack.local, self._id, "set_state failed")
            failure = StateFailed(f"the application failed to set the state: {error!r}")
            failure.__cause__ = error
            self._end(failure)
        elif incoming.complete:
            self._completed()
        else:
            incoming.leave_over()

    def _completed(self) -> None:
        incoming = self.incoming
        assert incoming is not None
        stack = self._layer.stack
        if stack.trace.on:
            stack.trace.emit(
                "state_set", view=stack.view.id, id=f"{stack.local}/{self._id}", count=incoming.count, sum=incoming.sum
            )
        self._layer.count("states_set")
        self._end(None)

    # What happens around it.

    def view_changed(self, view: View) -> None:
        if self.phase is Phase.STREAM and self._depends and self._provider not in view:
            self._layer.rule("state.provider_gone")
            self._fail("it has left the view")
        elif self.phase is Phase.ASK:  # the flush goes on over the view change, but the cut is of the new view
            self._cancel_timer()
            assert self._provider is not None
            self._layer.send(Cancel(self._id), self._provider)
            self._ask()

    def suspected(self, members: tuple[Address, ...]) -> None:
        if self._depends and self._provider in members:
            self._layer.rule("state.provider_gone")
            self._fail("it is suspected")

    def give_up(self, why: str) -> None:
        """Nobody wants it any more. Does nothing if it is over."""
        if self._depends and self._provider is not None:
            self._layer.send(Cancel(self._id), self._provider)
            if self.phase is Phase.STREAM:
                self._layer.trace_failed(self._layer.stack.local, self._id, why)
        if self.phase is not Phase.OVER:
            self._end(StateFailed(f"no state: {why}"))

    def _give_up(self, why: str) -> None:
        self._layer.rule("state.gave_up")
        tried = "; ".join(f"{member}: {reason}" for member, reason in self._failures.items()) or self._reason
        text = f"no state: {why}" + (f" ({tried})" if tried else "")
        if self._joins and self._layer.settings.join_without:
            log.warning("joined without the state", local=self._layer.stack.local, why=text)
            self._end(None)
        else:
            self._end(StateFailed(text))

    def _end(self, failure: StateFailed | None) -> None:
        self.phase = Phase.OVER
        self._cancel_timer()
        self._release()
        if self.incoming is not None:
            self.incoming.interrupt("the state was given up")
        self._layer.fetch_over(failure is not None if self.cut_made else None)
        if self.cut_made:
            self._layer.tell_above(StateOver())
        if self._future is None:
            if failure is not None:
                log.warning("no state", local=self._layer.stack.local, why=failure)
        elif not self._future.done():
            if failure is None:
                self._future.set_result(None)
            else:
                self._future.set_exception(failure)

    def stop(self) -> None:
        """The stack stops: whatever waits for the state waits for ever."""
        self.phase = Phase.OVER
        self._cancel_timer()
        if self._provider is not None:
            self._layer.send(Cancel(self._id), self._provider)
        if self.incoming is not None:
            self.incoming.interrupt("the channel was closed")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
