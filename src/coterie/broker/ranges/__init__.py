"""Messages of a queue by ranges of their positions: sets, maps and rows that cost next to nothing for each message.

Pure data structures, alike at every broker: no clock, no I/O, nothing of the rest of the broker.

| PositionSet | which messages are ready, held, leased, dying                                    |
| IntervalMap | how often each was delivered                                                     |
| Runs        | of which event each is a part                                                    |
| Lengths     | the bytes of each body                                                           |
| TagRanges   | which delivery tags of a channel stand for which positions, and are unsettled    |

Positions are numbers from 0 to 2^63 - 1; ranges are (first, stop), without `stop`. A mistake of the caller is a
ValueError, before anything has changed; bytes that no value of this version encodes to are MalformedRanges.
"""

from coterie.broker.ranges.codec import ENCODED_MAX, END, MalformedRanges
from coterie.broker.ranges.interval_map import IntervalMap
from coterie.broker.ranges.lengths import Lengths
from coterie.broker.ranges.lookup import Range
from coterie.broker.ranges.positions import PositionSet
from coterie.broker.ranges.runs import Run, Runs
from coterie.broker.ranges.tags import Held, TagRanges, UnknownTag

__all__ = [
    "ENCODED_MAX", "END", "Held", "IntervalMap", "Lengths", "MalformedRanges", "PositionSet", "Range", "Run", "Runs",
    "TagRanges", "UnknownTag",
]  # fmt: skip
