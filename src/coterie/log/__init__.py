"""The file layer of the replicated log: records in segments, snapshots, recovery, the tail for others, merges.

Bytes in, bytes out. Only the runtime's interface is used, so that the simulator can run it. See `event_log.py`.
"""

from coterie.log.event_log import EventLog as EventLog
from coterie.log.event_log import LogOwner as LogOwner
from coterie.log.place import Place as Place
from coterie.log.record import Record as Record
from coterie.log.record import make_record as make_record
from coterie.log.settings import LogSettings as LogSettings
