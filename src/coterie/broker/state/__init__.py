"""The state of queues: ranges of positions, changed by operations that can be taken back and recorded.

Pure: no clock, no I/O, no callbacks, no object for a message. docs/queue-state.md explains it.

    step = Step(state)                        what one ordered event does
    publish(step, queue, arrival)             policy decides, by operations on the step
    allocate_scheduled(step)                  who gets what
    effects = step.effects()                  bytes for the log; or step.undo(), and nothing has happened
    replay(other, effects)                    the same elsewhere, without deciding again

What it is:           `broker_state`, `queue_state`, `holders`, `leases`, `last_values`, `dedup_window`, `limits`
How it changes:       `operations` (`messages`, `marks`, `holding`, `sharing`), `step`, `trimming`
What decides:         `publishing`, `allocation`, `ownership`, `settling`, `fitting`, `consuming`, `leasing`,
                      `expiring`, `dying`, `queue_changes`
As bytes:             `effect_codec`, `snapshot`
"""

from coterie.broker.state.allocation import allocate, allocate_scheduled
from coterie.broker.state.broker_state import BrokerState
from coterie.broker.state.effect_codec import MalformedEffects
from coterie.broker.state.limits import QueueLimits
from coterie.broker.state.publishing import Arrival, publish
from coterie.broker.state.queue_state import QueueConfig, QueueState
from coterie.broker.state.snapshot import MalformedState, decode, encode
from coterie.broker.state.step import Given, Step, replay

__all__ = [
    "Arrival", "BrokerState", "Given", "MalformedEffects", "MalformedState", "QueueConfig", "QueueLimits", "QueueState",
    "Step", "allocate", "allocate_scheduled", "decode", "encode", "publish", "replay",
]  # fmt: skip
