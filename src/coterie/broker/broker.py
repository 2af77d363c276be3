"""The broker: vhosts, the store under them, and the alarms that stop publishers.

`start` recovers what the store has kept; from then on front doors use `vhost(name)`. While an alarm is on (the disk
is full, too many messages are in memory), publishers are to be blocked, and consumers go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coterie.amqp.codes import NOT_ALLOWED
from coterie.broker import records
from coterie.broker.cluster import Cluster, NullCluster
from coterie.broker.recovery import rebuild
from coterie.broker.settings import BrokerSettings
from coterie.broker.storage import NullStore, Recovered, Store
from coterie.broker.vhost import Vhost
from coterie.errors import ProtocolError
from coterie.log import Log
from coterie.runtime.base import Runtime, Timer

DEFAULT_VHOST: Final = "/"
DISK: Final = "disk"
MEMORY: Final = "memory"
log = Log(__name__)


class Broker:
    """One broker."""

    def __init__(
        self,
        runtime: Runtime,
        settings: BrokerSettings | None = None,
        store: Store | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.runtime = runtime
        self.settings = settings or BrokerSettings()
        self.store = store or NullStore()
        self.cluster = cluster or NullCluster()
        self.vhosts: dict[str, Vhost] = {}
        self.records: dict[tuple[str, str], dict[str, object]] = {}
        """Records of kinds that are not the broker's own, as they were recovered: users and the like."""
        self.alarms: dict[str, bool] = {DISK: False, MEMORY: False}
        self.deleting_vhost: list[Callable[[Vhost], None]] = []
        """Called before a vhost ends: its connections are to be closed."""
        self._alarm_listeners: list[Callable[[str], None]] = []
        self._looking: Timer | None = None
        self._start_number = 0
        self._queues_made = 0
        self.cluster.start(runtime)

    # Life.

    def start(self, done: Callable[[Exception | None], None]) -> None:
        """Recover, then `done`; with the exception if nothing can be recovered."""

        def recovered(found: Recovered | Exception) -> None:
            if isinstance(found, Exception):
                done(found)
                return
            self._start_number = found.incarnation or int(self.runtime.wall())
            for text in found.damage:
                log.warning("the store is damaged", what=text)
            self.records = rebuild(self, found)
            if DEFAULT_VHOST not in self.vhosts:
                self.make_vhost(DEFAULT_VHOST)
            self._look()
            done(None)

        self.store.alarm = self._disk_alarm
        self.store.recover(recovered)

    def stop(self, done: Callable[[], None]) -> None:
        """Timers end, and the store is closed. Front doors are closed before."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                queue.stop()
        self.store.close(done)

    # Vhosts.

    def vhost(self, name: str) -> Vhost:
        """Raises ProtocolError 530, as a client gets it that opens a connection."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise ProtocolError(NOT_ALLOWED, f"vhost {name} not found")
        return vhost

    def add_vhost(self, name: str, done: Callable[[Vhost | ProtocolError], None]) -> None:
        """It may be there already."""
        if name in self.vhosts:
            done(self.vhosts[name])
        elif len(self.vhosts) >= self.settings.vhosts_max:
            done(ProtocolError(NOT_ALLOWED, f"cannot add vhost '{name}': there are too many (vhosts_max)"))
        else:
            vhost = self.make_vhost(name)
            self.store.save(records.VHOST, records.key_of(name), {})
            self.store.when_synced(self.store.written(), lambda: done(vhost))

    def delete_vhost(self, name: str, done: Callable[[ProtocolError | None], None]) -> None:
        vhost = self.vhosts.get(name)
        if vhost is None:
            done(ProtocolError(NOT_ALLOWED, f"vhost {name} not found"))
            return
        for listener in self.deleting_vhost:
            listener(vhost)
        vhost.clear()
        del self.vhosts[name]
        self.store.save(records.VHOST, records.key_of(name), None)
        self.store.when_synced(self.store.written(), lambda: done(None))

    def make_vhost(self, name: str) -> Vhost:
        vhost = Vhost(name, self.runtime, self.settings, self.store, self.cluster, self._next_incarnation)
        self.vhosts[name] = vhost
        return vhost

    def _next_incarnation(self) -> int:
        """Never the same, also not after a restart: the number of this start, then a count."""
        self._queues_made += 1
        return (self._start_number << 32) + self._queues_made

    # Alarms.

    @property
    def blocked(self) -> str:
        """Why publishers are to wait; nothing if they are not."""
        reasons = [name for name, on in self.alarms.items() if on]
        return f"low on {' and '.join(reasons)}" if reasons else ""

    def watch_alarms(self, listener: Callable[[str], None]) -> None:
        """It is called with `blocked` whenever that changes."""
        self._alarm_listeners.append(listener)

    def unwatch_alarms(self, listener: Callable[[str], None]) -> None:
        self._alarm_listeners.remove(listener)

    def set_alarm(self, name: str, on: bool) -> None:
        if self.alarms.get(name, False) == on:
            return
        self.alarms[name] = on
        log.warning("alarm" if on else "alarm is over", what=name)
        for listener in list(self._alarm_listeners):
            listener(self.blocked)

    def _disk_alarm(self, on: bool) -> None:
        self.set_alarm(DISK, on)

    @property
    def resident(self) -> int:
        """Bytes of bodies in memory; one that is in two queues counts twice."""
        return sum(queue.pager.resident for vhost in self.vhosts.values() for queue in vhost.queues.values())

    def _look(self) -> None:
        high = self.settings.memory_high
        if high:
            resident = self.resident
            if resident > high:
                self.set_alarm(MEMORY, True)
            elif resident <= high * self.settings.memory_low:
                self.set_alarm(MEMORY, False)
            self._looking = self.runtime.call_later(self.settings.alarm_interval, self._look)
