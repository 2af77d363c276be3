"""Effects behind damage: whatever of them fits what is left is done.

Where the log is on one disk only, nobody can bring a record that cannot be read; those behind it count all the same.
"""

from __future__ import annotations

from typing import Any

from coterie.broker.ranges import MalformedRanges, PositionSet
from coterie.broker.state import marks, messages, sharing
from coterie.broker.state.broker_state import BrokerState
from coterie.broker.state.effect_codec import MalformedEffects
from coterie.broker.state.limits import QueueLimits
from coterie.broker.state.operations import Operation
from coterie.broker.state.positions import as_set
from coterie.broker.state.queue_state import QueueConfig, QueueState
from coterie.broker.state.step import Step, decode_effects
from coterie.runtime.base import Buffer


def replay_what_fits(state: BrokerState, effects: Buffer, lost: list[str]) -> None:
    """Raises MalformedEffects if they cannot even be read."""
    step = Step(state)
    left_out = 0
    for number, operation, args in decode_effects(bytes(effects)):
        queue = state.queues.get(number) if operation.of_queue else None
        if operation.of_queue and queue is None:  # that it was made is lost; its name may be known
            step.do(sharing.CREATE, None, number, QueueConfig(), QueueLimits())
            queue = state.queues[number]
        args = _fitted(step, operation, queue, args)
        try:
            operation.check(state, queue, *args)
        except (MalformedEffects, MalformedRanges, ValueError):
            left_out += operation not in (messages.LEAVE, sharing.CREATE)
            continue
        step.do(operation, queue, *args)
    step.effects()
    if left_out:
        lost.append(f"{left_out} changes of queues do not follow from what is left of the log")


def _fitted(step: Step, operation: Operation, queue: QueueState | None, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if queue is not None and operation is messages.ENQUEUE and args[0] > queue.next_position:
        step.do(marks.LEAP, queue, args[0])
    elif queue is not None and operation is messages.LEAVE:
        there = queue.ready.intersection(as_set(args[-1]))
        return (*args[:-1], there if there else PositionSet([(0, 1)]))  # position 0 is never given
    return args
