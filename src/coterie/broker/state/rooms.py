"""How many more messages a consumer may be given."""

from __future__ import annotations

from coterie.broker.state.broker_state import BrokerState
from coterie.broker.state.holders import Holder
from coterie.broker.state.queue_state import QueueState


def room_of(state: BrokerState, queue: QueueState, holder: Holder) -> int:
    if state.unready:
        unready = state.unready.get(holder.peer)
        # What a consumer is given that acknowledges nothing is gone, and might have come from another queue.
        if unready and (holder.no_ack or queue.number in unready):
            return 0
    room = holder.limit - holder.used
    pool = holder.pool
    return min(room, pool.limit - pool.held) if pool is not None and pool.limit else room
