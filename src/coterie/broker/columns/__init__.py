"""Messages as columns: from a publisher's frames to the event, the log and a consumer's frames, without an object for
each message. Pure: bytes in, bytes out. docs/publish-event.md tells the format.

| intake.py   | a channel's frames, read just enough to route them            |
| builder.py  | what several channels publish in one turn becomes an event    |
| event.py    | an event, read from bytes that anybody may have written       |
| routes.py   | its exchanges, routing keys and queues                        |
| remnant.py  | what a merge of the log leaves of it                          |
| frames.py   | basic.deliver and basic.get-ok from its buffer                |
| contents.py | events in memory (cache.py), or read from the log             |
"""

from coterie.broker.columns.builder import Block, EventBuilder, Share, make_block
from coterie.broker.columns.event import PublishEvent
from coterie.broker.columns.layout import EXPIRES, PERSISTENT, MalformedEvent, Range
from coterie.broker.columns.routes import KnownRoutes, Route

__all__ = [
    "EXPIRES", "PERSISTENT", "Block", "EventBuilder", "KnownRoutes", "MalformedEvent", "PublishEvent", "Range", "Route",
    "Share", "make_block",
]  # fmt: skip
